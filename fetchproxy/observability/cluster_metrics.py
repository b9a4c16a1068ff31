"""Of brokers and archivers, as this process finds them. Reached through `metrics`."""

from __future__ import annotations

from fetchproxy.observability.registry import counter, gauge

BROKERS_KNOWN = gauge(
    "fetchproxy_brokers_known",
    "Brokers of the cluster, those of the last hour included; the bootstrap addresses before",
)
BROKERS_REACHABLE = gauge(
    "fetchproxy_brokers_reachable",
    "Of these, brokers that answer; 0: clients are not served, and nothing is archived",
)
CLUSTER_AUTHENTICATION_REFUSALS = counter(
    "fetchproxy_cluster_authentication_refusals",
    "Times that brokers or a token endpoint refused the proxy's own credentials",
)
ARCHIVERS_HEARD = gauge(
    "fetchproxy_archivers_heard", "Archivers at work, in this process or another one"
)
ARCHIVERS_SILENT = gauge(
    "fetchproxy_archivers_silent",
    "Archivers that were killed, or cannot write to the store, and whose partitions no other one "
    "has; an alarm",
)
ARCHIVER_DISK_FAILING = gauge(
    "fetchproxy_archiver_disk_failing",
    "Partitions that are not archived as this archiver's own disk fails, or has no room; an alarm",
)
