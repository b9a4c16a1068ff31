"""Pacing by appetite, against a model of librdkafka's queue and without any clock."""

from __future__ import annotations

from statistics import median

import pytest
from fetchproxy_protocol.fetch import with_bytes_max
from librdkafka_queue import StockConsumer

from fetchproxy.serving.appetite import (
    DELAY_MAX_S,
    FULL_ANSWER_BYTES,
    PARTITIONS_PACED_MAX,
    QUEUE_RECORDS,
    Appetite,
    Appetites,
    Reader,
    may_pause,
)

_MILLION = 1_000_000
_SEEDS = range(5)


def _seconds(
    partitions: int, taken_per_s: float, records: int, *, paced: bool, sleeps: bool = False
) -> float:
    def once(seed: int) -> float:
        consumer = StockConsumer(partitions, taken_per_s, seed, sleeps=sleeps)
        outcome = consumer.read(records, Appetite(0.0) if paced else None)
        assert outcome.longest_delay_s <= DELAY_MAX_S
        return outcome.seconds

    return median(map(once, _SEEDS))


def _gain(partitions: int, taken_per_s: float, records: int, *, sleeps: bool = False) -> float:
    without = _seconds(partitions, taken_per_s, records, paced=False, sleeps=sleeps)
    return without / _seconds(partitions, taken_per_s, records, paced=True, sleeps=sleeps)


@pytest.mark.parametrize(
    ("partitions", "taken_per_s", "gain"),
    [(1, 600_000, 3.0), (8, 600_000, 3.0), (1, 1_300_000, 3.0), (8, 1_300_000, 4.0)],
)
def test_fast_application_is_read_several_times_as_fast(
    partitions: int, taken_per_s: float, gain: float
) -> None:
    assert _gain(partitions, taken_per_s, 10 * _MILLION) >= gain


@pytest.mark.parametrize("partitions", [1, 8, 50])
@pytest.mark.parametrize("taken_per_s", [20_000, 90_000, 150_000])
def test_slow_application_loses_nothing(partitions: int, taken_per_s: float) -> None:
    assert _gain(partitions, taken_per_s, 4 * _MILLION) >= 0.95


@pytest.mark.parametrize("partitions", [1, 8])
@pytest.mark.parametrize("taken_per_s", [100_000, 600_000])
def test_application_that_sleeps_at_random_loses_nothing(
    partitions: int, taken_per_s: float
) -> None:
    assert _gain(partitions, taken_per_s, 6 * _MILLION, sleeps=True) >= 0.95


def test_nothing_is_held_back_before_a_pause() -> None:
    appetite, now = Appetite(0.0), 0.0
    for _ in range(1_000):
        now += 0.01
        assert appetite.asked(now, now - 0.005, 10_000) == 0.0
    assert appetite.pauses == 0


@pytest.mark.parametrize("silence", [0.45, 1.7, 30.0])
def test_another_silence_is_no_pause(silence: float) -> None:
    appetite, now = Appetite(0.0), 0.0
    for _ in range(20):
        now += silence
        assert appetite.asked(now, now - silence, 2 * QUEUE_RECORDS) == 0.0
    assert appetite.pauses == 0


def test_silence_behind_fewer_records_than_fill_the_queue_is_no_pause() -> None:
    appetite, now = Appetite(0.0), 0.0
    for _ in range(20):
        now += 1.0
        assert appetite.asked(now, now - 1.0, QUEUE_RECORDS - 1) == 0.0
    assert appetite.pauses == 0


def test_pause_of_three_connections_is_one() -> None:
    appetite, answered = Appetite(0.0), [0.0] * 3
    for number in range(6):
        for connection in range(3):
            now = 0.1 * number + 0.01 * connection + 0.01
            assert appetite.asked(now, answered[connection], 20_000) == 0.0
            answered[connection] = now + 0.05
    for connection in range(3):
        appetite.asked(1.6 + 0.05 * connection, answered[connection], 20_000)
    assert appetite.pauses == 1
    assert 300_000 < appetite.pace < 600_000


def test_pauses_grow_rarer() -> None:
    consumer, appetite = StockConsumer(8, 600_000, 1), Appetite(0.0)
    first = consumer.read(6 * _MILLION, appetite).pauses
    later = consumer.read(30 * _MILLION, appetite).pauses
    assert later / 5 <= first / 2


# --- which clients, and which of their connections ---
@pytest.mark.parametrize(
    "software", ["librdkafka", "confluent-kafka-python", "confluent-kafka-go", "rdkafka-ruby"]
)
def test_librdkafka_may_pause(software: str) -> None:
    assert may_pause(software)


@pytest.mark.parametrize(
    "software", ["", "apache-kafka-java", "kgo", "kafkajs", "sarama", "kafka-python", "aiokafka"]
)
def test_others_never_pause_by_a_clock(software: str) -> None:
    assert not may_pause(software)


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _asked(offset: int) -> dict[tuple[bytes, int], bytes]:
    entry = (0).to_bytes(4, "big") + (-1).to_bytes(4, "big", signed=True)
    entry += offset.to_bytes(8, "big") + (-1).to_bytes(4, "big", signed=True)
    entry += (-1).to_bytes(8, "big", signed=True) + (1 << 20).to_bytes(4, "big")
    return {(b"topic", 0): entry}


def _read_with_pauses(reader: Reader, clock: _Clock, size_bytes: int = 10 * 300_000) -> float:
    """Three answers, then a pause, again and again; all that it was held back, in s."""
    held, offset = 0.0, 0
    for number in range(40):
        held += reader.asked(_asked(offset))
        offset += 300_000 // 3
        clock.now += 0.05
        reader.answered(size_bytes)
        clock.now += 1.0 if number % 3 == 2 else 0.001
    return held


def test_reader_that_pauses_is_paced() -> None:
    clock = _Clock()
    reader = Appetites(clock).reader(("host", "id"), 1, _asked(0))
    assert _read_with_pauses(reader, clock) > 0
    assert reader.bytes_wanted(1 << 30) < 1 << 30


def test_switched_off_nobody_is_paced() -> None:
    clock = _Clock()
    reader = Appetites(clock, enabled=False).reader(("host", "id"), 1, _asked(0))
    assert _read_with_pauses(reader, clock) == 0
    assert reader.bytes_wanted(1 << 30) == 1 << 30


def test_at_the_end_of_the_log_nobody_is_paced() -> None:
    clock = _Clock()
    reader = Appetites(clock).reader(("host", "id"), 1, _asked(0))
    assert _read_with_pauses(reader, clock, FULL_ANSWER_BYTES - 1) == 0


def test_pace_is_known_when_the_client_comes_back() -> None:
    clock = _Clock()
    appetites = Appetites(clock)
    reader = appetites.reader(("host", "id"), 1, _asked(0))
    _read_with_pauses(reader, clock)
    reader.close()
    clock.now += 24 * 3600
    again = appetites.reader(("host", "id"), 1, _asked(0))
    again.answered(3_000_000)
    again.asked(_asked(0))
    again.answered(3_000_000)
    assert again.asked(_asked(400_000)) > 0
    other = appetites.reader(("another host", "id"), 1, _asked(0))
    other.asked(_asked(0))
    other.answered(3_000_000)
    assert other.asked(_asked(400_000)) == 0


def test_connections_to_different_brokers_are_one_consumer() -> None:
    clock = _Clock()
    appetites = Appetites(clock)
    first = appetites.reader(("host", "id"), 1, _asked(0))
    _read_with_pauses(first, clock)
    second = appetites.reader(("host", "id"), 2, _asked(0))
    stranger = appetites.reader(("host", "id"), 1, _asked(0))
    for reader in (second, stranger):
        reader.asked(_asked(0))
        reader.answered(3_000_000)
    assert second.asked(_asked(400_000)) > 0
    assert stranger.asked(_asked(400_000)) == 0
    for reader in (first, second, stranger):
        reader.close()


def test_fetch_of_very_many_partitions_is_not_looked_at() -> None:
    reader = Appetites(_Clock()).reader(("host", "id"), 1, {})
    (entry,) = _asked(0).values()
    most = {(b"topic", number): entry for number in range(PARTITIONS_PACED_MAX)}
    reader.asked(most)
    assert reader.kept_bytes > 0
    reader.asked({**most, (b"topic", PARTITIONS_PACED_MAX): entry})
    assert reader.kept_bytes == 0


def test_offset_that_jumps_counts_as_nothing_read() -> None:
    clock = _Clock()
    reader = Appetites(clock).reader(("host", "id"), 1, _asked(0))
    for offset in (0, 10**12, 5, 10**15, 7):
        clock.now += 1.0
        assert reader.asked(_asked(offset)) == 0.0
        reader.answered(3_000_000)


def test_request_asks_for_fewer_bytes_and_else_as_it_came() -> None:
    for version, at in ((11, 12), (15, 8)):
        frame = bytes(range(60))
        out = with_bytes_max(frame, 10, version, 0x7A7B7C7D)
        begin = 4 + 10 + at
        assert out[begin : begin + 4] == bytes([0x7A, 0x7B, 0x7C, 0x7D])
        assert out[:begin] + frame[begin : begin + 4] + out[begin + 4 :] == frame
