"""What a person has to know before a restore, as far as brokers tell it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from fetchproxy.cluster_restore.new_cluster import InterBrokerListener
from fetchproxy.cluster_restore.plan import LostTopic
from fetchproxy.config.values import HostPort

# Cruise Control's reporter runs in the brokers and writes here.
_BALANCERS_TOPICS = ("__CruiseControlMetrics", "__KafkaCruiseControlModelTrainingSamples")
_AUTO_CREATE = "auto.create.topics.enable"
_TRUE = "true"  # Kafka's default, too


def phantoms_notes(
    listener: InterBrokerListener, address: HostPort, phantoms: Collection[int]
) -> Iterator[str]:
    """`address`: where brokers connect to; port 0: a free one."""
    port = address.port or "a free port"
    ids = " and ".join(map(str, sorted(phantoms)))
    yield f"brokers connect to this command at {address.host}, {port}, listener {listener.name}"
    yield (
        f"meanwhile clients also see the brokers {ids}; requests to them are passed on to a real "
        "broker. Until a partition's start is proved, it has no real leader, and producers wait"
    )


def padding_notes(topics: Iterable[LostTopic]) -> Iterator[str]:
    yield (
        "until the end, nobody else may write to the topics, and consumers would read the padding: "
        "start no clients. Records of others are noticed, named, and not deleted"
    )
    yield (
        "leader epochs begin at 0, and are raised only for logs that continue archived ones; "
        "offsets of groups with higher epochs are committed without one. Brokers write the new log "
        "start to their disks within log.flush.start.offset.checkpoint.interval.ms (60 s): if all "
        "replicas crash before, run the same command again"
    )
    for topic in topics:
        epoch = max((one.record_epoch for one in topic.partitions), default=-1)
        if topic.goes_on and epoch > 0 and topic.replication_factor < 2:
            yield (
                f"topic {topic.name}: its new log does not continue the archived one: that one has "
                f"leader epochs up to {epoch}, which cannot be reached with a single replica"
            )


def brokers_notes(
    configs: Mapping[str, str | None] | None, topics: Collection[str]
) -> Iterator[str]:
    """`configs`: of a broker; None: this user may not read them. `topics`: of the new cluster."""
    if configs is None:
        yield (
            f"this user may not read the brokers' settings: if {_AUTO_CREATE} is true, a client "
            "that asks for a topic too early creates it, with other settings"
        )
    elif (configs.get(_AUTO_CREATE) or _TRUE) == _TRUE:
        yield (
            f"{_AUTO_CREATE} is true: a client that asks for a topic too early creates it, with "
            "other settings. Set it to false, or start no clients before the end"
        )
    if balancers := sorted(set(topics) & set(_BALANCERS_TOPICS)):
        yield f"the topic {balancers[0]} exists: stop Cruise Control until the end"
    else:
        yield "brokers do not show whether a balancer is running: if so, stop it until the end"
