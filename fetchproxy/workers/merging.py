"""The metrics and the status of several workers as those of one process. Pure.

Metrics keep their values and get the label `worker`, so that a sum is a query's own choice. In the
status, figures of clients are sums. What is known of the archive comes from the first worker, which
archives: all read the same store. Problems are those of all workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fetchproxy.console.status import DISPLAYED_CLIENTS_MAX
from fetchproxy.observability.health import Kind, Level

_SUMMED = ("relay", "remote_reads", "cache")
_LEVELS = list(Level)
_SEVERITY = {kind.value: number for number, kind in enumerate(Kind)}
# Of a reader and of a group; all other fields are figures.
_READER = ("address", "client_id", "user", "group")
_GROUP = ("group",)


def merged_metrics(of_workers: Mapping[int, str], of_parent: str) -> str:
    """Texts in Prometheus' format, by worker; `of_parent` is added as it is."""
    families: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for number, text in of_workers.items():
        family = ""
        # Not `splitlines`: the other ends of lines that it knows may be in a label.
        for line in text.split("\n"):
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
    name, label_text = sample[:name_end], sample[name_end:]
    label = f'worker="{number}"'
    return (
        f"{name}{{{label},{label_text[1:]}"
        if label_text[0] == "{"
        else f"{name}{{{label}}}{label_text}"
    )


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
    by_kind: dict[tuple[str, str], dict[str, Any]] = {}
    for status in statuses:
        for condition in status["conditions"]:
            by_kind.setdefault((condition["kind"], condition["subject"]), condition)
    merged["conditions"] = list(by_kind.values())
    counts: dict[str, int] = {}
    for status in statuses:
        for kind, count in status["condition_counts"].items():
            counts[kind] = max(count, counts.get(kind, 0))
    merged["condition_counts"] = counts
    for name in ("headlines", "missing"):
        merged[name] = list(dict.fromkeys(text for status in statuses for text in status[name]))
    _merge_problems(merged, statuses)


def _merge_problems(merged: dict[str, Any], statuses: Sequence[dict[str, Any]]) -> None:
    """A problem of several workers is shown once. The outlook is the worst one."""
    by_text: dict[str, dict[str, Any]] = {}
    for status in statuses:
        for problem in status["problems"]:
            by_text.setdefault(problem["kind"], problem)
    merged["problems"] = sorted(by_text.values(), key=lambda one: _LEVELS.index(one["level"]))
    outlooks = [status["outlook"] for status in statuses if status["outlook"]["says"]]
    timed = [outlook for outlook in outlooks if outlook["lost_in_seconds"] is not None]
    soonest = sorted(timed, key=lambda condition: int(condition["lost_in_seconds"]))
    merged["outlook"] = [*soonest, *outlooks, statuses[0]["outlook"]][0]


def merged_readers(of_workers: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of `/api/readers`, those with most bytes first. A client's connections may be spread."""
    rows = _summed(of_workers, _READER)
    return sorted(rows, key=lambda row: -(row["store_bytes"] + row["served_bytes"]))


def merged_groups(of_workers: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of `/api/groups`, by name."""
    return sorted(_summed(of_workers, _GROUP), key=lambda one: str(one["group"]))


def merged_conditions(of_workers: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of `/api/conditions`, the worst first; what several workers report is there once."""
    merged: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in (row for rows in of_workers for row in rows):
        condition_key = (
            row["kind"],
            row["subject"],
            row["topic"],
            row["partition"],
            row["first_offset"],
        )
        merged.setdefault(condition_key, row)
    return sorted(merged.values(), key=_severity_order)


def _severity_order(condition: dict[str, Any]) -> tuple[int, bool, int]:
    level = _LEVELS.index(Level(condition["level"]))
    return level, not condition["missing"], _SEVERITY.get(condition["kind"], len(_SEVERITY))


def merged_lines(of_workers: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of `/api/log`, the newest first."""
    rows = (row for rows in of_workers for row in rows)
    return sorted(rows, key=lambda row: str(row["at"]), reverse=True)


def concatenated(of_workers: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of `/api/process`."""
    return [row for rows in of_workers for row in rows]


def _summed(
    of_workers: Sequence[Sequence[dict[str, Any]]], names: tuple[str, ...]
) -> list[dict[str, Any]]:
    """One row for each combination of `names`, with the sums of the other fields."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in (row for rows in of_workers for row in rows):
        row_sum = sums.setdefault(tuple(row[name] for name in names), dict.fromkeys(row))
        for name, value in row.items():
            before = row_sum[name]
            row_sum[name] = value if before is None or name in names else before + (value or 0)
    return list(sums.values())
