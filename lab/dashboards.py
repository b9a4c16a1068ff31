"""Grafana's dashboards as lists of panels, for `python -m lab.monitoring`.

A dashboard's file has a hundred lines for each panel, of which three are ours: title, query, unit.
A row of figures that are 0 while all is well comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_OF = '{job=~"$job", instance=~"$instance"}'
_WIDTH = 24  # of Grafana's grid
_DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries`: legend → PromQL, in which OF stands for the labels of the variables. `alarms`: for
    a single figure: from here on it is orange, and red.
    """

    title: str
    queries: dict[str, str]
    unit: str = "short"
    alarms: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    rows: dict[str, tuple[Panel, ...]] = field(default_factory=dict)

    def queries(self) -> Iterator[str]:
        for panels in self.rows.values():
            for panel in panels:
                yield from map(expanded, panel.queries.values())


def expanded(query: str) -> str:
    return query.replace("{OF", _OF[:-1]).replace("OF", _OF)


def _one(title: str, query: str, unit: str, orange: float, red: float) -> Panel:
    return Panel(title, {"": query}, unit, (orange, red))


OVERVIEW = Dashboard(
    "fetchproxy-overview",
    "fetchproxy: overview",
    {
        "Is something lost, or about to be": (
            _one("Gaps in the last hour", "sum(increase(fetchproxy_archive_gaps_totalOF[1h]))",
                 "short", 1, 1),
            _one("Retention of the brokers used up",
                 "max(fetchproxy_archive_retention_used_shareOF) or vector(0)",
                 "percentunit", 0.5, 0.7),
            _one("Store fails for", "max(fetchproxy_store_failing_secondsOF)", "s", 10, 60),
            _one("Brokers away",
                 "max(fetchproxy_brokers_knownOF - fetchproxy_brokers_reachableOF)", "short", 1, 2),
            _one("Silent archivers", "max(fetchproxy_archivers_silentOF)", "short", 1, 1),
            _one("Damaged chunks in the last hour",
                 "sum(increase(fetchproxy_corrupt_chunks_totalOF[1h]))", "short", 1, 1),
            _one("Conditions of level error",
                 'sum(max by (kind) (fetchproxy_conditions{OF, level="error"}))', "short", 1, 3),
            _one("Readers that wait", "sum(fetchproxy_held_partitionsOF)", "short", 1, 10),
        ),
        "Readers by tier": (
            Panel("Bytes to clients, and of them read from the store", {
                "to clients": 'sum(rate(fetchproxy_relayed_bytes_total{OF, direction="to_client"}'
                              "[$__rate_interval]))",
                "from the store": "sum(rate(kafka_server_brokertopicmetrics_remotefetchbytes"
                                  "_totalOF[$__rate_interval]))",
            }, "Bps"),
            Panel("Fetches below the brokers' log, by outcome", {
                "{{outcome}}": "sum by (outcome) (rate(fetchproxy_catch_outcomes_totalOF"
                               "[$__rate_interval]))",
            }, "ops"),
            Panel("Reads of the archive", {
                "p50": "histogram_quantile(0.5, sum by (le) (rate(kafka_log_remote_remotestorage"
                       "manager_remotelogreaderfetchrateandtimems_bucketOF[$__rate_interval])))",
                "p99": "histogram_quantile(0.99, sum by (le) (rate(kafka_log_remote_remotestorage"
                       "manager_remotelogreaderfetchrateandtimems_bucketOF[$__rate_interval])))",
            }, "ms"),
            Panel("Chunks found without the store", {
                "in memory": "sum(rate(fetchproxy_chunk_cache_hits_totalOF[$__rate_interval])) / "
                             "(sum(rate(fetchproxy_chunk_cache_hits_totalOF[$__rate_interval])) + "
                             "sum(rate(fetchproxy_chunk_cache_misses_totalOF[$__rate_interval])))",
                "on disk": "sum(rate(fetchproxy_disk_cache_hits_totalOF[$__rate_interval])) / "
                           "(sum(rate(fetchproxy_disk_cache_hits_totalOF[$__rate_interval])) + "
                           "sum(rate(fetchproxy_disk_cache_misses_totalOF[$__rate_interval])))",
            }, "percentunit"),
            Panel("Fetches that wait", {
                "for the store": "sum(fetchproxy_purgatory_entriesOF)",
                "for a fetcher": "sum(fetchproxy_remote_readers_waitingOF)",
                "for their turn": "sum(fetchproxy_remote_answers_waitingOF)",
            }),
            Panel("Connections", {"{{instance}}": "fetchproxy_connectionsOF"}),
        ),
        "Store: latency and cost": (
            Panel("Operations, 99 of 100 within", {
                "{{operation}}": "histogram_quantile(0.99, sum by (operation, le) "
                                 "(rate(fetchproxy_store_request_seconds_bucketOF"
                                 "[$__rate_interval])))",
            }, "s"),
            Panel("Operations a day", {
                "{{operation}}": "sum by (operation) (rate(fetchproxy_store_request_seconds_countOF"
                                 "[$__rate_interval])) * 86400",
            }),
            Panel("Failed operations", {
                "{{operation}} {{error}}": "sum by (operation, error) "
                                           "(rate(fetchproxy_store_request_errors_totalOF"
                                           "[$__rate_interval]))",
            }, "ops"),
            Panel("Bytes read and written", {
                "read": "sum(rate(kafka_server_brokertopicmetrics_remotefetchbytes_totalOF"
                        "[$__rate_interval]))",
                "written": "sum(rate(kafka_server_brokertopicmetrics_remotecopybytes_totalOF"
                           "[$__rate_interval]))",
            }, "Bps"),
            Panel("Limit of requests per second, after refusals", {
                "{{operation}}": "max by (operation) (fetchproxy_store_requests_per_s_maxOF)",
            }),
            Panel("Stored", {
                "all topics": "sum(max by (topic) "
                              "(kafka_server_brokertopicmetrics_remotelogsizebytesOF))",
            }, "bytes"),
        ),
        "Process": (
            Panel("Cores in use, of those available", {
                "{{instance}}": "rate(process_cpu_seconds_totalOF[$__rate_interval]) / "
                                "on (job, instance) fetchproxy_available_cpu_coresOF",
            }, "percentunit"),
            Panel("Share of the available memory in use", {
                "{{instance}}": "process_resident_memory_bytesOF / on (job, instance) "
                                "fetchproxy_available_memory_bytesOF",
            }, "percentunit"),
            Panel("Event loop busy", {
                "{{instance}}": "rate(fetchproxy_event_loop_busy_seconds_totalOF"
                                "[$__rate_interval])",
            }, "percentunit"),
            Panel("Event loop late, 99 of 100 timers within", {
                "{{instance}}": "histogram_quantile(0.99, sum by (instance, le) "
                                "(rate(fetchproxy_event_loop_lag_seconds_bucketOF"
                                "[$__rate_interval])))",
            }, "s"),
            Panel("Lines of the log: warnings and errors", {
                "{{level}} {{event}}": "sum by (level, event) (increase("
                                       "fetchproxy_log_messages_total"
                                       '{OF, level=~"warning|error|critical"}'
                                       "[$__rate_interval]))",
            }),
            Panel("Limits reached", {
                "{{limit}}": "sum by (limit) (rate(fetchproxy_limits_reached_totalOF"
                             "[$__rate_interval]))",
            }, "ops"),
            Panel("Open files, of those allowed", {
                "{{instance}}": "process_open_fdsOF / process_max_fdsOF",
            }, "percentunit"),
            Panel("Versions", {
                "{{instance}} {{version}}": "fetchproxy_build_infoOF",
            }),
        ),
    },
)  # fmt: skip

ARCHIVE = Dashboard(
    "fetchproxy-archive",
    "fetchproxy: archive by topic",
    {
        "Is something lost, or about to be": (
            _one("Topics that are refused", "max(fetchproxy_archive_refused_topicsOF)",
                 "short", 1, 1),
            _one("Last copy", 'min(fetchproxy_last_success_age_seconds{OF, activity="copy"})',
                 "s", 1800, 3600),
            _one("Last write of metadata",
                 'min(fetchproxy_last_success_age_seconds{OF, activity="metadata_write"})',
                 "s", 1800, 3600),
            _one("Copies that stall", "sum(fetchproxy_archive_stalled_copiesOF)", "short", 1, 1),
            _one("Partitions without space", "max(fetchproxy_archiver_disk_failingOF)",
                 "short", 1, 1),
            _one("Cut by unclean elections in the last day",
                 "sum(increase(fetchproxy_archive_truncated_offsets_totalOF[1d]))", "short", 1, 1),
            Panel("Retention of the brokers used up", {
                "{{topic}}": "topk(10, max by (topic) (fetchproxy_archive_retention_used_shareOF))",
            }, "percentunit"),
            Panel("Conditions", {
                "{{kind}}": 'max by (kind) (fetchproxy_conditions{OF, level!="on record"}) > 0',
            }),
        ),
        "What is not archived": (
            Panel("Offsets", {
                "{{topic}}": "topk(10, max by (topic) (fetchproxy_archive_lag_offsetsOF))",
            }),
            Panel("Gathered, not copied", {
                "{{topic}}": "topk(10, max by (topic) "
                             "(kafka_server_brokertopicmetrics_remotecopylagbytesOF))",
            }, "bytes"),
            Panel("Least margin before the brokers' log start", {
                "{{topic}}": "bottomk(10, min by (topic) (fetchproxy_archive_margin_offsetsOF))",
            }),
        ),
        "Copies and deletions": (
            Panel("Copied", {
                "{{topic}}": "sum by (topic) (rate(kafka_server_brokertopicmetrics_remotecopybytes"
                             "_totalOF[$__rate_interval]))",
            }, "Bps"),
            Panel("Failed copies and deletions", {
                "copies of {{topic}}": "sum by (topic) (rate(kafka_server_brokertopicmetrics_"
                                       "remotecopyerrors_totalOF[$__rate_interval])) > 0",
                "deletions of {{topic}}": "sum by (topic) (rate(kafka_server_brokertopicmetrics_"
                                          "remotedeleteerrors_totalOF[$__rate_interval])) > 0",
            }, "ops"),
            Panel("To be deleted, still stored", {
                "{{topic}}": "topk(10, max by (topic) "
                             "(kafka_server_brokertopicmetrics_remotedeletelagbytesOF))",
            }, "bytes"),
            Panel("Stored", {
                "{{topic}}": "topk(10, max by (topic) "
                             "(kafka_server_brokertopicmetrics_remotelogsizebytesOF))",
            }, "bytes"),
        ),
        "Who reads it": (
            Panel("Read from the store", {
                "{{topic}}": "sum by (topic) (rate(kafka_server_brokertopicmetrics_remotefetchbytes"
                             "_totalOF[$__rate_interval]))",
            }, "Bps"),
            Panel("Fetches below the brokers' log", {
                "{{topic}}": "sum by (topic) (rate(fetchproxy_catches_totalOF[$__rate_interval]))",
            }, "ops"),
            Panel("Lost offsets that readers skipped", {
                "{{topic}}": "sum by (topic) (increase(fetchproxy_offsets_skipped_totalOF"
                             "[$__rate_interval]))",
            }),
        ),
        "Archivers": (
            Panel("Archivers", {
                "running": "max(fetchproxy_archivers_heardOF)",
                "silent": "max(fetchproxy_archivers_silentOF)",
            }),
            Panel("Partitions led", {"{{instance}}": "fetchproxy_archive_leader_partitionsOF"}),
        ),
    },
)  # fmt: skip
DASHBOARDS = (OVERVIEW, ARCHIVE)


def as_json(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["fetchproxy"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": list(_panels(dashboard)),
    }


def _variables() -> list[dict[str, Any]]:
    def labels(name: str, query: str) -> dict[str, Any]:
        more = {"includeAll": True, "allValue": ".*", "multi": True, "refresh": 2, "sort": 1}
        everything = {"text": "All", "value": "$__all"}
        of = {"type": "query", "datasource": _DATA_SOURCE, "query": query, "current": everything}
        return {"name": name, **of, **more}

    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        labels("job", "label_values(fetchproxy_build_info, job)"),
        labels("instance", 'label_values(fetchproxy_build_info{job=~"$job"}, instance)'),
    ]


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, panels in dashboard.rows.items():
        number += 1
        place = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        top += 1
        left_px = tallest = 0
        for panel in panels:
            width, height = (_WIDTH // 8, 4) if panel.alarms else (_WIDTH // 3, 8)
            if left_px + width > _WIDTH:
                left_px, top, tallest = 0, top + tallest, 0
            number += 1
            place = {"x": left_px, "y": top, "w": width, "h": height}
            yield {"id": number, **_panel(panel), "gridPos": place}
            left_px, tallest = left_px + width, max(tallest, height)
        top += tallest


def _panel(panel: Panel) -> dict[str, Any]:
    field_config: dict[str, Any] = {"unit": panel.unit}
    if panel.alarms:
        colours = zip(("green", "orange", "red"), (None, *panel.alarms), strict=True)
        field_config["thresholds"] = {
            "mode": "absolute",
            "steps": [{"color": colour, "value": value} for colour, value in colours],
        }
    return {
        "type": "stat" if panel.alarms else "timeseries",
        "title": panel.title,
        "datasource": _DATA_SOURCE,
        "fieldConfig": {"defaults": field_config, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "expr": expanded(query),
                "legendFormat": legend,
                "instant": panel.alarms is not None,
                "datasource": _DATA_SOURCE,
            }
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }
