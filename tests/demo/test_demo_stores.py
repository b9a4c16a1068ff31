"""The outage of the demo is a real one, and its end gives everything back."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.archive_store import FolderStore
from fetchproxy.errors import StorageUnavailable
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore


async def test_a_folder_goes_away_and_comes_back(tmp_path: Path) -> None:
    with FolderStore(tmp_path) as store:
        root = Path(store.url.removeprefix("file://"))
        async with FilesystemObjectStore(root, create=False) as objects:
            await objects.put("topic/0/object", b"content")
            store.take_away()
            with pytest.raises(StorageUnavailable):
                await objects.get("topic/0/object")
            store.bring_back()
            assert await objects.get("topic/0/object") == b"content"
