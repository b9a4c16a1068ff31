"""Stores that a test can take away and bring back: a renamed folder, or a killed server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.s3 import S3Server
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
    """While it is away, connections are refused."""
    return RemovableStore(server.store_url(bucket, "archive"), server.kill, server.start)


def store_of_kind(request: pytest.FixtureRequest) -> RemovableStore:
    """For fixtures with the params `file` and `s3`; its own server, and credentials in the
    environment."""
    if request.param == "file":
        return folder_store(request.getfixturevalue("tmp_path"))
    server: S3Server = request.getfixturevalue("own_s3_server")
    for name, value in server.environment.items():
        request.getfixturevalue("monkeypatch").setenv(name, value)
    return server_store(server, server.create_bucket("outage"))
