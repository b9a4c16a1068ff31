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
        ("cores", f"{machines.cores}, of which {busy:.2f} are busy on average"),
        ("memory of a proxy", _gib(machines.proxy_memory_bytes)),
        ("memory of an archiver", _gib(machines.archiver_memory_bytes)),
        ("spool of an archiver", _gib(machines.archiver_spool_bytes)),
        ("stored", f"{_whole(estimated.stored_gb)} GB"),
        ("segments kept", f"{_whole(segments.kept)}, of {segments.log_bytes / 2**20:.1f} MiB"),
        ("write requests a day", _whole(requests.writes)),
        ("list requests a day", _whole(requests.listings)),
        ("read requests a day", _whole(requests.reads)),
        ("delete requests a day", _whole(requests.deletes)),
        ("cost of storage a month", _usd(costs.storage)),
        ("cost of writes and listings a month", _usd(costs.writes_and_listings)),
        ("cost of reads a month", _usd(costs.reads)),
        ("cost of egress a month", _usd(costs.egress)),
        ("total cost a month", _usd(costs.total)),
    ]


def _processes(count: int, mb_per_s: float) -> str:
    return f"{count}, together {_whole(mb_per_s)} MB/s in and {_whole(mb_per_s)} MB/s out"


def _usd(cost: float) -> str:
    return f"${_whole(cost)}"


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


def _whole(number: float) -> str:
    """Halves go up, as in a browser."""
    return f"{floor(number + 0.5):,}"
