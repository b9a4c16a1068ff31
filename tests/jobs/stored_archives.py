"""Planted archives in a folder, as the jobs open them by URL. Not a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planted_archive import PlantedArchive

from fetchproxy.config.load import Setting, load_config
from fetchproxy.config.schema import Config
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore

PREFIX = "archive"  # of every planted archive


def planted(folder: Path) -> PlantedArchive:
    """To be filled with `add`; below `folder` in the store's own form."""
    return PlantedArchive(FilesystemObjectStore(folder, create=True))  # type: ignore[arg-type]


def config_of(folder: Path, **changes: Any) -> Config:
    """`changes`: keys with `__` for the dot."""
    settings = [Setting("store.url", (folder / PREFIX).as_uri(), "test")]
    settings += [Setting(k.replace("__", "."), v, "test") for k, v in changes.items()]
    return load_config(None, {}, settings)


def config_at(url: str) -> Config:
    """Of an archive that lies at the URL itself."""
    return load_config(None, {}, [Setting("store.url", url, "test")])
