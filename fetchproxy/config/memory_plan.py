"""The memory limits of all parts: their sum stays below `process.memory_bytes_max`. Pure.

Each part enforces its own limit while it runs; this module only decides the sizes. Limits that the
user has not set shrink together until the sum fits; limits that the user has set stay. The metadata
of segments are not included: their size depends on the archive, and dropping some would lose a part
of the archive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from fetchproxy_protocol.record_batch import SEARCHED_BYTES_MAX

from fetchproxy.config.schema import Config, KiB, MiB
from fetchproxy.errors import ConfigError

# The interpreter, its libraries and small parts. A proxy without clients takes 70 MiB.
PROCESS_BYTES = 96 * MiB
# Unit of range reads and of the chunk cache.
CHUNK_BYTES = 4 * MiB
# Chunks that wait to be written to the disk cache.
DISK_CACHE_WRITES_MAX = 8
# Largest Fetch of an archiver from a broker.
FETCH_BYTES_MAX = 8 * MiB
# The part size of a multipart upload (S3 requires at least 5 MiB), and how many parts one upload
# sends at once: four make use of a link with a long round trip.
PART_BYTES = 8 * MiB
PARTS_IN_FLIGHT_MAX = 4
# The upload client accumulates a part only when fewer are in flight
# (`tests/storage/test_upload_memory.py`).
UPLOAD_BYTES = PARTS_IN_FLIGHT_MAX * PART_BYTES
# Freed memory that the C library may keep for reuse, so that small bursts cost nothing. Memory
# above it goes back to the system within 5 s.
FREED_BYTES_MAX = 16 * MiB
# A client's connection that has relayed records, with its connection to a broker. The bytes that
# wait in them are another part. TLS takes more at each side that has it: OpenSSL's objects, and its
# buffers for one record each way. `tests/tls/test_tls_memory.py` measures them.
CONNECTION_BYTES = 20 * KiB
TLS_CLIENT_BYTES = 40 * KiB
TLS_BROKER_BYTES = 44 * KiB
# A TLS handshake under way takes more than a client's connection; and how many there may be. Above
# it, the oldest gives way. A core begins about as many in a second, so a client with a shorter
# round trip has nothing to fear.
TLS_HANDSHAKE_BYTES = 48 * KiB
TLS_HANDSHAKES_MAX = 1_000
# What the largest request takes while archive-only mode works on it: the fields by name, what is
# looked up, and the parts of the response (`tests/archive_only/test_large_requests_at_once.py`).
LARGE_REQUEST_BYTES = 32 * MiB
# What a batch may unpack to for a person who looks at its records in the console. Two of them are
# in memory at most: the records, and what was read of the store.
SHOWN_BATCH_BYTES_MAX = 16 * MiB


@dataclass(frozen=True, slots=True)
class Budget:
    """`units` (a key's value) of `unit_bytes` each; never shrinks below `units_min`."""

    units: int
    unit_bytes: int
    units_min: int

    @property
    def size_bytes(self) -> int:
        return self.units * self.unit_bytes


def connection_bytes(config: Config) -> int:
    """What one client's connection takes."""
    size = CONNECTION_BYTES
    if config.gateway.tls_certificate_file is not None:
        size += TLS_CLIENT_BYTES
    if config.cluster.security_protocol.endswith("SSL") and not config.archive_only.enabled:
        size += TLS_BROKER_BYTES
    return size


def memory_budgets(config: Config) -> dict[str, Budget]:
    """The budgets that can shrink, by key; of all workers together."""
    gateway, remote = config.gateway, config.remote_fetch
    budgets = {
        "gateway.connections_max": Budget(
            gateway.connections_max, connection_bytes(config), min(100, gateway.connections_max)
        ),
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
        # The pieces of a response are joined, so for a moment they are in memory twice.
        "remote_fetch.inflight_bytes_max": Budget(remote.inflight_bytes_max, 2, CHUNK_BYTES),
        "remote_fetch.index_cache_bytes_max": Budget(remote.index_cache_bytes_max, 1, MiB),
    }
    if config.archive_only.enabled:
        groups = config.archive_only.groups_bytes_max
        budgets["archive_only.groups_bytes_max"] = Budget(groups, 1, min(8 * MiB, groups))
    count = config.process.workers
    return {
        key: replace(budget, units_min=count * budget.units_min) for key, budget in budgets.items()
    }


def memory_parts(config: Config) -> dict[str, int]:
    """The size of each part (bytes) by key. Parts that cannot shrink come first, by their cause.

    Workers share the limits that can shrink, and each has the other parts.
    """
    count = config.process.workers
    parts = {
        "the process": count * PROCESS_BYTES,
        "a search by time": count * SEARCHED_BYTES_MAX,
        "freed memory": count * FREED_BYTES_MAX,
    }
    if count > 1:
        parts["the workers' parent"] = PROCESS_BYTES
    remote, archive = config.remote_fetch, config.archive
    if config.gateway.tls_certificate_file is not None:
        parts["tls handshakes"] = count * TLS_HANDSHAKES_MAX * TLS_HANDSHAKE_BYTES
    if config.archive_only.enabled:
        parts["a large request"] = count * LARGE_REQUEST_BYTES
    if config.console.show_records:
        parts["console.show_records"] = 2 * SHOWN_BATCH_BYTES_MAX
    if remote.disk_cache_dir is not None:
        parts["remote_fetch.disk_cache_dir"] = count * DISK_CACHE_WRITES_MAX * CHUNK_BYTES
    if archive.topics is not None:
        a_worker = 2 * FETCH_BYTES_MAX + UPLOAD_BYTES
        parts["archive.workers_max"] = archive.workers_max * a_worker
    return parts | {key: budget.size_bytes for key, budget in memory_budgets(config).items()}


def within_ceiling(config: Config, chosen_keys: Collection[str]) -> Config:
    """`config` with its budgets below `process.memory_bytes_max`; `chosen_keys` stay as they
    are.

    Raises ConfigError, with the size of every part, if that is not possible.
    """
    ceiling = config.process.memory_bytes_max
    if not ceiling:
        return config
    budgets = memory_budgets(config)
    shrinking = {key: budget for key, budget in budgets.items() if key not in chosen_keys}
    fixed_bytes = sum(memory_parts(config).values()) - sum(b.size_bytes for b in shrinking.values())
    units = _shrink_to_fit(shrinking, ceiling - fixed_bytes)
    if units is None:
        least_bytes = {key: b.units_min * b.unit_bytes for key, b in shrinking.items()}
        raise ConfigError(_too_small(ceiling, memory_parts(config) | least_bytes))
    return _with_units(config, units)


def _shrink_to_fit(budgets: Mapping[str, Budget], bytes_left: int) -> dict[str, int] | None:
    """Units by key, all in the same proportion but at least `units_min`; None: they do not fit."""
    if sum(budget.units_min * budget.unit_bytes for budget in budgets.values()) > bytes_left:
        return None
    units: dict[str, int] = {}
    # Budgets below their minimum get the minimum first. The others share the rest.
    shrinkable = dict(budgets)
    while shrinkable:
        share = min(bytes_left / sum(budget.size_bytes for budget in shrinkable.values()), 1.0)
        at_least = {key: b for key, b in shrinkable.items() if int(b.units * share) < b.units_min}
        fixed_keys = at_least or shrinkable
        for key, budget in fixed_keys.items():
            units[key] = max(int(budget.units * share), budget.units_min)
            bytes_left -= units[key] * budget.unit_bytes
        shrinkable = {key: budget for key, budget in shrinkable.items() if key not in fixed_keys}
    return units


def _with_units(config: Config, units: Mapping[str, int]) -> Config:
    section_changes: dict[str, dict[str, int]] = {}
    for key, count in units.items():
        section, _, name = key.partition(".")
        section_changes.setdefault(section, {})[name] = count
    sections = {
        section: getattr(config, section).model_copy(update=values)
        for section, values in section_changes.items()
    }
    return config.model_copy(update=sections)


def _too_small(ceiling: int, parts: Mapping[str, int]) -> str:
    sizes = ", ".join(f"{key} {size / MiB:.0f}" for key, size in parts.items() if size)
    return (
        f"process.memory_bytes_max = {ceiling}: expected at least {sum(parts.values())}, because "
        f"its parts take {sizes} MiB"
    )
