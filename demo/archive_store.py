"""The store of the demo's archive, and how it is taken away: a folder that is renamed, or an S3
server that is killed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.s3 import VERSITYGW_VERSION, S3Server


class ArchiveStore(ABC):
    """`with FolderStore(folder) as store: … store.url`."""

    name: str

    @property
    @abstractmethod
    def url(self) -> str:
        """As `--store` takes it."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs in order to use it."""
        return {}

    @abstractmethod
    def take_away(self) -> str:
        """Begin the outage; says in a sentence what was done."""

    @abstractmethod
    def bring_back(self) -> str:
        """End the outage; says in a sentence what was done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


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


class S3Store(ArchiveStore):
    name = f"versitygw {VERSITYGW_VERSION}, an S3 server"
    _BUCKET = "demo-archive"

    def __init__(self) -> None:
        self._server = S3Server()

    @property
    def url(self) -> str:
        return self._server.store_url(self._BUCKET, "kafka")

    @property
    def environment(self) -> Mapping[str, str]:
        return self._server.environment

    def take_away(self) -> str:
        pid = self._server.pid
        self._server.kill()
        return f"The S3 server, process {pid}, has been killed with SIGKILL."

    def bring_back(self) -> str:
        self._server.start()
        return f"The S3 server runs again, as process {self._server.pid}."

    def __enter__(self) -> Self:
        self._server.start()
        self._server.create_bucket(self._BUCKET)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.stop()


def open_archive_store(kind: str, folder: Path) -> ArchiveStore:
    return S3Store() if kind == "s3" else FolderStore(folder)
