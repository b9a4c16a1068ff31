"""Logs that Kafka may hold, in a real broker, through every part: what fetchproxy says of them is
what the broker said.

One broker holds them all: it takes longer to start than the rest takes. `make strange EXAMPLES=N
SEED=N` tries other logs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import asked
import compared
import pytest
from archive_only_process import ArchiveOnlyProcess
from asked import key_of
from corpus import EXAMPLES, SEED, corpus
from oracle import Oracle, ask_broker
from oracle_sides import until
from oracle_wire import WireConnection
from planted_kafka import PlantedPartition, plant, planted_kafka
from proxy_process import PROJECT, ProxyProcess

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

NODE_ID = 2**31 - 1
SEGMENT_BYTES = 4_000


@dataclass(frozen=True)
class Strange:
    """The broker with its logs, what it said of them, and the store that holds them all."""

    kafka: KafkaServer
    oracle: Oracle
    store: str
    folder: Path


@pytest.fixture(scope="module")
def planted_server(
    tmp_path_factory: pytest.TempPathFactory,
    serve_part: Callable[[str, KafkaServer], Iterator[KafkaServer]],
) -> Iterator[tuple[KafkaServer, list[PlantedPartition]]]:
    planted = corpus(EXAMPLES, SEED)
    kafka = planted_kafka(tmp_path_factory.mktemp("kafka"), NODE_ID, {})
    plant(kafka, NODE_ID, planted)
    for server in serve_part("kafka", kafka):
        yield server, planted


@pytest.fixture(scope="module")
def strange(
    planted_server: tuple[KafkaServer, list[PlantedPartition]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Strange]:
    """The broker's own words first; then all is archived, and most is deleted from the broker."""
    kafka, planted = planted_server
    folder = tmp_path_factory.mktemp("strange")
    store = (folder / "archive").as_uri()
    with WireConnection(kafka.bootstrap) as wire:
        until("every partition has its leader", lambda: _leads_all(wire, planted))
        oracle = ask_broker(wire, planted)
        done = fetchproxy(
            *("archive", "--once", "--bootstrap", kafka.bootstrap, "--store", store),
            *("--topics", ".*", "--set", f"archive.segment_bytes_max={SEGMENT_BYTES}"),
        )
        assert done.returncode == 0, done.stderr[-4000:]
        yield Strange(kafka, oracle, store, folder)


def _leads_all(wire: WireConnection, planted: list[PlantedPartition]) -> bool:
    found = asked.list_offsets(wire, [(key_of(p), -1) for p in planted])
    return len(found) == len(planted) and not any(error for error, *_ in found.values())


def fetchproxy(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fetchproxy", *arguments]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


def assert_same(differences: Iterator[str]) -> None:
    found = list(differences)
    shown = "\n".join(found[:20])
    assert not found, f"{len(found)} differences, with EXAMPLES={EXAMPLES} SEED={SEED}:\n{shown}"


def test_relayed_and_archived_logs_are_the_brokers(strange: Strange) -> None:
    """Before anything is deleted, and after the brokers' logs start inside the archived part."""
    with (
        ProxyProcess(strange.kafka.bootstrap, strange.store, strange.folder) as proxy,
        WireConnection(proxy.bootstrap) as wire,
        WireConnection(strange.kafka.bootstrap) as broker,
    ):
        assert_same(compared.cluster_differences(wire, strange.oracle))
        asked.delete_records(broker, _new_starts(strange.oracle))
        assert_same(compared.cluster_differences(wire, strange.oracle))
        assert not proxy.logged("session_crashed")


def _new_starts(oracle: Oracle) -> dict[asked.Key, int]:
    """At a batch's border, inside a batch, or the archive's end."""
    starts = {}
    for key, end in compared.archived_ends(oracle).items():
        log = next(p.log for p in oracle.planted if key_of(p) == key)
        inside = {end, *(b.base_offset for b in log.batches), *(b.last_offset for b in log.batches)}
        legal = sorted(offset for offset in inside if log.log_start < offset <= end)
        if legal:
            starts[key] = Random(log.log_start).choice(legal)
    return starts


def test_archive_only_says_what_the_broker_said(strange: Strange) -> None:
    with (
        ArchiveOnlyProcess(strange.store, strange.folder) as node,
        WireConnection(node.bootstrap) as wire,
    ):
        assert_same(compared.archive_differences(wire, strange.oracle))
        node.assert_sound()


def test_verify_finds_nothing(strange: Strange) -> None:
    done = fetchproxy("verify", "--store", strange.store)
    assert done.returncode == 0, done.stdout + done.stderr
