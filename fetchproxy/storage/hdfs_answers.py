"""What the JSON answers of a NameNode say, and the order of a folder's entries. Pure.

HDFS lists a folder by the names of its entries. Keys sort as whole paths, so that a folder counts
as `name/`: `a-/x` comes before `a/x`, though `a` comes before `a-`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from fetchproxy.errors import StorageUnavailable


@dataclass(frozen=True, slots=True)
class FileStatus:
    """`name` is empty where the status is that of the path itself that was asked for."""

    name: str
    is_folder: bool
    size_bytes: int
    version: str
    modified_epoch_ms: int
    children: int  # entries of a folder

    @property
    def place(self) -> str:
        """By which it sorts among the other entries of its folder."""
        return f"{self.name}/" if self.is_folder else self.name


def decoded(body: bytes, what: str) -> Mapping[str, Any]:
    """Raises StorageUnavailable for what no NameNode says."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise StorageUnavailable(f"{what}: the answer is no JSON object: {body[:100]!r}")
    return answer


def file_status(answer: Mapping[str, Any], what: str) -> FileStatus:
    """Of GETFILESTATUS. Raises StorageUnavailable."""
    try:
        return _status(answer["FileStatus"])
    except (KeyError, TypeError, ValueError):
        raise StorageUnavailable(f"{what}: the answer is no FileStatus") from None


def listed_page(answer: Mapping[str, Any], after: str, what: str) -> tuple[list[FileStatus], bool]:
    """Entries of one page of LISTSTATUS_BATCH, all after `after`; whether more pages follow.

    Raises StorageUnavailable where it is no such page.
    """
    try:
        listing = answer["DirectoryListing"]
        page = [_status(entry) for entry in listing["partialListing"]["FileStatuses"]["FileStatus"]]
        more = int(listing["remainingEntries"]) > 0
    except (KeyError, TypeError, ValueError):
        raise StorageUnavailable(f"{what}: the answer is no listing") from None
    if [entry.name for entry in page] == [""]:
        return [], False  # a file, not a folder
    for entry in page:
        if entry.name <= after:
            raise StorageUnavailable(f"{what}: {entry.name} is listed after {after}")
        after = entry.name
    if more and not page:
        raise StorageUnavailable(f"{what}: the listing breaks off")
    return page, more


def _status(fields: Mapping[str, Any]) -> FileStatus:
    size_bytes, modified = int(fields["length"]), int(fields["modificationTime"])
    return FileStatus(
        name=str(fields["pathSuffix"]),
        is_folder=fields["type"] == "DIRECTORY",
        size_bytes=size_bytes,
        # A renamed file keeps its id and time, and what it replaces goes with its own.
        version=f"{int(fields.get('fileId', 0)):x}-{modified:x}-{size_bytes:x}",
        modified_epoch_ms=modified,
        children=int(fields.get("childrenNum", 0)),
    )


class KeyOrder:
    """Puts entries that come by their names into the order of keys, holding back few."""

    def __init__(self) -> None:
        self._held: list[tuple[str, FileStatus]] = []

    def add(self, entry: FileStatus) -> list[FileStatus]:
        """The entries that nothing after `entry` can precede."""
        ready = self._up_to(entry.name)
        heappush(self._held, (entry.place, entry))
        return ready

    def rest(self) -> list[FileStatus]:
        return self._up_to(None)

    def _up_to(self, name: str | None) -> list[FileStatus]:
        ready: list[FileStatus] = []
        while self._held and (name is None or self._held[0][0] < name):
            ready.append(heappop(self._held)[1])
        return ready


def list_after(start_after: str, name_start: str) -> str:
    """After which name to list a folder, so that no entry with a key above is passed over.

    `start_after` is relative to the folder; wanted names begin with `name_start`. A folder `a` is
    wanted after `a-b` too, since its keys are `a/…`: hence from the shortest such name on.
    """
    part = start_after.partition("/")[0]
    for length in range(1, len(part)):
        if part[length] < "/":
            part = part[:length]
            break
    return max(part[:-1], name_start[:-1])
