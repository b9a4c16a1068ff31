# fetchproxy as a container: the locked dependencies, the package, an unprivileged user.
FROM python:3.11-slim AS build
# By its tag: pin your own build by digest, FROM python:3.11-slim@sha256:…
WORKDIR /src
RUN python -m venv /opt/fetchproxy
# The dependencies come first: they change less often than the code, so this layer stays cached.
COPY requirements/base.txt requirements/base.txt
RUN /opt/fetchproxy/bin/pip install --no-cache-dir --require-hashes -r requirements/base.txt
# The build tools are locked as well, and they stay out of the image.
COPY requirements/build.txt requirements/build.txt
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY protocol protocol
COPY fetchproxy fetchproxy
COPY pyspark_remotelog pyspark_remotelog
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /src/wheels . \
    && /opt/fetchproxy/bin/pip install --no-cache-dir --no-index --no-deps /src/wheels/*.whl

FROM python:3.11-slim
# A volume mounted on the spool takes its owner from this folder.
RUN useradd --system --uid 10001 --no-create-home fetchproxy \
    && install -d -o fetchproxy /var/lib/fetchproxy/spool
COPY --from=build /opt/fetchproxy /opt/fetchproxy
ENV PATH=/opt/fetchproxy/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    FETCHPROXY_ARCHIVE_SPOOL_DIR=/var/lib/fetchproxy/spool
USER fetchproxy
EXPOSE 9192 8080
# With the console, which the variable of its address switches on. Without it nothing can be asked.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import os, urllib.request as web; at = os.environ.get('FETCHPROXY_CONSOLE_LISTEN'); print(web.urlopen('http://127.0.0.1:' + at.rpartition(':')[2] + '/healthz', timeout=4).status if at else 'not checked: FETCHPROXY_CONSOLE_LISTEN is not set')"]
ENTRYPOINT ["fetchproxy"]
CMD ["--help"]
