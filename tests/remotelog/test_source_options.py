"""Options as a user of Spark's Kafka source writes them."""

from __future__ import annotations

import pytest

from fetchproxy.errors import ConfigError
from fetchproxy.model import IsolationLevel
from fetchproxy.remotelog.options import (
    PARTITION_BYTES_MAX,
    Bound,
    BoundKind,
    SourceOptions,
    parse_options,
)

STORE = {"store": "file:///archive"}


def parsed(*, streaming: bool = False, **options: str) -> SourceOptions:
    return parse_options({**STORE, "topics": "orders", **options}, streaming=streaming)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    options = parsed()
    assert options.starting == Bound(BoundKind.EARLIEST)
    assert options.ending == Bound(BoundKind.LATEST)
    assert options.isolation is IsolationLevel.READ_UNCOMMITTED
    assert not options.include_headers
    assert options.fail_on_data_loss
    assert options.partition_bytes_max == PARTITION_BYTES_MAX
    assert parsed(streaming=True).starting == Bound(BoundKind.LATEST)


def test_a_kafka_jobs_options_are_understood_as_they_are() -> None:
    options = parse_options(
        {
            **STORE,
            "subscribe": "orders, payments",
            "kafka.bootstrap.servers": "broker:9092",
            "kafka.isolation.level": "read_committed",
            "kafka.fetch.max.bytes": "1",
            "startingoffsets": '{"orders": {"0": 23, "1": -2}, "payments": {"0": -2}}',
            "endingOffsets": '{"orders": {"0": 50, "1": -1}, "payments": {"0": -1}}',
            "INCLUDEHEADERS": "True",
        }
    )
    assert options.topics.includes("payments", 5)
    assert not options.topics.includes("refunds", 0)
    assert options.isolation is IsolationLevel.READ_COMMITTED
    assert options.include_headers
    assert options.starting.by_partition[("orders", 0)] == 23
    assert options.ending.by_partition == {
        ("orders", 0): 50,
        ("orders", 1): -1,
        ("payments", 0): -1,
    }


def test_topics_by_pattern_and_by_partition() -> None:
    pattern = parse_options({**STORE, "subscribePattern": "ord.*"}).topics
    assert pattern.includes("orders", 1)
    assert not pattern.includes("my-orders", 1)
    assigned = parse_options({**STORE, "assign": '{"orders": [0, 2]}'}).topics
    assert [p for p in range(4) if assigned.includes("orders", p)] == [0, 2]


def test_a_timestamp_is_stronger_than_timestamps_by_partition_and_these_than_offsets() -> None:
    both = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
    }
    assert parsed(**both).starting == Bound(BoundKind.TIMESTAMPS, {("orders", 0): 5})
    assert parsed(**both, startingTimestamp="7").starting == Bound(
        BoundKind.TIMESTAMPS, everywhere=7
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"topic": "orders"}, "unknown option 'topic'"),
        ({"topicPattern": "a.*"}, "one of topics, topicPattern and assign"),
        ({"startingOffsets": "latest"}, "cannot be 'latest' in a batch"),
        ({"endingOffsets": "earliest"}, "cannot be 'earliest' in a batch"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "startingOffsets cannot be -1"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "endingOffsets cannot be -2"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "number below -2"),
        ({"startingOffsets": "soon"}, "startingOffsets is not JSON"),
        ({"startingOffsets": "[1]"}, "startingOffsets is not like"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday'"),
        ({"isolationLevel": "serializable"}, "isolationLevel is 'serializable'"),
        ({"includeHeaders": "1"}, "includeHeaders is '1'"),
        ({"maxBytesPerPartition": "0"}, "maxBytesPerPartition is '0'"),
        ({"corruptBatches": "ignore"}, "corruptBatches is 'ignore'"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "startingOffsetsByTimestampStrategy is 'x'"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parsed(**options)


def test_store_and_topics_are_needed() -> None:
    with pytest.raises(ConfigError, match="'store' is required"):
        parse_options({"topics": "orders"})
    with pytest.raises(ConfigError, match="one of topics"):
        parse_options(STORE)
    with pytest.raises(ConfigError, match="topicPattern"):
        parse_options({**STORE, "topicPattern": "("})
    with pytest.raises(ConfigError, match="assign is not like"):
        parse_options({**STORE, "assign": '["orders"]'})
