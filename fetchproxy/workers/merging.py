"""The metrics and the status of several workers as those of one process. Pure.

Metrics keep their values and get the label `worker`, so that a sum is a query's own choice. In the
status, figures of clients are sums. What is known of the archive comes from the first worker, which
archives: all read the same store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fetchproxy.console.status import DISPLAYED_CLIENTS_MAX

_SUMMED = ("relay", "remote_reads", "cache")


def merged_metrics(of_workers: Mapping[int, str], of_parent: str) -> str:
    """Texts in Prometheus' format, by worker; `of_parent` is added as it is."""
    families: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for number, text in of_workers.items():
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                lines = families.setdefault(family, [])
                if line not in lines:
                    lines.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, number))
    merged = [line for name in families for line in [*families[name], *samples.get(name, ())]]
    return "\n".join([*merged, of_parent])


def _labelled(sample: str, number: int) -> str:
    name_end = min(at for at in (sample.find("{"), sample.find(" ")) if at >= 0)
    name, rest = sample[:name_end], sample[name_end:]
    label = f'worker="{number}"'
    return f"{name}{{{label},{rest[1:]}" if rest[0] == "{" else f"{name}{{{label}}}{rest}"


def merged_status(statuses: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`statuses`: those of `/api/status`, in the order of the workers; at least one."""
    merged = dict(statuses[0])
    for name in _SUMMED:
        merged[name] = {
            key: sum(status[name].get(key, 0) for status in statuses) for key in merged[name]
        }
    clients = [client for status in statuses for client in status["clients"]]
    clients.sort(key=lambda client: client["bytes_per_s"], reverse=True)
    merged["clients"] = clients[:DISPLAYED_CLIENTS_MAX]
    merged["clients_total"] = sum(status["clients_total"] for status in statuses)
    events = [event for status in statuses for event in status["events"]]
    merged["events"] = sorted(events, key=lambda event: event["at"], reverse=True)
    _merge_conditions(merged, statuses)
    return merged


def _merge_conditions(merged: dict[str, Any], statuses: Sequence[dict[str, Any]]) -> None:
    """A condition that several workers have is shown once."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for status in statuses:
        for one in status["conditions"]:
            found.setdefault((one["kind"], one["subject"]), one)
    merged["conditions"] = list(found.values())
    counts: dict[str, int] = {}
    for status in statuses:
        for kind, count in status["condition_counts"].items():
            counts[kind] = max(count, counts.get(kind, 0))
    merged["condition_counts"] = counts
    for name in ("headlines", "missing"):
        merged[name] = list(dict.fromkeys(one for status in statuses for one in status[name]))
