"""How long one topic's records are kept, in either tier: whose word counts. Pure.

Outside the brokers a topic's `retention.ms` cannot be what the archive keeps: it is short because
there is an archive. So the archive has settings of its own, and the topic's count only where the
operator says so (`archive.follow_topic_retention`), and only those that mean what is asked:

    setting                 1. first override   2. the topic's own, if followed     3. otherwise
    remote_log_retention_*  that names it       retention.*, if remote.storage      archive.*
    local_retention_*       that names it       local.retention.*, unless the same  archive.*
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fetchproxy.config.archive import ArchiveConfig
from fetchproxy.config.retention_overrides import RetentionOverride, parse_retention_overrides

UNLIMITED = -1
_AS_THE_WHOLE_LOG = -2  # Kafka's default of local.retention.*: no setting of its own


@dataclass(frozen=True, slots=True)
class Retention:
    """Milliseconds and bytes a partition; UNLIMITED: not by this."""

    remote_ms: int = UNLIMITED
    remote_bytes: int = UNLIMITED
    local_ms: int = UNLIMITED
    local_bytes: int = UNLIMITED

    @property
    def trims_locally(self) -> bool:
        return self.local_ms >= 0 or self.local_bytes >= 0


def effective_retention(
    config: ArchiveConfig, topic: str, topic_config: Mapping[str, str] | None
) -> Retention:
    """`topic_config`: as the brokers say; None: not known.

    Where the topic's own settings are to count and are not known, what they might say is unlimited:
    nothing is deleted on a guess.
    """
    overrides = parse_retention_overrides(config.retention_overrides or "")
    override = next((o for o in overrides if o.matches(topic)), RetentionOverride(""))
    own = _own(topic_config) if config.follow_topic_retention else RetentionOverride("")

    def setting(name: str) -> int:
        for source in (override, own, config):
            value: int | None = getattr(source, name)
            if value is not None:
                return value
        raise AssertionError(name)  # `config` has every one

    return Retention(
        remote_ms=setting("remote_log_retention_ms"),
        remote_bytes=setting("remote_log_retention_bytes"),
        local_ms=setting("local_retention_ms"),
        local_bytes=setting("local_retention_bytes"),
    )


def trimming_refusal(topic_config: Mapping[str, str] | None) -> str | None:
    """Why the archiver cannot own the topic's local retention, for the operator; None: it can."""
    if not topic_config:
        return (
            "its configuration cannot be read, so nobody knows whether the brokers delete "
            "records before they are archived"
        )
    if _tiered(topic_config):
        return (
            "it has remote.storage.enable=true: its brokers do that themselves, and DeleteRecords "
            "would delete from their remote tier as well"
        )
    limits = [
        f"{key}={topic_config.get(key, 'unknown')}"
        for key in ("retention.ms", "retention.bytes")
        if topic_config.get(key) != "-1"
    ]
    if limits:
        return (
            f"it has {' and '.join(limits)}, so its brokers may delete records before they are "
            "archived; set retention.ms=-1 and retention.bytes=-1 on the topic"
        )
    return None


def _own(topic_config: Mapping[str, str] | None) -> RetentionOverride:
    if topic_config is None:
        return RetentionOverride("", UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED)
    if _tiered(topic_config):
        return RetentionOverride(
            "",
            remote_log_retention_ms=_number(topic_config, "retention.ms"),
            remote_log_retention_bytes=_number(topic_config, "retention.bytes"),
        )
    return RetentionOverride(
        "",
        local_retention_ms=_number(topic_config, "local.retention.ms"),
        local_retention_bytes=_number(topic_config, "local.retention.bytes"),
    )


def _tiered(topic_config: Mapping[str, str]) -> bool:
    return topic_config.get("remote.storage.enable") == "true"


def _number(topic_config: Mapping[str, str], key: str) -> int | None:
    """None: the topic has no such setting of its own, or the broker does not know the key."""
    value = int(topic_config.get(key, _AS_THE_WHOLE_LOG))
    return None if value == _AS_THE_WHOLE_LOG else value
