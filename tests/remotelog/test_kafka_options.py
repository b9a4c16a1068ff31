"""Each option of Spark's Kafka source is honoured here or refused by name, as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fetchproxy.errors import ConfigError
from fetchproxy.remotelog.options import (
    HONOURED,
    NOT_NEEDED,
    REFUSED_KAFKA_OPTIONS,
    SourceOptions,
    parse_options,
)

PAGE = Path(__file__).parents[2] / "docs/spark/options.md"

# From the page "Structured Streaming + Kafka Integration Guide" of Spark 4.3: the options of the
# source, and the settings of Kafka's consumer that it sets by itself.
DOCUMENTED = (
    "assign",
    "subscribe",
    "subscribePattern",
    "kafka.bootstrap.servers",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id",
    "includeHeaders",
    "startingOffsetsByTimestampStrategy",
    "kafka.isolation.level",
    "kafka.auto.offset.reset",
    "kafka.key.deserializer",
    "kafka.value.deserializer",
    "kafka.enable.auto.commit",
    "kafka.interceptor.classes",
)

STREAMS_ALONE = {
    "maxOffsetsPerTrigger": "10",
    "minOffsetsPerTrigger": "10",
    "maxTriggerDelay": "1m",
    "maxBytesPerTrigger": "10",
}


def parsed(*, streaming: bool = False, **options: str) -> SourceOptions:
    all_options = {"store": "file:///archive", "topics": "orders", **options}
    return parse_options(all_options, streaming=streaming)


def test_none_of_them_is_forgotten() -> None:
    known = {name.lower() for name in (*HONOURED, *NOT_NEEDED, *REFUSED_KAFKA_OPTIONS)}
    assert [name for name in DOCUMENTED if name.lower() not in known] == []


@pytest.mark.parametrize("name", REFUSED_KAFKA_OPTIONS)
def test_what_is_refused_is_named_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"remotelog: {re.escape(name)}: .{{20,}}"):
        parsed(**{name: "x"})


def test_the_page_says_of_each_what_the_code_does() -> None:
    options_described = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        matched = re.match(r"\| `([^`]+)` \| (honoured|refused|not needed)", line)
        if matched:
            options_described[matched.group(1)] = matched.group(2)
    treatment = dict.fromkeys(HONOURED, "honoured")
    treatment |= dict.fromkeys(NOT_NEEDED, "not needed") | dict.fromkeys(
        REFUSED_KAFKA_OPTIONS, "refused"
    )
    assert options_described == treatment


@pytest.mark.parametrize("name", STREAMS_ALONE)
def test_limits_of_a_stream_are_refused_in_a_batch(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: .*streams"):
        parsed(**{name: STREAMS_ALONE[name]})
    assert parsed(streaming=True, **{name: STREAMS_ALONE[name]}).trigger.names == (name,)


def test_the_place_may_be_a_path_but_not_two_places() -> None:
    assert parse_options({"path": "file:///a", "topics": "orders"}).store == "file:///a"
    same = {"path": "file:///a", "store": "file:///a", "topics": "orders"}
    assert parse_options(same).store == "file:///a"
    with pytest.raises(ConfigError, match=r"path .*and store .*are two places"):
        parsed(path="file:///other")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"topics": "orders"}, {"subscribe": "payments"}),
        ({"isolationLevel": "read_committed"}, {"kafka.isolation.level": "read_uncommitted"}),
    ],
)
def test_two_names_of_one_option_cannot_say_different_things(
    one: dict[str, str], other: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match="both"):
        parsed(**one, **other)


@pytest.mark.parametrize("nothing", [{"topics": ","}, {"assign": "{}"}, {"assign": '{"a": []}'}])
def test_no_topic_is_no_choice_of_topics(nothing: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(nothing))):
        parse_options({"store": "file:///archive", **nothing})


def test_a_delay_is_written_as_sparks_durations_are() -> None:
    for text, ms in (("15m", 900_000), ("10s", 10_000), ("1h", 3_600_000), ("500ms", 500)):
        assert parsed(streaming=True, maxTriggerDelay=text).trigger.delay_max_ms == ms
    with pytest.raises(ConfigError, match="maxTriggerDelay is 'soon'"):
        parsed(streaming=True, maxTriggerDelay="soon")


def test_least_and_most_offsets_of_a_batch_fit_together() -> None:
    with pytest.raises(ConfigError, match="minOffsetsPerTrigger is 20, above maxOffsetsPerTrigger"):
        parsed(streaming=True, minOffsetsPerTrigger="20", maxOffsetsPerTrigger="10")
