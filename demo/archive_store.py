"""The store of the demo's archive and its outage: a renamed folder or a killed server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from lab.clouds import AzureServer, GcsServer
from lab.hdfs import HdfsServer
from lab.process import StartedServer
from lab.s3 import VERSITYGW_VERSION, S3Server
from lab.store_server import StoreServer


class ArchiveStore(StartedServer):
    """`with FolderStore(folder) as store: … store.url`."""

    name: str

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for `--store`."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment that a process needs to use the store."""
        return {}

    @abstractmethod
    def take_away(self) -> str:
        """Begins the outage. Returns a sentence about it."""

    @abstractmethod
    def bring_back(self) -> str:
        """Ends the outage. Returns a sentence about it."""

    def start(self) -> None:
        """Does nothing: a folder needs no start."""

    def stop(self) -> None:
        """Does nothing: a folder stays."""


class FolderStore(ArchiveStore):
    name = "a local folder"

    def __init__(self, folder: Path) -> None:
        self._here = folder / "archive"
        self._away = folder / "archive-is-away"
        self._here.mkdir()

    @property
    def url(self) -> str:
        return self._here.as_uri()

    def take_away(self) -> str:
        self._here.rename(self._away)
        return "The archive's folder has been renamed: every read of it fails."

    def bring_back(self) -> str:
        self._away.rename(self._here)
        return "The archive's folder has its name again."


class ServerStore(ArchiveStore):
    _BUCKET = "demo-archive"

    def __init__(self, name: str, server: StoreServer) -> None:
        self.name = name
        self._server = server

    @property
    def url(self) -> str:
        return self._server.store_url(self._BUCKET, "kafka")

    @property
    def environment(self) -> Mapping[str, str]:
        return self._server.environment

    def take_away(self) -> str:
        pid = self._server.pid
        self._server.kill()
        return f"The store's server, process {pid}, has been killed."

    def bring_back(self) -> str:
        self._server.start()
        return f"The store's server runs again, as process {self._server.pid}."

    def start(self) -> None:
        self._server.start()
        self._server.create_bucket(self._BUCKET)

    def stop(self) -> None:
        self._server.stop()


class HdfsStore(ArchiveStore):
    name = "Apache Hadoop's HDFS"

    def __init__(self) -> None:
        self._server = HdfsServer()

    @property
    def url(self) -> str:
        return self._server.store_url("demo-archive")

    def take_away(self) -> str:
        self._server.kill()
        return "HDFS has been killed with SIGKILL."

    def bring_back(self) -> str:
        self._server.start()
        return "HDFS runs again."

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


_STORES: Mapping[str, Callable[[Path], ArchiveStore]] = {
    "file": FolderStore,
    "s3": lambda _: ServerStore(f"versitygw {VERSITYGW_VERSION}, an S3 server", S3Server()),
    "gcs": lambda _: ServerStore("fake-gcs-server, as Google Cloud Storage", GcsServer(1000)),
    "azure": lambda _: ServerStore("Azurite, as Azure Blob Storage", AzureServer()),
    "hdfs": lambda _: HdfsStore(),
}
STORES = tuple(_STORES)


def open_archive_store(kind: str, folder: Path) -> ArchiveStore:
    return _STORES[kind](folder)
