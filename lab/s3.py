"""S3 servers on loopback: versitygw, rclone and moto.

versitygw and rclone are real servers over a local directory. moto is for machines that have only
pip: it keeps objects in memory, accepts wrong signatures and is slow, so it is for semantics only.
All have one interface. Buckets are created by botocore, as a user would.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lab import go, sources
from lab.process import ServerProcess
from lab.store_server import StoreServer

VERSITYGW_VERSION = "1.8.0"
_RCLONE_SOURCES = sources.CLIENTS / "rclone_s3"


def versitygw_executable() -> Path:
    """versitygw, built on first use. Raises PartMissing."""
    version = VERSITYGW_VERSION
    module = f"github.com/versity/versitygw/cmd/versitygw@v{version}"
    return go.install_module(f"versitygw-{version}", module)


def rclone_entry() -> str:
    return sources.entry_of("rclone-s3", _RCLONE_SOURCES)


def rclone_executable() -> Path:
    """Built on first use. Raises PartMissing."""
    return go.build_sources(rclone_entry(), _RCLONE_SOURCES)


class S3Endpoint(StoreServer):
    """An S3 server process with one account. `with S3Server() as s3: s3.create_bucket("b")`."""

    region = "us-east-1"

    def __init__(self, access_key: str = "lab-access", secret_key: str = "lab-secret") -> None:
        super().__init__()
        self.access_key = access_key
        self.secret_key = secret_key

    @property
    def environment(self) -> dict[str, str]:
        """The credentials, as environment variables that boto reads."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
        }

    def store_url(self, bucket: str, prefix: str = "") -> str:
        """The store URL for fetchproxy's `--store`."""
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
        """A synchronous botocore S3 client for this server. The caller closes it."""
        # Each pytest imports this module, and few have to do with botocore, which takes 0.3 s.
        import botocore.session
        from botocore.config import Config

        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
        )


class S3Server(S3Endpoint):
    """versitygw over a temporary directory. Objects survive `kill()`.

    `certificate`: a PEM file, with its key in NAME-key.pem beside it. With it the server uses TLS.
    `access_log`: a file that gets a line for each request, in S3's form.
    """

    def __init__(
        self,
        access_key: str = "lab-access",
        secret_key: str = "lab-secret",
        *,
        certificate: Path | None = None,
        access_log: Path | None = None,
    ) -> None:
        super().__init__(access_key, secret_key)
        self._certificate = certificate
        self._access_log = access_log

    @property
    def endpoint_url(self) -> str:
        plain = super().endpoint_url
        return plain.replace("http:", "https:") if self._certificate else plain

    @property
    def name(self) -> str:
        return "versitygw"

    @property
    def objects(self) -> Path:
        """A folder per bucket, with a file per object. A file moved away is a lost object."""
        return self._folder / "objects"

    def change_account(self, access_key: str, secret_key: str) -> None:
        """Restart with another account: the old keys are refused from now on."""
        self.kill()
        self.access_key, self.secret_key = access_key, secret_key
        self._process = ServerProcess(
            self.name, self._command(self._port), self._folder / "server.log", self._env()
        )
        self.start()

    def _env(self) -> dict[str, str]:
        return {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}

    def _command(self, port: int) -> list[str]:
        versions = self._folder / "versions"
        for folder in (self.objects, versions):
            folder.mkdir(exist_ok=True)
        # versitygw disables keep-alive by default; the S3 services that users have enable it.
        command = [str(versitygw_executable()), "--quiet", "--keep-alive", "--region", self.region]
        command += ["--port", f"127.0.0.1:{port}"]
        if (file := self._certificate) is not None:
            key = file.with_name(f"{file.stem}-key.pem")
            command += ["--cert", str(file), "--key", str(key)]
        if self._access_log is not None:
            command += ["--access-log", str(self._access_log)]
        command.append("posix")
        if _has_extended_attributes(self._folder):
            command += ["--versioning-dir", str(versions)]
        else:
            metadata = self._folder / "metadata"
            metadata.mkdir(exist_ok=True)
            command += ["--sidecar", str(metadata)]
        return [*command, str(self.objects)]


class RcloneServer(S3Endpoint):
    """`rclone serve s3` over a temporary directory. Objects survive `kill()`, unfinished uploads do
    not. It shares no code with versitygw."""

    @property
    def name(self) -> str:
        return "rclone"

    def _command(self, port: int) -> list[str]:
        objects = self._folder / "objects"
        objects.mkdir(exist_ok=True)
        command = [str(rclone_executable()), "serve", "s3", "--addr", f"127.0.0.1:{port}"]
        command += ["--auth-key", f"{self.access_key},{self.secret_key}"]
        # Without this option, rclone would read the user's configuration and report that there is
        # none.
        return [*command, "--config", str(self._folder / "rclone.conf"), str(objects)]


# moto checks If-None-Match and writes in two steps, on several threads. S3 does both in one.
_MOTO = """
import sys
from contextlib import nullcontext
from threading import Lock
from moto.moto_server.werkzeug_app import DomainDispatcherApplication as Application
from moto.server import main

lock, answer = Lock(), Application.__call__

def answer_in_one_step(self, environ, start_response):
    with lock if "HTTP_IF_NONE_MATCH" in environ else nullcontext():
        return answer(self, environ, start_response)

Application.__call__ = answer_in_one_step
main(sys.argv[1:])
"""


class MotoServer(S3Endpoint):
    """moto's S3 in a process of its own. `kill()` loses every object."""

    @property
    def name(self) -> str:
        return "moto"

    def _command(self, port: int) -> list[str]:
        return [sys.executable, "-c", _MOTO, "-H", "127.0.0.1", "-p", str(port)]


def _has_extended_attributes(folder: Path) -> bool:
    """Whether versitygw can keep objects' metadata in extended attributes in this folder."""
    if not hasattr(os, "setxattr"):
        return False
    try:
        os.setxattr(folder, "user.lab", b"1")
    except OSError:
        return False
    return True
