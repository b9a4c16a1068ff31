"""Each part of the remote storage is given to those that need it; a segment goes by one path."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore

PRODUCT = Path(__file__).parents[2] / "fetchproxy"
# What opens an archive: it takes the parts out of the remote storage.
OPENS = {"app.py", "archive.py", "cli", "jobs", "storage"}
# What KIP-405's interface has; names of objects; what the key ring does to a segment; what
# `verify --repair` derives again from a log.
VERBS = {"copy_log_segment_data", "fetch_log_segment", "fetch_index", "delete_log_segment_data"}
NAMES = {"object_key", "parse_key"}
AT_REST = {"encrypts", "packs", "opening", "check_metadata"}
DERIVED = {"put_index", "delete_txn_index", "get_listed_index"}
# Beside the one path: objects that came after their segment was deleted.
DELETE_LATE_OBJECTS = {"writing/copier.py", "metadata/topic_based.py"}


@cache
def attributes() -> tuple[tuple[str, ast.Attribute], ...]:
    """Every attribute in the product, with its file."""
    return tuple(
        (path.relative_to(PRODUCT).as_posix(), node)
        for path in sorted(PRODUCT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    )


def remote_storage() -> RemoteStorage:
    return RemoteStorage(FilesystemObjectStore(PRODUCT))


def name_of(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", "")).lstrip("_")


def reached_through() -> Iterator[str]:
    parts = vars(remote_storage())
    for file, node in attributes():
        part = node.value
        if file.split("/", maxsplit=1)[0] in OPENS or not isinstance(part, ast.Attribute):
            continue
        if name_of(part.value) == "rsm" or (
            name_of(part.value) == "storage" and part.attr in parts
        ):
            yield f"{file}:{node.lineno} {ast.unparse(node)}"


def test_the_remote_storage_manager_has_the_kips_verbs_and_no_parts() -> None:
    public = {name for name in vars(RemoteStorageManager) if not name.startswith("_")}
    assert public == VERBS | NAMES | AT_REST | DERIVED
    assert [name for name in vars(remote_storage().rsm) if not name.startswith("_")] == []


def test_nobody_reaches_through_the_remote_storage_for_its_parts() -> None:
    assert vars(remote_storage()).keys() >= {"rsm", "objects", "identity", "packed", "health"}
    assert list(reached_through()) == []


def test_one_path_hides_and_deletes_a_segment() -> None:
    files = [
        (file, node.attr)
        for file, node in attributes()
        if not file.startswith(("storage/", "segments/"))
    ]
    deletes = {file for file, name in files if name == "delete_log_segment_data"}
    assert deletes == {"writing/deletion/segment_deletion.py", *DELETE_LATE_OBJECTS}
    hides = {file for file, name in files if name == "DELETE_SEGMENT_STARTED"}
    assert hides == {"writing/deletion/segment_deletion.py"}
