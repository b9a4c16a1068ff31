"""An estimate as rows of text. docs/deploy/sizing.js has the same rows; a test compares them."""

from __future__ import annotations

from math import floor

from fetchproxy.sizing.estimate import Estimate


def rows(estimated: Estimate) -> list[tuple[str, str]]:
    segments, machines = estimated.segments, estimated.machines
    requests, costs = estimated.requests_per_day, estimated.costs_per_month
    busy = machines.proxy_cores + machines.archiver_cores
    return [
        ("proxies", _processes(machines.proxies, machines.proxies_mb_per_s)),
        ("archivers", _processes(machines.archivers, machines.archivers_mb_per_s)),
        ("cores", f"{machines.cores}, of which {busy:.2f} are busy"),
        ("memory of a proxy", _gib(machines.proxy_memory_bytes)),
        ("memory of an archiver", _gib(machines.archiver_memory_bytes)),
        ("spool of an archiver", _gib(machines.archiver_spool_bytes)),
        ("stored", f"{_whole(estimated.stored_gb)} GB"),
        ("segments kept", f"{_whole(segments.kept)}, of {segments.log_bytes / 2**20:.1f} MiB"),
        ("writes a day", _whole(requests.writes)),
        ("listings a day", _whole(requests.listings)),
        ("reads a day", _whole(requests.reads)),
        ("deletions a day", _whole(requests.deletes)),
        ("storage a month", _whole(costs.storage)),
        ("writes and listings a month", _whole(costs.writes_and_listings)),
        ("reads a month", _whole(costs.reads)),
        ("egress a month", _whole(costs.egress)),
        ("all of the store, a month", _whole(costs.total)),
    ]


def _processes(count: int, mb_per_s: float) -> str:
    return f"{count}, together {_whole(mb_per_s)} MB/s in and as much out"


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


def _whole(number: float) -> str:
    """Halves go up, as in a browser."""
    return f"{floor(number + 0.5):,}"
