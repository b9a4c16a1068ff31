"""Emulators of Google Cloud Storage and Azure Blob Storage on loopback.

The former is fake-gcs-server; lab/clients/gcs_server adds the part of the XML API that it lacks.
The latter is Microsoft's Azurite.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import subprocess
from datetime import UTC, datetime
from email.utils import format_datetime
from http.client import HTTPConnection
from pathlib import Path

from lab import cache, go, sources
from lab.errors import PartFailed, PartMissing
from lab.process import ServerProcess
from lab.store_server import StoreServer

_GCS_SOURCES = sources.CLIENTS / "gcs_server"
_AZURITE_SOURCES = sources.CLIENTS / "azurite"
_NODE = "Install Node.js (18 or newer) with npm, and give npm a way to its registry."


def gcs_entry() -> str:
    return sources.entry_of("gcs-server", _GCS_SOURCES)


def gcs_executable() -> Path:
    """Built on first use. Raises PartMissing."""
    return go.build_sources(gcs_entry(), _GCS_SOURCES)


def azurite_entry() -> str:
    return sources.entry_of("azurite", _AZURITE_SOURCES)


def azurite_command() -> list[str]:
    """Installed on first use. Raises PartMissing."""
    node = shutil.which("node")
    if node is None:
        raise PartMissing("azure", "there is no Node.js on PATH", _NODE)
    folder = cache.build_once(azurite_entry(), _install_azurite)
    return [node, str(folder / "node_modules/azurite/dist/src/blob/main.js")]


def _install_azurite(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise PartMissing("azure", "there is no npm on PATH", _NODE)
    cache.say("installing Azurite by npm")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_AZURITE_SOURCES / name, folder)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise PartMissing("azure", f"npm failed ({result.stderr.strip()[-500:]})", _NODE)


class GcsServer(StoreServer):
    """Accepts one bearer token. Objects survive `kill()`.

    `write_interval_ms`: a name is written or deleted once in this time, others get 429. Cloud
    Storage's own limit is a second; 0: no limit.
    """

    token = "lab-token"

    def __init__(self, write_interval_ms: int = 0) -> None:
        super().__init__()
        self._write_interval_ms = write_interval_ms

    @property
    def name(self) -> str:
        return "fake-gcs-server"

    @property
    def environment(self) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": self.endpoint_url, "GOOGLE_BEARER_TOKEN": self.token}

    def store_url(self, bucket: str, prefix: str = "") -> str:
        return f"gs://{bucket}/{prefix}"

    def create_bucket(self, bucket: str) -> str:
        body = json.dumps({"name": bucket}).encode()
        headers = {"Content-Type": "application/json"}
        _expect(200, self.port, "POST", "/storage/v1/b?project=lab", headers, body)
        return bucket

    def _command(self, port: int) -> list[str]:
        command = [str(gcs_executable()), "-port", str(port), "-folder", str(self._folder)]
        return [*command, "-token", self.token, "-write-interval", f"{self._write_interval_ms}ms"]


class AzureServer(StoreServer):
    """Azurite with one account."""

    account = "devstoreaccount1"
    # Microsoft publishes this key; every emulator has it, unless it is told another one.
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    @property
    def name(self) -> str:
        return "Azurite"

    @property
    def environment(self) -> dict[str, str]:
        words = {
            "AccountName": self.account,
            "AccountKey": self.key,
            "BlobEndpoint": f"{self.endpoint_url}/{self.account}",
        }
        text = ";".join(f"{name}={value}" for name, value in words.items())
        return {"AZURE_STORAGE_CONNECTION_STRING": text}

    def store_url(self, bucket: str, prefix: str = "") -> str:
        return f"az://{bucket}/{prefix}"

    def create_bucket(self, bucket: str) -> str:
        """Uses Shared Key (Microsoft: "Authorize with Shared Key")."""
        path = f"/{self.account}/{bucket}"
        headers = {
            "x-ms-date": format_datetime(datetime.now(UTC), usegmt=True),
            "x-ms-version": "2021-08-06",
        }
        named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        signed = "PUT" + "\n" * 12 + named + f"/{self.account}{path}\nrestype:container"
        digest = hmac.new(base64.b64decode(self.key), signed.encode(), hashlib.sha256).digest()
        signature = base64.b64encode(digest).decode()
        headers["Authorization"] = f"SharedKey {self.account}:{signature}"
        _expect(201, self.port, "PUT", f"{path}?restype=container", headers)
        return bucket

    def rotate_key(self, key: str) -> None:
        """The server restarts, and takes no other key from now on."""
        self.kill()
        self.key = key
        self._process = ServerProcess(
            self.name, self._command(self._port), self._folder / "server.log", self._env()
        )
        self._start_once(self._process)

    def _env(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}

    def kill(self) -> None:
        """SIGTERM, because Azurite keeps its index of objects only in memory for up to 5 s."""
        self._server().stop()

    def _command(self, port: int) -> list[str]:
        command = [*azurite_command(), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
        command += ["--location", str(self._folder), "--silent", "--disableTelemetry"]
        # The client uses a newer version of the API than the emulator knows.
        return [*command, "--skipApiVersionCheck"]


def _expect(
    status: int,
    port: int,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes = b"",
) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    finally:
        connection.close()
    if response.status != status:
        raise PartFailed(f"{method} {path} was answered with {response.status}: {text[:300]}")
