"""Stores that a test takes away and brings back: a folder that is renamed, a server's life."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.store_server import StoreServer


@dataclass(frozen=True)
class RemovableStore:
    url: str
    take_away: Callable[[], object]
    bring_back: Callable[[], object]


def folder_store(folder: Path) -> RemovableStore:
    root, away = folder / "store", folder / "store-away"
    root.mkdir()
    return RemovableStore(root.as_uri(), lambda: root.rename(away), lambda: away.rename(root))


def server_store(server: StoreServer, bucket: str) -> RemovableStore:
    """Connections are refused while it is away."""
    return RemovableStore(server.store_url(bucket, "archive"), server.kill, server.start)
