"""Which setting decides how long a topic is kept."""

from __future__ import annotations

import pytest

from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.writing.deletion.retention import Retention, effective_retention, trimming_refusal

TIERED = {
    "remote.storage.enable": "true",
    "retention.ms": "7000",
    "retention.bytes": "-1",
    "local.retention.ms": "500",
    "local.retention.bytes": "-2",
}
LOCAL = {
    "remote.storage.enable": "false",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "local.retention.ms": "500",
    "local.retention.bytes": "-2",
}
ARCHIVE = {"remote_log_retention_ms": 100_000, "remote_log_retention_bytes": 200_000}


def test_everything_is_kept_by_default() -> None:
    """In particular, a topic's own short retention does not apply to the archive."""
    assert effective_retention(ArchiveConfig(), "orders", {"retention.ms": "1"}) == Retention()
    assert effective_retention(ArchiveConfig(), "orders", TIERED) == Retention()


def test_the_first_pattern_that_matches_counts_key_by_key() -> None:
    config = ArchiveConfig(
        **ARCHIVE,
        retention_overrides='{"orders[.].*": {"remote_log_retention_ms": -1},'
        ' "orders.*": {"local_retention_ms": 5}}',
    )
    assert effective_retention(config, "orders.eu", {}) == Retention(-1, 200_000, -1, -1)
    assert effective_retention(config, "orders", {}) == Retention(100_000, 200_000, 5, -1)
    assert effective_retention(config, "x-orders", {}) == Retention(100_000, 200_000, -1, -1)


def test_followed_topics() -> None:
    config = ArchiveConfig(**ARCHIVE, local_retention_bytes=9, follow_topic_retention=True)
    # With remote.storage.enable, retention.* covers both tiers.
    assert effective_retention(config, "t", TIERED) == Retention(7_000, -1, -1, 9)
    # Without it, retention.* is the broker's own and does not count for the archive.
    assert effective_retention(config, "t", LOCAL) == Retention(100_000, 200_000, 500, 9)
    assert effective_retention(config, "t", {}) == Retention(100_000, 200_000, -1, 9)


def test_followed_topics_that_are_not_known_lose_nothing() -> None:
    config = ArchiveConfig(
        **ARCHIVE,
        follow_topic_retention=True,
        retention_overrides='{"t": {"remote_log_retention_ms": 3}}',
    )
    assert effective_retention(config, "t", None) == Retention(3, -1, -1, -1)
    assert effective_retention(config, "u", None) == Retention()


def test_an_override_counts_before_the_topic() -> None:
    config = ArchiveConfig(
        follow_topic_retention=True,
        retention_overrides='{"t": {"remote_log_retention_ms": 3, "local_retention_ms": 4}}',
    )
    assert effective_retention(config, "t", TIERED) == Retention(3, -1, 4, -1)
    assert effective_retention(config, "t", LOCAL) == Retention(3, -1, 4, -1)


@pytest.mark.parametrize(
    ("topic_config", "message"),
    [
        (None, "cannot be read"),
        ({}, "cannot be read"),
        ({**LOCAL, "retention.ms": "604800000"}, "retention.ms=604800000, so"),
        ({**LOCAL, "retention.bytes": "1"}, "set retention.ms=-1 and retention.bytes=-1"),
        ({"retention.ms": "-1"}, "retention.bytes=unknown"),
        ({**TIERED, "retention.ms": "-1"}, "remote.storage.enable=true"),
    ],
)
def test_trimming_is_refused(topic_config: dict[str, str] | None, message: str) -> None:
    reason = trimming_refusal(topic_config)
    assert reason is not None
    assert message in reason


def test_trimming_is_not_refused_where_the_brokers_delete_nothing() -> None:
    assert trimming_refusal(LOCAL) is None
    assert trimming_refusal({"retention.ms": "-1", "retention.bytes": "-1"}) is None
