"""The one registry of metrics, and how they are declared on it. Declares none itself.

Names are Kafka's own where Kafka has the metric (KIP-405 and KIP-963, as a JMX exporter spells
them: domain, type, name, without the rate suffix), so that existing alerts go on working; the rest
begin with `fetchproxy_`.
"""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
)

# A `_created` series per counter doubles a scrape and nobody reads it.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)  # process_cpu_seconds_total, process_resident_memory_bytes …


def counter(name: str, help_text: str, *labels: str) -> Counter:
    return Counter(name, help_text, labels, registry=REGISTRY)


def gauge(name: str, help_text: str, *labels: str) -> Gauge:
    return Gauge(name, help_text, labels, registry=REGISTRY)
