"""The settings of a topic as its broker told them: those that were set, and Kafka's defaults. Pure.

Source: Kafka's LogConfig and TopicConfig (4.x).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import IntEnum
from typing import NamedTuple

from fetchproxy.cluster_state.state import TopicState

_LONG_MAX = str((1 << 63) - 1)


class ConfigSource(IntEnum):
    """DescribeConfigsResponse.ConfigSource"""

    OF_TOPIC = 1
    OF_ALL_BROKERS = 3  # dynamic
    OF_BROKERS_FILE = 4
    DEFAULT = 5


class ConfigForm(IntEnum):
    """DescribeConfigsResponse.ConfigType"""

    BOOLEAN = 1
    TEXT = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class TopicSetting(NamedTuple):
    name: str
    value: str
    form: int
    source: int


_FORMS: dict[ConfigForm, dict[str, str]] = {
    ConfigForm.BOOLEAN: {
        "preallocate": "false",
        "remote.log.copy.disable": "false",
        "remote.log.delete.on.disable": "false",
        "remote.storage.enable": "false",
        "unclean.leader.election.enable": "false",
    },
    ConfigForm.TEXT: {"compression.type": "producer", "message.timestamp.type": "CreateTime"},
    ConfigForm.INT: {
        "compression.gzip.level": "-1",
        "compression.lz4.level": "9",
        "compression.zstd.level": "3",
        "index.interval.bytes": "4096",
        "max.message.bytes": "1048588",
        "min.insync.replicas": "1",
        "segment.bytes": "1073741824",
        "segment.index.bytes": "10485760",
    },
    ConfigForm.LONG: {
        "delete.retention.ms": "86400000",
        "file.delete.delay.ms": "60000",
        "flush.messages": _LONG_MAX,
        "flush.ms": _LONG_MAX,
        "local.retention.bytes": "-2",
        "local.retention.ms": "-2",
        "max.compaction.lag.ms": _LONG_MAX,
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": _LONG_MAX,
        "min.compaction.lag.ms": "0",
        "retention.bytes": "-1",
        "retention.ms": "604800000",
        "segment.jitter.ms": "0",
        "segment.ms": "604800000",
    },
    ConfigForm.DOUBLE: {"min.cleanable.dirty.ratio": "0.5"},
    ConfigForm.LIST: {
        "cleanup.policy": "delete",
        "follower.replication.throttled.replicas": "",
        "leader.replication.throttled.replicas": "",
    },
}
_DEFAULTS = {
    name: TopicSetting(name, value, form, ConfigSource.DEFAULT)
    for form, values in _FORMS.items()
    for name, value in values.items()
}


def settings_of(topic: TopicState, of_all_brokers: Collection[str]) -> Iterator[TopicSetting]:
    """By name. A setting that is not in the table is a text. `of_all_brokers`: the dynamic settings
    of all brokers, by name.
    """
    of_topic, of_brokers = dict(topic.configs), dict(topic.inherited)
    for name in sorted({*_DEFAULTS, *of_topic, *of_brokers}):
        default = _DEFAULTS.get(name)
        form = ConfigForm.TEXT if default is None else default.form
        if name in of_topic:
            yield TopicSetting(name, of_topic[name], form, ConfigSource.OF_TOPIC)
        elif name in of_brokers:
            is_dynamic = name in of_all_brokers or f"log.{name}" in of_all_brokers
            source = ConfigSource.OF_ALL_BROKERS if is_dynamic else ConfigSource.OF_BROKERS_FILE
            yield TopicSetting(name, of_brokers[name], form, source)
        elif default is not None:
            yield default
