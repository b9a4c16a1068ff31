"""How far each group has read: in memory, and in a file if one is configured.

A commit is acknowledged when it is on disk: the file is written beside the old one, synced, and
renamed over it, so that a crash leaves either. Commits that come during a write share the next one.
Knows nothing of members and generations.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from sys import getsizeof
from typing import NamedTuple, Self, TypeVar
from uuid import UUID

import structlog

from fetchproxy.errors import ConfigError
from fetchproxy.runtime.cooperative import cooperative
from fetchproxy.serving.archive_only.groups import OFFSET_BYTES, GroupMemory
from fetchproxy.storage.stores.filesystem import sync

log = structlog.get_logger(__name__)

T = TypeVar("T")

FORMAT = 1


class OffsetsFull(Exception):
    """The `archive_only` key of the reached limit; no offset was changed."""


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Belongs to one incarnation of a topic: a re-created topic begins without commits."""

    topic_id: UUID
    offset: int
    leader_epoch: int
    metadata: str | None


_Offsets = Mapping[OffsetKey, CommittedOffset]
Changes = Mapping[OffsetKey, CommittedOffset | None]  # None: forget it


@dataclass(eq=False)
class _Commit:
    changes: Changes
    done: bool = False
    failure: OffsetsFull | OSError | None = None


class CommittedOffsets:
    """An async context manager. Raises ConfigError if the file cannot be read. Offsets from the
    file are kept, whatever the limits are.
    """

    def __init__(self, file: Path | None, offsets_max: int, memory: GroupMemory) -> None:
        self._file = file
        self._offsets_max = offsets_max
        self._memory = memory
        self._offsets: dict[OffsetKey, CommittedOffset] = {}
        self._keys: dict[str, dict[OffsetKey, None]] = {}  # by group
        self._waiting: list[_Commit] = []  # all commits that are not done, oldest first
        self._writing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="offsets-file")

    async def __aenter__(self) -> Self:
        if self._file is None:
            log.warning(
                "offsets_in_memory_only", hint="set archive_only.offsets_file to keep commits"
            )
        else:
            self._offsets = await self._in_thread(partial(read_offsets, self._file))
            await self._add_keys(self._offsets, [_Commit(self._offsets)])
            self._memory.take(sum(_size_bytes(*item) for item in self._offsets.items()))
            # Checked at the start: an unwritable folder is an error of the configuration.
            try:
                await self._in_thread(partial(write_offsets, self._file, self._offsets))
            except OSError as error:
                raise ConfigError(
                    f"archive_only.offsets_file = {self._file}: cannot write: {error.strerror}"
                ) from error
            log.info("offsets_loaded", file=str(self._file), offsets=len(self._offsets))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._thread.shutdown()

    def get(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._offsets.get(OffsetKey(group, topic, partition))

    def of_group(self, group: str) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        keys = self._keys.get(group, {})
        return ((key, self._offsets[key]) for key in keys if key in self._offsets)

    def count_of(self, group: str) -> int:
        return len(self._keys.get(group, ()))

    def groups(self) -> Set[str]:
        return self._keys.keys()

    def has_group(self, group: str) -> bool:
        return group in self._keys

    async def commit(self, changes: Changes) -> None:
        """All changes or none. Raises OffsetsFull, OSError (the file could not be written)."""
        commit = _Commit(changes)
        self._waiting.append(commit)
        async with self._writing:
            # The task that held the lock before may have written this commit, too.
            if not commit.done:
                await self._write(list(self._waiting))
        if commit.failure is not None:
            raise commit.failure

    async def _write(self, commits: list[_Commit]) -> None:
        """Writes all commits that came during the last write, at once."""
        changed = dict(self._offsets)
        taken_bytes, failure = 0, None
        try:
            for commit in commits:
                more, new = await _growth(commit.changes, changed)
                commit.failure = self._limit_reached(len(changed), new, more)
                if commit.failure is None:
                    self._memory.take(more)
                    taken_bytes += more
                    await _apply(commit.changes, changed)
            if self._file is not None:
                await self._in_thread(partial(write_offsets, self._file, changed))
            await self._add_keys(changed, commits)
            self._offsets = changed
            self._drop_keys(commits)
        except OSError as error:
            failure = error
            self._memory.take(-taken_bytes)
        except BaseException:  # the writing task was cancelled: the next one writes all again
            self._memory.take(-taken_bytes)
            raise
        for commit in commits:
            commit.done, commit.failure = True, failure or commit.failure
        del self._waiting[: len(commits)]

    def _limit_reached(self, present: int, new: int, more_bytes: int) -> OffsetsFull | None:
        """Offsets that are kept already may be committed again, whatever the limit."""
        if new and present + new > self._offsets_max:
            return OffsetsFull("offsets_max")
        return None if self._memory.has_room(more_bytes) else OffsetsFull("groups_bytes_max")

    async def _add_keys(self, offsets: _Offsets, commits: Iterable[_Commit]) -> None:
        """Before the offsets themselves count: `of_group` passes over keys without an offset."""
        async for key in cooperative(key for commit in commits for key in commit.changes):
            if key in offsets:
                self._keys.setdefault(key.group, {})[key] = None

    def _drop_keys(self, commits: Iterable[_Commit]) -> None:
        for commit in commits:
            for key in [key for key, new in commit.changes.items() if new is None]:
                keys = self._keys.get(key.group)
                if keys is not None and key not in self._offsets:
                    keys.pop(key, None)
                    if not keys:
                        del self._keys[key.group]

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _size_bytes(key: OffsetKey, value: CommittedOffset | None) -> int:
    """Each commit brings its own copies of its group's and topic's names."""
    if value is None:
        return 0
    names = getsizeof(key.group) + getsizeof(key.topic)
    return OFFSET_BYTES + names + getsizeof(value.metadata)


async def _growth(changes: Changes, offsets: _Offsets) -> tuple[int, int]:
    """How many bytes more the changes take, and how many offsets are new."""
    more = new = 0
    async for key, value in cooperative(changes.items()):
        more += _size_bytes(key, value) - _size_bytes(key, offsets.get(key))
        new += value is not None and key not in offsets
    return more, new


async def _apply(changes: Changes, offsets: dict[OffsetKey, CommittedOffset]) -> None:
    async for key, value in cooperative(changes.items()):
        if value is None:
            offsets.pop(key, None)
        else:
            offsets[key] = value


def read_offsets(file: Path) -> dict[OffsetKey, CommittedOffset]:
    """Empty if there is no file. Raises ConfigError."""
    try:
        content = json.loads(file.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']} is not {FORMAT}")
        return {
            OffsetKey(group, topic, int(partition)): CommittedOffset(
                UUID(topic_id), int(offset), int(epoch), metadata
            )
            for group, topic, partition, topic_id, offset, epoch, metadata in content["offsets"]
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"archive_only.offsets_file = {file}: cannot be read: {error}") from error


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def write_offsets(file: Path, offsets: _Offsets) -> None:
    """Durable on return; the name always refers to a whole file. Raises OSError."""
    rows = [
        [*key, str(value.topic_id), value.offset, value.leader_epoch, value.metadata]
        for key, value in sorted(offsets.items(), key=lambda item: item[0])
    ]
    new_file = file.with_name(file.name + ".new")
    with open(new_file, "w", encoding="utf-8", opener=_for_its_owner) as out:
        json.dump({"format": FORMAT, "offsets": rows}, out)
        out.flush()
        os.fsync(out.fileno())
    new_file.replace(file)
    sync(file.parent)
