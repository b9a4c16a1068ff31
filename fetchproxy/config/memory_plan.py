"""`process.memory_bytes_max`: what each part may take, so that all of them stay below it. Pure.

Every part has a limit of its own that is kept while it runs; here is only how large these are. The
keys that nobody has set shrink together until the whole fits; those that somebody has set count as
they are. Metadata of segments are outside: they are as many as the archive has, and leaving some
out would be to forget a part of the archive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fetchproxy_protocol.record_batch import SEARCHED_BYTES_MAX

from fetchproxy.config.schema import Config, KiB, MiB
from fetchproxy.errors import ConfigError

# The interpreter, its libraries and what is too small to count: a proxy without clients has 70 MiB.
PROCESS_BYTES = 96 * MiB
# Unit of a range read and of the cache.
CHUNK_BYTES = 4 * MiB
# Chunks that wait to be written to the disk cache.
DISK_CACHE_WRITES_MAX = 8
# What an archiver asks of a broker at once.
FETCH_BYTES_MAX = 8 * MiB
# The unit of a multipart upload, and how many of them one upload has in memory: S3 wants at least 5
# MiB, and four at once use a link whose round trip is long.
PART_BYTES = 8 * MiB
PARTS_IN_FLIGHT_MAX = 4
# Freed memory that the C library may keep for later; what is above goes back to the system within
# 5 s. Small bursts come and go untouched.
FREED_BYTES_MAX = 16 * MiB
# A connection that waits, with the one to its broker; what it buffers is another part.
CONNECTION_BYTES = 32 * KiB


@dataclass(frozen=True, slots=True)
class Budget:
    """`units` (a key's value) of `unit_bytes` each; no fewer than `units_min` where it shrinks."""

    units: int
    unit_bytes: int
    units_min: int

    @property
    def size_bytes(self) -> int:
        return self.units * self.unit_bytes


def memory_budgets(config: Config) -> dict[str, Budget]:
    """By key, those that can shrink."""
    gateway, remote = config.gateway, config.remote_fetch
    budgets = {
        "gateway.connections_max": Budget(gateway.connections_max, CONNECTION_BYTES, 100),
        "gateway.connection_buffers_bytes_max": Budget(
            gateway.connection_buffers_bytes_max, 1, 8 * MiB
        ),
        "gateway.remote_answers_bytes_max": Budget(
            gateway.remote_answers_bytes_max,
            1,
            min(4 * CHUNK_BYTES, gateway.remote_answers_bytes_max),
        ),
        "remote_fetch.chunk_cache_bytes_max": Budget(
            remote.chunk_cache_bytes_max, 1, min(2 * CHUNK_BYTES, remote.chunk_cache_bytes_max)
        ),
        # What comes in pieces is joined: for a moment it is there twice.
        "remote_fetch.inflight_bytes_max": Budget(remote.inflight_bytes_max, 2, CHUNK_BYTES),
        "remote_fetch.index_cache_bytes_max": Budget(remote.index_cache_bytes_max, 1, MiB),
    }
    if config.archive_only.enabled:
        groups = config.archive_only.groups_bytes_max
        budgets["archive_only.groups_bytes_max"] = Budget(groups, 1, min(8 * MiB, groups))
    return budgets


def memory_parts(config: Config) -> dict[str, int]:
    """All of them in bytes: first those that do not shrink, by what they follow from."""
    parts = {
        "the process": PROCESS_BYTES,
        "a search by time": SEARCHED_BYTES_MAX,
        "freed memory": FREED_BYTES_MAX,
    }
    remote, archive = config.remote_fetch, config.archive
    if remote.disk_cache_dir is not None:
        parts["remote_fetch.disk_cache_dir"] = DISK_CACHE_WRITES_MAX * CHUNK_BYTES
    if archive.topics is not None:
        # The client of uploads has one part more than are in flight, and gathers the next.
        a_worker = 2 * FETCH_BYTES_MAX + (PARTS_IN_FLIGHT_MAX + 2) * PART_BYTES
        parts["archive.workers_max"] = archive.workers_max * a_worker
    return parts | {key: budget.size_bytes for key, budget in memory_budgets(config).items()}


def within_ceiling(config: Config, chosen: Collection[str]) -> Config:
    """`config` with its budgets below `process.memory_bytes_max`; `chosen` keys stay as they are.

    Raises ConfigError, with every part and its size, where that is not possible.
    """
    ceiling = config.process.memory_bytes_max
    if not ceiling:
        return config
    budgets = memory_budgets(config)
    shrinking = {key: budget for key, budget in budgets.items() if key not in chosen}
    kept = sum(memory_parts(config).values()) - sum(b.size_bytes for b in shrinking.values())
    units = _shrunk(shrinking, ceiling - kept)
    if units is None:
        least = {key: b.units_min * b.unit_bytes for key, b in shrinking.items()}
        raise ConfigError(_too_small(ceiling, memory_parts(config) | least))
    return _with_units(config, units)


def _shrunk(budgets: Mapping[str, Budget], room: int) -> dict[str, int] | None:
    """Units by key, all in the same proportion but none below its least; None: they do not fit."""
    if sum(budget.units_min * budget.unit_bytes for budget in budgets.values()) > room:
        return None
    units: dict[str, int] = {}
    # Largest least first: what one must have beyond its proportion the others go without.
    left = dict(budgets)
    while left:
        share = min(room / sum(budget.size_bytes for budget in left.values()), 1.0)
        held = {key: b for key, b in left.items() if int(b.units * share) < b.units_min}
        settled = held or left
        for key, budget in settled.items():
            units[key] = max(int(budget.units * share), budget.units_min)
            room -= units[key] * budget.unit_bytes
        left = {key: budget for key, budget in left.items() if key not in settled}
    return units


def _with_units(config: Config, units: Mapping[str, int]) -> Config:
    changed: dict[str, dict[str, int]] = {}
    for key, count in units.items():
        section, _, name = key.partition(".")
        changed.setdefault(section, {})[name] = count
    sections = {
        section: getattr(config, section).model_copy(update=values)
        for section, values in changed.items()
    }
    return config.model_copy(update=sections)


def _too_small(ceiling: int, parts: Mapping[str, int]) -> str:
    told = ", ".join(f"{key} {size / MiB:.0f}" for key, size in parts.items() if size)
    return (
        f"process.memory_bytes_max = {ceiling}: expected at least {sum(parts.values())}, "
        f"as its parts take {told} MiB"
    )
