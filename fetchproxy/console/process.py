"""What a process is: versions, settings, limits and clocks, for a bundle, without any secret."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path

from fetchproxy import __version__
from fetchproxy.config.document import masked_values
from fetchproxy.config.memory_plan import memory_parts
from fetchproxy.config.schema import Config
from fetchproxy.errors import RemoteStorageError
from fetchproxy.storage.archive_objects import ArchiveObjects

# The store's clock is one request, so callers cannot make many.
CLOCK_AGE_MAX_S = 60.0
CLOCK_WAIT_MAX_S = 5.0
_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_FILES = ("memory.max", "memory.high", "memory.current", "cpu.max", "pids.max")
_STATUS = Path("/proc/self/status")
_STATUS_LINES = ("VmRSS", "VmHWM", "Threads")
_RESOURCES = {
    "open files": resource.RLIMIT_NOFILE,
    "address space": resource.RLIMIT_AS,
    "core file": resource.RLIMIT_CORE,
}


@dataclass(frozen=True, slots=True)
class LogLine:
    """`line`: the whole line as a JSON object."""

    at: str
    level: str
    event: str
    line: str


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """`settings`: the effective value of each, with secrets masked. `settings_of_all`: of all
    workers together, where a worker's `settings` are its share; empty for a single process.
    `memory_plan`: the bytes of each part. `clock_ms`: epoch time of the process.
    `store_clock_ahead_ms`: how far the store's clock is ahead, to about a second; null if the store
    does not report its time or did not respond. Kafka's protocol does not reveal the brokers'
    clocks.
    """

    version: str
    python: str
    system: str
    packages: dict[str, str]
    settings: tuple[str, ...]
    memory_plan: dict[str, int]
    limits: dict[str, str]
    clock_ms: int
    store_clock_ahead_ms: int | None
    settings_of_all: tuple[str, ...] = ()


@dataclass(eq=False, repr=False)
class ProcessFacts:
    """`clock_ms`: the wall clock."""

    config: Config
    objects: ArchiveObjects
    clock_ms: Callable[[], int]
    _ahead_ms: int | None = None
    _asked_at: float = float("-inf")
    _packages: dict[str, str] | None = None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def row(self) -> ProcessRow:
        """One caller after the other, so that many cost no more than one. A thread reads files."""
        async with self._one_at_a_time:
            return await self._row()

    async def _row(self) -> ProcessRow:
        if self._packages is None:
            self._packages = await asyncio.to_thread(_packages)
        return ProcessRow(
            version=__version__,
            python=platform.python_version(),
            system=platform.platform(),
            packages=self._packages,
            settings=tuple(masked_values(self.config)),
            memory_plan=memory_parts(self.config),
            limits=await asyncio.to_thread(_limits),
            clock_ms=self.clock_ms(),
            store_clock_ahead_ms=await self._store_ahead_ms(),
        )

    async def _store_ahead_ms(self) -> int | None:
        clock = asyncio.get_running_loop().time
        if clock() - self._asked_at < CLOCK_AGE_MAX_S:
            return self._ahead_ms
        self._asked_at, self._ahead_ms = clock(), None
        try:
            async with asyncio.timeout(CLOCK_WAIT_MAX_S):
                there_ms = await self.objects.store_clock_ms()
        except (RemoteStorageError, TimeoutError):
            return None  # the status says what fails
        if there_ms is not None:
            self._ahead_ms = there_ms - self.clock_ms()
        return self._ahead_ms


def _packages() -> dict[str, str]:
    versions = {
        distribution.metadata["Name"] or "": distribution.version
        for distribution in distributions()
    }
    return dict(sorted(versions.items()))


def _limits() -> dict[str, str]:
    """Of the process, its cgroup (v2) and its machine, as far as the system tells them."""
    limits = {"cpus": str(os.cpu_count())}
    for name, number in _RESOURCES.items():
        soft, hard = resource.getrlimit(number)
        limits[f"ulimit {name}"] = f"{_or_none(soft)}, at most {_or_none(hard)}"
    for name in _CGROUP_FILES:
        if text := _text_of(_CGROUP / name):
            limits[f"cgroup {name}"] = text
    for line in _text_of(_STATUS).splitlines():
        name, _, value = line.partition(":")
        if name in _STATUS_LINES:
            limits[name] = " ".join(value.split())
    return limits


def _or_none(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _text_of(path: Path) -> str:
    """ "" if the system has no such file."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
