"""S3 servers on loopback: versitygw, a real one over a local directory, and moto where only pip is
there (it keeps objects in memory, accepts wrong signatures and is slow: for semantics only). Both
have one interface; buckets are created by botocore, like any user would."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import botocore.session
from botocore.config import Config

from lab import go
from lab.errors import PartFailed
from lab.process import ServerProcess, free_port, port_answers

VERSITYGW_VERSION = "1.8.0"
_START_ATTEMPTS_MAX = 3


def versitygw_executable() -> Path:
    """versitygw, built on first use. Raises PartMissing."""
    version = VERSITYGW_VERSION
    module = f"github.com/versity/versitygw/cmd/versitygw@v{version}"
    return go.install_module(f"versitygw-{version}", module)


class S3Endpoint(ABC):
    """An S3 server process with one account. `with S3Server() as s3: s3.create_bucket("b")`.

    `kill()` and `start()` are an outage: the server comes back on the same port. `pause()` and
    `resume()` are the other kind, where connections are accepted and nobody answers.
    """

    region = "us-east-1"

    def __init__(self, access_key: str = "lab-access", secret_key: str = "lab-secret") -> None:
        self.access_key = access_key
        self.secret_key = secret_key
        self._folder = Path(tempfile.mkdtemp(prefix="lab-s3-"))
        self._process: ServerProcess | None = None
        self._port = 0

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def _command(self, port: int) -> list[str]: ...

    @property
    def port(self) -> int:
        return self._port

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._server().pid

    @property
    def environment(self) -> dict[str, str]:
        """The credentials as boto reads them from environment variables."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
        }

    def store_url(self, bucket: str, prefix: str = "") -> str:
        """The store as fetchproxy's `--store` takes it."""
        endpoint = quote(self.endpoint_url, safe="")
        return f"s3://{bucket}/{prefix}?endpoint_url={endpoint}&region={self.region}"

    def create_bucket(self, bucket: str) -> str:
        """Creates `bucket` and returns its name. Raises botocore's ClientError."""
        client = self.client()
        try:
            client.create_bucket(Bucket=bucket)
        finally:
            client.close()
        return bucket

    def client(self) -> Any:
        """A synchronous botocore S3 client of this server; the caller closes it."""
        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
        )

    def start(self) -> None:
        """Returns when the server accepts connections; after `kill()`, on the same port."""
        if self._process is not None:
            self._start_once(self._process)
            return
        for attempt in range(1, _START_ATTEMPTS_MAX + 1):
            self._port = free_port()
            process = ServerProcess(
                self.name, self._command(self._port), self._folder / "server.log", self._env()
            )
            try:
                self._start_once(process)
            except PartFailed as failure:
                if "in use" not in str(failure) or attempt == _START_ATTEMPTS_MAX:
                    raise
            else:
                self._process = process
                return

    def stop(self) -> None:
        """Ends the server and removes everything it stored."""
        if self._process is not None:
            self._process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL: connections are refused from now on."""
        self._server().kill()

    def pause(self) -> None:
        self._server().pause()

    def resume(self) -> None:
        self._server().resume()

    def _env(self) -> dict[str, str]:
        return {}

    def _server(self) -> ServerProcess:
        if self._process is None:
            raise PartFailed(f"{self.name} has not been started")
        return self._process

    def _start_once(self, process: ServerProcess) -> None:
        process.start()
        try:
            process.wait_until(lambda: port_answers(self._port), timeout_s=60.0)
        except BaseException:
            process.kill()
            raise

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class S3Server(S3Endpoint):
    """versitygw over a temporary directory; objects survive `kill()`."""

    @property
    def name(self) -> str:
        return "versitygw"

    @property
    def objects(self) -> Path:
        """A folder for each bucket, with a file for each object: what is moved away is gone."""
        return self._folder / "objects"

    def _env(self) -> dict[str, str]:
        return {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}

    def _command(self, port: int) -> list[str]:
        versions = self._folder / "versions"
        for folder in (self.objects, versions):
            folder.mkdir(exist_ok=True)
        # Keep-alive is off by default in versitygw and on in every S3 service a user would have.
        command = [str(versitygw_executable()), "--quiet", "--keep-alive", "--region", self.region]
        command += ["--port", f"127.0.0.1:{port}", "posix"]
        if _has_extended_attributes(self._folder):
            command += ["--versioning-dir", str(versions)]
        else:
            metadata = self._folder / "metadata"
            metadata.mkdir(exist_ok=True)
            command += ["--sidecar", str(metadata)]
        return [*command, str(self.objects)]


class MotoServer(S3Endpoint):
    """moto's S3 in a process of its own; `kill()` loses every object."""

    @property
    def name(self) -> str:
        return "moto"

    def _command(self, port: int) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


def _has_extended_attributes(folder: Path) -> bool:
    """Whether versitygw can keep an object's metadata in extended attributes there."""
    if not hasattr(os, "setxattr"):
        return False
    try:
        os.setxattr(folder, "user.lab", b"1")
    except OSError:
        return False
    return True
