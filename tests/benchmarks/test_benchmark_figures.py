"""The figures of each benchmark are computed as its table says, and each goal can be missed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from benchmarks import (
    applications,
    archive,
    connections,
    goals,
    hostile,
    look_ups,
    metadata,
    outage_figures,
    pipeline,
    replay,
    tail,
    tail_latency,
    workers,
)
from benchmarks.contestants import BARE_RELAY, DIRECT, FETCHPROXY, KROXYLICIOUS
from benchmarks.drain import STOCK, UNPAUSED
from benchmarks.fanin import FanIn
from benchmarks.fanin import rows_of as fan_in_rows
from benchmarks.filling import Shape
from benchmarks.look_up_client import BEGINNING, END, QUESTIONS, TIMES
from benchmarks.outage_figures import CALM, HANGING, REPLAYING, REPLAYING_S3, REPLAYS, TIERED
from benchmarks.remote_replay import RemoteReplay, far_rows
from benchmarks.report import Row
from benchmarks.tail_latency import ALONE, FORMS, IN_PAIRS, IN_TURN, POOLED_ROUNDS, pooled


def by_name(rows: Iterable[Row]) -> dict[str, Row]:
    return {row.name: row for row in rows}


def within(row: Row) -> tuple[float, float, float, bool | None]:
    return row.value, row.min, row.max, row.met


# -- archive -------------------------------------------------------------------------------------
def archived(*mb_per_s: float, mib_max: float | None = None) -> list[archive.Run]:
    return [archive.Run(speed, 2.0, mib_max) for speed in mb_per_s]


def test_archiving_is_compared_with_the_plain_consumer_in_a_local_directory() -> None:
    main = archive.MAIN
    rows = by_name(
        archive.rows_of(
            {
                (main, archive.CONSUMER): archived(200.0, 100.0, 400.0),
                (main, archive.CONSUMER_UNPAUSED): archived(400.0, 400.0, 400.0),
                (main, archive.DIRECTORY): archived(160.0, 90.0, 200.0, mib_max=150.0),
                (main, archive.S3): archived(100.0, 50.0, 200.0, mib_max=300.0),
                (main, archive.BARE): archived(400.0, 100.0, 400.0),
            }
        )
    )
    line = rows["archiving : a plain consumer reading the same topic to nowhere"]
    assert within(line) == (0.8, 0.5, 0.9, True)
    for name, value in (
        ("archiving to S3 server : plain consumer, 1 KiB records", 0.5),
        ("archiving to local directory : consumer that never pauses, 1 KiB records", 0.4),
        (f"archiving to S3 server : {archive.BARE}, 1 KiB records", 0.5),
        ("memory at most, S3 server, 1 KiB records", 300.0),
    ):
        assert rows[name].value == value
    assert "memory at most, plain consumer, 1 KiB records" not in rows


def test_without_an_s3_server_the_rest_is_told() -> None:
    ways = (archive.CONSUMER, archive.CONSUMER_UNPAUSED, archive.DIRECTORY)
    rows = archive.rows_of({(archive.MAIN, way): archived(100.0) for way in ways})
    assert not [row.name for row in rows if "S3" in row.name]


# -- applications --------------------------------------------------------------------------------
def test_a_crowds_last_reader_and_how_far_apart_they_are() -> None:
    seconds_by_way: applications.SecondsByWay = {}
    applications.note(seconds_by_way, applications.UNPACED, [10.0, 10.0, 12.0, 8.0])
    applications.note(seconds_by_way, FETCHPROXY, [5.0, 5.0, 5.5, 4.5])
    rows = by_name(applications.rows_of(seconds_by_way))
    for name, value, met in (
        ("median: paced / not paced", 0.5, True),
        ("the last: paced / not paced", 0.4583, True),
        (f"furthest from the mean: {applications.UNPACED}", 0.2, False),
        (f"furthest from the mean: {FETCHPROXY}", 0.1, True),
    ):
        row = rows[f"4 at once: {name}"]
        assert (row.value, row.met) == (value, met)


def test_slower_with_pacing_is_missed() -> None:
    rows = applications.rows_of(
        {("naps", applications.UNPACED): [1.0, 1.0], ("naps", FETCHPROXY): [1.1, 1.02]}
    )
    assert [(row.value, row.met) for row in rows if row.goal] == [(1.06, False)]


# -- connections and look-ups --------------------------------------------------------------------
def test_rates_of_connections_are_compared_within_a_round() -> None:
    few, many = connections.CONNECTIONS, connections.CONNECTIONS_WIDE
    narrow, wide = connections.PARTITIONS, connections.PARTITIONS_WIDE
    idle, idle_tls = connections.Idle(9_950, 31.0, 2.0), connections.Idle(1_000, 65.0, 2.0)
    measured = connections.Measured(idle=idle, idle_tls=idle_tls)
    measured.requests_per_s = {
        (FETCHPROXY, few): [1000.0, 2000.0],
        (FETCHPROXY, many): [900.0, 2000.0],
        (DIRECT, few): [1.0, 1.0],
        (DIRECT, many): [2000.0, 4000.0],
        (BARE_RELAY, few): [2.0, 2.0],
        (BARE_RELAY, many): [1000.0, 2000.0],
    }
    measured.mb_per_s = {
        (FETCHPROXY, narrow): [100.0, 200.0],
        (FETCHPROXY, wide): [80.0, 160.0],
        (DIRECT, narrow): [1.0, 1.0],
        (DIRECT, wide): [1.0, 1.0],
    }
    measured.cpu_us = {
        (FETCHPROXY, False): [60.0, 80.0],
        (FETCHPROXY, True): [120.0, 150.0],
        (BARE_RELAY, False): [50.0, 52.0],
        (BARE_RELAY, True): [51.0, 55.0],
    }
    rows = by_name(connections.rows_of(measured))
    assert rows["idle connections: memory each"].met is False
    assert rows[goals.IDLE_TLS_CONNECTIONS.words].met is True
    line = "requests/s of small fetches over 1,000 connections, throughput at 10 × the partitions"
    assert (rows[line].value, rows[line].met) == (0.95, False)  # the throughput is not flat
    assert rows[f"{line}: throughput at 10 × the partitions"].value == 0.8
    small = rows["small fetches over 1,000 connections : direct"]
    assert within(small) == (0.475, 0.45, 0.5, True)
    assert rows["small fetches over 1000 connections, bare-relay : direct"].value == 0.5
    assert rows["small fetches over 1000 connections, fetchproxy : bare-relay"].value == 0.95
    assert rows["small fetches over 100 connections, bare-relay : direct"].value == 2.0
    assert within(rows[goals.SMALL_FETCH_CPU.words]) == (70.0, 60.0, 80.0, True)
    assert within(rows[goals.DIFFERENT_FETCH_CPU.words]) == (135.0, 120.0, 150.0, False)
    assert rows["CPU of a small fetch, bare-relay"].value == 51.0


def test_the_worst_look_up_of_each_round_counts() -> None:
    warm, cold = look_ups.WARM, look_ups.COLD
    factors = ((warm, 1.0), (cold, 7.0), (look_ups.WARM_WIDE, 0.5), (look_ups.COLD_WIDE, 8.0))
    measured = look_ups.Measured(10)
    for kind, factor in ((look_ups.ARCHIVED, 2.0), (look_ups.NEVER, 1.0)):
        for how, more in factors:
            for number in (1, 2, 3):
                direct = dict.fromkeys(QUESTIONS, 0.5 * number)
                proxy_seconds = {q: seconds * factor * more for q, seconds in direct.items()}
                if kind == look_ups.NEVER and number == 2:
                    proxy_seconds[TIMES] *= 5  # one question of one round
                measured.add(kind, how, DIRECT, direct)
                measured.add(kind, how, FETCHPROXY, proxy_seconds)
    line, cold_line, *others = look_ups.rows_of(measured)
    assert (line.value, line.max, line.met) == (2.0, 5.0, False)  # as the cold ones are too slow
    assert (cold_line.value, cold_line.max, cold_line.met) == (16.0, 40.0, False)
    assert len(others) == 2 * 2 * 4 * len(QUESTIONS)
    name = f"{END}, {look_ups.NEVER}, {cold}: {FETCHPROXY} : {DIRECT}"
    assert by_name(others)[name].value == 7.0


def test_right_look_ups_differ_by_what_only_the_archive_has() -> None:
    questions = (BEGINNING, END, TIMES)
    assert [look_ups.offset_of(q, whole=True) for q in questions] == [0, 4, 1]
    assert [look_ups.offset_of(q, whole=False) for q in questions] == [3, 4, 3]


# -- hostile -------------------------------------------------------------------------------------
def test_the_goal_is_about_who_has_no_credentials() -> None:
    strangers, openly = hostile.STRANGERS, hostile.OPEN
    measured = hostile.Measured()
    ways = (hostile.CALM, hostile.ELSEWHERE, hostile.HOSTILE)
    for listener, how in itertools.product((strangers, openly), ways):
        slower = {strangers: 1.2, openly: 3.0}[listener] if how == hostile.HOSTILE else 1.0
        measured.memory_mib[listener] = [(100.0 if listener == openly else 80.0, 200.0)] * 2
        measured.latencies[listener, how] = [[slower] * 100, [2 * slower] * 100]
    rows = by_name(hostile.rows_of(measured))
    goal = goals.TAIL_BESIDE_HOSTILE
    assert rows["the same harm to a listener that only closes : without"].value == 1.0
    assert rows["harm to the proxy : to a listener that only closes"].value == pytest.approx(1.2)
    assert rows[goal.words].value == pytest.approx(1.2)
    assert goal.met_by(rows[goal.words].value)
    assert rows[f"{goal.words}: most memory of the proxy : its plan"].value == 0.5
    assert rows[f"the same, {openly}: what they send is parsed"].value == pytest.approx(3.0)


# -- metadata and pipeline -----------------------------------------------------------------------
def test_goals_of_metadata() -> None:
    sound = {
        "segments": 100,
        "load_s": 12.0,
        "load_cpu_s": 9.0,
        "bytes_a_segment": 80.0,
        "find_offset_us": 1.0,
        "find_time_us": 6.0,
        "take_offset_us": 5.0,
        "take_time_us": 9.0,
        "put_us": 30.0,
    }
    worse = {**sound, "bytes_a_segment": 101.0, "load_cpu_s": 11.0}
    rows = by_name(metadata.rows_of([sound, worse, worse], sound, 8900))
    assert (rows["memory"].min, rows["memory"].max) == (80.0, 101.0)
    assert rows["cache files"].value == 89.0
    for name, met in (
        ("memory", False),
        ("cold load, time of one core", False),
        ("cold load, time on the wall", None),
        ("look-up by partition and offset", True),
        ("look-up by partition and timestamp", False),
    ):
        assert rows[name].met is met, name


def test_goals_of_the_pipeline() -> None:
    seconds = {
        "100 all": {"kafka": [20.0, 26.0, 30.0], "remotelog": [10.0, 10.0, 10.0]},
        "100 value": {"kafka": [20.0, 26.0, 20.0], "remotelog": [10.0, 10.0, 10.0]},
        "100 offset": {"kafka": [31.0], "remotelog": [10.0]},
        "1024 all": {"kafka": [20.0], "remotelog": [10.0]},
        "1024 value": {"kafka": [20.0], "remotelog": [10.0]},
        "1024 offset": {"kafka": [40.0], "remotelog": [10.0]},
    }
    backfills = {
        "100": {"kafka": [39.0], "backfill": [10.0]},
        "1024": {"kafka": [30.0], "backfill": [10.0]},
    }
    plans = {
        "segments": [1000.0],
        "planning_s": [21.0],
        "planning_cpu_s": [11.0],
        "pickling_s": [2.0],
        "memory_mib": [500.0],
        "stored_segments": [1000.0],
        "stored_million_s": [90.0],
        "stored_million_cpu_s": [180.0],
        "collected_million_s": [61.0],
        "collected_million_cpu_s": [90.0],
    }
    figures = {"seconds": seconds, "backfills": backfills, "worker_mib": [300.0]}
    rows = by_name(pipeline.rows_of(figures, plans, {100: 1000, 1024: 100}))
    assert within(rows["100 B, all columns: remotelog / Kafka source"]) == (2.6, 2.0, 3.0, True)
    assert rows["1024 B to Parquet: backfill"].value == 10.0
    assert rows["100 B, all columns: remotelog"].value == 100.0
    for name, met in (
        ("100 B, value: remotelog / Kafka source", False),
        ("100 B, offset: remotelog / Kafka source", True),
        ("1024 B, all columns: remotelog / Kafka source", True),
        ("1024 B, value: remotelog / Kafka source", False),
        ("1024 B, offset: remotelog / Kafka source", True),
        ("100 B to Parquet: backfill / Kafka source", False),
        ("1024 B to Parquet: backfill / Kafka source", True),
        ("planning, cache files to tasks", False),
        ("planning from the store alone, for a million", False),
        ("a Python worker's memory, at its most", True),
    ):
        assert rows[name].met is met, name


# -- outage --------------------------------------------------------------------------------------
def measured_outage(
    calm: list[float], hanging: list[float], replaying: list[float], tiered: list[float]
) -> outage_figures.Measured:
    """One sample a round, so that its p99 is itself. The direct way is always 1 ms, but beside
    consumers of Kafka's tiered storage, where it is what is compared with."""
    rounds = len(calm)
    measured = outage_figures.Measured(
        replayed_mb_per_s={phase: [50.0] * rounds for phase in REPLAYS},
        longest_turns_ms=[3.0] * rounds,
        cpu_longest_turns_ms=[2.0] * rounds,
    )
    for phase, values in ((CALM, calm), (HANGING, hanging), (REPLAYING, replaying)):
        for value in values:
            measured.add(phase, {DIRECT: [1.0], FETCHPROXY: [value]})
    for value in tiered:
        measured.add(TIERED, {DIRECT: [value], FETCHPROXY: [99.0]})
        measured.add(REPLAYING_S3, {DIRECT: [1.0], FETCHPROXY: [7.0]})
    return measured


def test_the_tail_in_an_outage_is_compared_within_a_round() -> None:
    measured = measured_outage([1.0, 2.0, 4.0], [1.0, 2.2, 8.0], [1.5, 2.0, 4.0], [2.0, 1.0, 4.0])
    line, replaying = outage_figures.rows_of(measured)[:2]
    assert (line.name, *within(line)) == (goals.TAIL_IN_OUTAGE.words, 1.1, 1.0, 2.0, True)
    assert replaying.name == goals.TAIL_BESIDE_REPLAY.words
    assert within(replaying) == (1.0, 0.75, 2.0, True)


@pytest.mark.parametrize(
    ("hanging", "replaying", "tiered", "met"),
    [(1.0, 1.6, 1.5, (True, False)), (1.2, 9.0, 9.0, (False, True))],
)
def test_the_two_lines_of_the_outage_are_met_each_by_itself(
    hanging: float, replaying: float, tiered: float, met: tuple[bool, bool]
) -> None:
    rows = outage_figures.rows_of(measured_outage([1.0], [hanging], [replaying], [tiered]))
    assert (rows[0].met, rows[1].met) == met


def test_both_ways_of_replay_are_told_with_their_speed() -> None:
    measured = measured_outage([1.0], [1.0], [3.0], [4.0])
    measured.replayed_mb_per_s[TIERED] = [25.0]
    rows = by_name(outage_figures.rows_of(measured))
    assert rows[f"what they replay {REPLAYING}"].value == 50.0
    assert rows[f"what they replay {TIERED}"].value == 25.0
    assert rows[f"the same p99: {REPLAYING_S3}"].value == 7.0 / 4.0
    assert rows[f"tail p99 {TIERED}, {DIRECT}"].value == 4.0


def test_a_tail_that_stands_still_in_a_fault_is_shown_as_missed() -> None:
    measured = measured_outage([1.0], [1.0], [1.0], [1.0])
    calm = {DIRECT: [1.0], FETCHPROXY: [1.0, 2.0]}
    measured.recoveries["killed"] = outage_figures.Recovery(calm, lasted_s=5.0, back_s=0.5)
    stands = {**calm, FETCHPROXY: [1.0, 1500.0]}
    measured.recoveries["paused"] = outage_figures.Recovery(stands, lasted_s=5.0, back_s=2.5)
    rows = by_name(outage_figures.rows_of(measured))
    assert rows["longest wait while the store is killed"].met is True
    assert rows["longest wait while the store is paused"].met is False
    assert rows["archived reads back after the store was paused"].value == 2.5


# -- replay and fan-in ---------------------------------------------------------------------------
OTHER = Shape(100, "lz4")


def measured_replay(proxy_seconds: list[float], tiered_seconds: list[float]) -> replay.Measured:
    """Seconds for a GB each round; the proxy uses 0.5 s, Kafka's broker 2 s."""
    shapes = (replay.MAIN, OTHER)
    measured = replay.Measured(
        range_reads={shape: [900.0] for shape in shapes},
        store_share={shape: [1.0] for shape in shapes},
    )
    for shape in shapes:
        for reader in replay.readers_of(shape):
            cpu = {"proxy": 0.5, "broker": 0.1, "client": 1.0}
            measured.runs[shape, reader, FETCHPROXY] = [
                replay.Run(s, 10**9, cpu) for s in proxy_seconds
            ]
            cpu = {"broker": 2.0, "client": 1.0}
            measured.runs[shape, reader, replay.TIERED] = [
                replay.Run(s, 10**9, cpu) for s in tiered_seconds
            ]
    return measured


def test_replay_is_compared_within_a_round() -> None:
    measured = measured_replay([1.0, 4.0], [2.0, 2.0])
    rows = by_name(replay.rows_of(measured, [replay.MAIN, OTHER]))
    assert within(rows[goals.REPLAY_LIBRDKAFKA.words]) == (1.25, 0.5, 2.0, True)
    assert rows[goals.REPLAY_RAW.words].met is False
    assert rows[f"{goals.REPLAY_RAW.words}: 8 connections"].value == 1.25
    cpu = rows[goals.REPLAY_CPU.words]
    assert (cpu.value, cpu.met) == (0.25, True)
    speed = rows[f"100 B lz4, raw client, 8 connections, {replay.TIERED}"]
    assert (speed.value, speed.unit) == (500.0, "MB/s")
    assert rows[f"1 KiB, librdkafka, stock, {FETCHPROXY}: CPU of the broker"].value == 0.1
    assert goals.REPLAY_S3.words not in rows


def test_goals_of_replay_are_only_judged_by_their_own_shape() -> None:
    rows = by_name(replay.rows_of(measured_replay([1.0], [2.0]), [OTHER]))
    assert not rows.keys() & {goal.words for goal in goals.TABLE}


def test_a_far_store_is_compared_with_raw_reads() -> None:
    measured = RemoteReplay(
        raw_way=(8, 4),
        raw_mb_per_s=[400.0, 500.0],
        raw_cpu_per_gb=[0.5, 0.5],
        proxy_mb_per_s=[360.0, 400.0],
        proxy_cpu_per_gb=[1.0, 1.0],
        store_share=[1.0, 1.0],
        cold_round_trips=[2, 2, 3],
        cold_ms=[101.0, 102.0, 160.0],
        warm_ms=[1.0, 6.0, 7.0],
    )
    rows = by_name(far_rows(measured))
    assert (rows[goals.REPLAY_S3.words].value, rows[goals.REPLAY_S3.words].met) == (0.85, True)
    first = rows[goals.FIRST_RECORD.words]
    assert (first.value, first.max, first.met) == (2, 3, False)
    assert rows[f"{goals.FIRST_RECORD.words}: warm"].value == 6.0


def test_fan_in_counts_a_gib_of_the_topic() -> None:
    gib = 1024**3
    fan_in = FanIn(gib // 2, gib * 6 // 10, 50 * gib, 10.0, 5.0, 5.0, 100.0)
    rows = by_name(fan_in_rows(fan_in))
    line = rows[goals.FAN_IN.words]
    assert (line.value, line.unit, line.met) == (1.2, "GiB", False)
    assert rows["size of the topic"].value == 0.5


def test_shapes_by_name() -> None:
    assert Shape.parse("1024") == replay.MAIN == Shape.parse("1024:none")
    assert str(Shape.parse("65536:lz4")) == "64 KiB lz4"
    with pytest.raises(ValueError, match="brotli"):
        Shape.parse("1024:brotli")


# -- tail ----------------------------------------------------------------------------------------
def measured_tail(
    drains: dict[str, list[tuple[float, float | None]]],
    latencies: dict[str, list[list[float]]],
    **more: dict[str, float],
) -> tail.Measured:
    """`drains`: by way and round MB/s, and the proxy's CPU; for both consumers and forms alike."""
    return tail.Measured(
        drains={
            (consumer, way): [tail.Drain(speed, 1.0, 0.5, cpu) for speed, cpu in rounds]
            for consumer in (STOCK, UNPAUSED)
            for way, rounds in drains.items()
        },
        latencies={(form, way): rounds for form in FORMS for way, rounds in latencies.items()},
        **more,
    )


def test_the_tail_without_its_peer_is_compared_with_the_direct_way_within_a_round() -> None:
    measured = measured_tail(
        {DIRECT: [(100.0, None), (400.0, None)], FETCHPROXY: [(110.0, 0.25), (360.0, 0.25)]},
        {DIRECT: [[1.0, 2.0], [4.0, 5.0]], FETCHPROXY: [[1.5, 2.5], [4.1, 5.1]]},
        resident_mib={FETCHPROXY: 70.0},
    )
    rows = by_name(tail.rows_of(measured, mib=1000))
    ratio = rows["throughput, stock consumer, fetchproxy / direct"]
    assert (ratio.value, ratio.min, ratio.max) == (1.0, 0.9, 1.1)
    assert within(rows[goals.TAIL_LATENCY.words]) == (0.3, 0.1, 0.5, False)
    assert rows[f"{goals.TAIL_LATENCY.words}: p99 ratio to direct"].value == 1.02, "of all samples"
    cpu = rows["CPU of the proxy, unpaused consumer, fetchproxy"]
    assert cpu.value == pytest.approx(0.25 / 1.048576, abs=1e-4)
    # Without Kroxylicious no row compares with it.
    assert not any(KROXYLICIOUS in name for name in rows)
    assert goals.TAIL_THROUGHPUT.words not in rows
    assert goals.TAIL_CPU.words not in rows


def test_throughput_of_the_tail_is_compared_with_the_better_of_the_others() -> None:
    measured = measured_tail(
        {
            DIRECT: [(900.0, None), (100.0, None)],  # the greater median, and ratio
            KROXYLICIOUS: [(400.0, 1.5), (300.0, 1.5)],
            FETCHPROXY: [(400.0, 0.3), (360.0, 0.3)],
        },
        {DIRECT: [[1.0]], FETCHPROXY: [[1.05]]},
    )
    rows = by_name(tail.rows_of(measured, mib=1000))
    assert within(rows[goals.TAIL_THROUGHPUT.words]) == (1.1, 1.0, 1.2, True)
    assert rows[goals.TAIL_CPU.words].value == 0.2
    assert rows[goals.TAIL_LATENCY.words].met is True


def test_latency_added_is_compared_within_each_round_and_in_both_forms() -> None:
    # In the last round the peer is not later than the direct way: nothing to compare with.
    latencies: tail_latency.Latencies = {
        (IN_TURN, DIRECT): [[1.0], [2.0], [3.0]],
        (IN_TURN, KROXYLICIOUS): [[1.5], [2.25], [2.9]],
        (IN_TURN, FETCHPROXY): [[1.25], [2.25], [3.5]],
        (ALONE, DIRECT): [[1.0], [1.0], [1.0]],
        (ALONE, KROXYLICIOUS): [[1.5], [2.0], [1.25]],
        (ALONE, FETCHPROXY): [[1.25], [1.25], [1.25]],
        (IN_TURN, BARE_RELAY): [[1.0], [2.1], [3.1]],
        (ALONE, BARE_RELAY): [[1.0], [1.1], [1.2]],
        (IN_PAIRS, DIRECT): [[1.0], [2.0], [4.0]],
        (IN_PAIRS, FETCHPROXY): [[3.0], [1.0], [5.0]],
    }
    rows = by_name(tail_latency.goals_met(latencies))
    assert within(rows[goals.TAIL_LATENCY_IN_TURN.words]) == (0.75, 0.5, 1.0, True)
    assert within(rows[goals.TAIL_LATENCY_ALONE.words]) == (0.5, 0.25, 1.0, True)
    assert rows[f"{goals.TAIL_LATENCY.words}: p99 ratio to direct"].value == 1.25
    shown_rows = by_name(tail_latency.latency_rows(latencies))
    assert shown_rows[f"latency p50 added, alone, {BARE_RELAY}"].value == 0.1
    assert shown_rows[f"latency p50, in turn, {DIRECT}"].value == 2.0
    assert f"latency p50 added, alone, {DIRECT}" not in shown_rows


def test_rounds_are_pooled_until_their_p99_has_samples() -> None:
    rounds = [[float(number)] for number in range(2 * POOLED_ROUNDS + 2)]
    assert pooled(rounds) == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0, 6.0, 7.0]]
    assert pooled(rounds[:2]) == [[0.0, 1.0]]


# -- workers ---------------------------------------------------------------------------------------
def test_what_a_second_worker_adds() -> None:
    def turn(mb_per_s: float, server: float, others: float) -> workers.Turn:
        cpu = {"server": server, "broker": others, "client": others}
        return workers.Turn(mb_per_s * 1e6, 5.0, cpu)

    measured = workers.Measured()
    for who, rates in ((workers.ONE, (400, 500)), (workers.TWO, (720, 900))):
        for topic in (workers.TAIL, workers.ARCHIVE):
            measured.turns[topic, who] = [turn(rate, rate / 100, 0.5) for rate in rates]
    for who, rate in ((workers.BARE_ONE, 500), (workers.BARE_TWO, 950)):
        measured.turns[workers.TAIL, who] = [turn(rate, 5.0, 0.5)] * 2
    rows = by_name(workers.rows_of(measured))
    line = rows[goals.WORKERS_TAIL.words]
    assert (line.value, line.met) == (1.8, True)
    assert rows["the machine's ceiling, tail: two bare TLS relays : one"].value == 1.9
    assert rows["tail, one process: cores that the server used"].value == 0.9
    # 4 s of the server for 2 GB alone; 7.2 s of it and 1 s of the others for 3.6 GB together.
    assert rows[workers.BY_CPU_TAIL].min == pytest.approx(2 * 2.0 / (8.2 / 3.6), abs=0.01)
    assert rows["replay, two workers: CPU of the client"].value == pytest.approx(0.125, abs=0.02)
