"""The commands as processes, against librdkafka's mock cluster and a local directory."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from fetchproxy_command import COMMAND, PROJECT, Ended, fetchproxy

from lab.mock_cluster import MockCluster


@contextmanager
def running(*args: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *args, "--set", "log.format=json"],
        cwd=PROJECT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def event(process: subprocess.Popen[str], name: str) -> dict[str, str]:
    """The next log line of this name; fails when the process ends without it."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        entry: dict[str, str] = json.loads(line)
        if entry["event"] == name:
            return entry
    raise AssertionError(f"no {name} in {lines}")


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with MockCluster() as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 10_000})
        for number in range(2_000):
            producer.produce("orders", b"v" * 100, str(number).encode(), partition=number % 4)
            producer.poll(0)
        assert producer.flush(30) == 0
        yield cluster.bootstrap


@pytest.fixture(scope="module")
def archive(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("archive") / "store"
    result = fetchproxy(
        "archive", "--bootstrap", bootstrap, "--store", store.as_uri(), "--topics", "ord.*",
        "--once", "--set", "archive.segment_bytes_max=20000",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return store


def test_once_copies_all_that_is_there(archive: Path) -> None:
    result = fetchproxy("segments", "--store", archive.as_uri(), "--json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    keys = (
        "topic topic_id partition base_offset last_offset size_bytes state log_start_offset"
        " put_aside"
    )
    assert list(rows[0]) == keys.split()
    for partition in range(4):
        own_rows = [row for row in rows if row["partition"] == partition]
        assert len(own_rows) > 1
        assert own_rows[0]["base_offset"] == 0
        assert own_rows[-1]["last_offset"] == 499
        for before, after in pairwise(own_rows):
            assert after["base_offset"] == before["last_offset"] + 1
    assert {row["state"] for row in rows} == {"COPY_SEGMENT_FINISHED"}


def test_a_second_pass_has_nothing_to_do(archive: Path, bootstrap: str) -> None:
    before = sorted(path.name for path in archive.rglob("*.log"))
    result = fetchproxy(
        "archive", "--bootstrap", bootstrap, "--store", archive.as_uri(), "--topics", "orders",
        "--once",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in archive.rglob("*.log")) == before


def test_deleted_segments_are_told_apart(archive: Path, tmp_path: Path) -> None:
    shutil.copytree(archive, tmp_path / "copy")
    partition = next((tmp_path / "copy").glob("orders-*/0"))
    (partition / f"{300:020d}.log-start-offset").write_text("{}")
    result = fetchproxy("segments", "--store", (tmp_path / "copy").as_uri(), "--json")
    own_rows = [row for row in json.loads(result.stdout) if row["partition"] == 0]
    assert {row["log_start_offset"] for row in own_rows} == {300}
    deleted = sum(row["last_offset"] < 300 for row in own_rows)
    assert 0 < deleted < len(own_rows)
    result = fetchproxy("segments", "--store", (tmp_path / "copy").as_uri())
    # A line that goes to a file or to a program is whole.
    whole = [line for line in result.stdout.splitlines() if line.endswith("D, below the log start")]
    assert len(whole) == deleted


def test_the_table_is_for_people(archive: Path) -> None:
    result = fetchproxy("segments", "--store", archive.as_uri(), "--topic", "orders")
    assert result.returncode == 0, result.stderr
    assert "base offset" in result.stdout
    assert "segments, " in result.stdout.splitlines()[-1]
    none = fetchproxy("segments", "--store", archive.as_uri(), "--topic", "ord")
    assert (none.returncode, none.stdout) == (2, "")
    place = f"nothing of topic ord in the archive at {archive.as_uri()}"
    assert place in none.stderr
    none = fetchproxy("segments", "--store", archive.as_uri(), "--topic", "ord", "--json")
    assert (none.returncode, json.loads(none.stdout)) == (2, [])
    for more in ([], ["--json"]):
        none = fetchproxy("verify", "--store", archive.as_uri(), "--topic", "ord", *more)
        assert none.returncode == 2
        assert place in none.stderr
        assert "clean" not in none.stdout or more


def test_verify_is_clean_then_names_the_fault(archive: Path, tmp_path: Path) -> None:
    result = fetchproxy("verify", "--store", archive.as_uri())
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("4 partitions: clean\n")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", archive, copy], check=True)
    log = sorted(copy.rglob("*.log"))[0]
    content = bytearray(log.read_bytes())
    content[70] ^= 0xFF
    log.write_bytes(content)
    result = fetchproxy("verify", "--store", copy.as_uri())
    assert result.returncode == 1
    faults = [line for line in result.stdout.splitlines() if line.startswith("fault: ")]
    assert len(faults) == 1
    assert log.name in faults[0]
    assert result.stdout.endswith(": 1 fault\n")
    result = fetchproxy("verify", "--store", copy.as_uri(), "--json")
    assert result.returncode == 1
    report = json.loads(result.stdout)
    assert (report["verdict"], report["partitions"]) == ("1 fault", 4)
    assert report["faults"][0]["object_key"].endswith(log.name)
    refused = fetchproxy("verify", "--store", copy.as_uri(), "--json", "--repair")
    assert (refused.returncode, refused.stdout) == (2, "")


def test_the_exit_codes_of_verify_are_in_its_help() -> None:
    help_text = " ".join(fetchproxy("verify", "--help").stdout.split())
    for code in ("0 no faults", "1 faults", "2 it could not be checked", "130 interrupted"):
        assert code in help_text


def test_verify_repairs_what_the_log_says_again(archive: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", archive, copy], check=True)
    index = sorted(copy.rglob("*.index"))[0]
    metadata = sorted(copy.rglob("*.metadata"))[-1]
    before = index.read_bytes()
    index.write_bytes(before[:-7])
    metadata.unlink()
    planned = fetchproxy("verify", "--store", copy.as_uri(), "--repair", "--dry-run")
    assert planned.returncode == 1
    would = [line for line in planned.stdout.splitlines() if line.startswith("would be repaired: ")]
    assert len(would) == 2, planned.stdout + planned.stderr
    assert not metadata.exists()
    result = fetchproxy("verify", "--store", copy.as_uri(), "--repair")
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith("repaired: ")] == [
        line.replace("would be repaired", "repaired") for line in would
    ]
    assert result.stdout.endswith("4 partitions: clean\n")
    assert index.read_bytes() == before
    assert metadata.exists()


def test_records_that_the_brokers_deleted_first_end_once_with_a_list_and_a_code(
    tmp_path: Path,
) -> None:
    with MockCluster() as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 100_000})

        def produce(count: int) -> None:
            for number in range(count):
                producer.produce("orders", b"v" * 1_000, partition=0)
                if number % 500 == 499:
                    assert producer.flush(60) == 0
            assert producer.flush(60) == 0

        def once() -> Ended:
            return fetchproxy(
                "archive", "--bootstrap", cluster.bootstrap, "--store", tmp_path.as_uri(),
                "--topics", "orders", "--once",
            )  # fmt: skip

        produce(100)
        assert once().returncode == 0
        produce(8_000)  # the mock keeps 5 MiB
        outcome = once()
        assert outcome.returncode == 2
        last = outcome.stderr.splitlines()[-1]
        assert re.fullmatch(
            r"not archived: orders-0: offsets 100 to \d+: the brokers deleted them before they "
            r"could be copied; they cannot be recovered: raise the brokers' retention, or archive "
            r"more often",
            last,
        )
        verify_run = fetchproxy("verify", "--store", tmp_path.as_uri())
        assert last.split(": ")[2] in verify_run.stdout
        assert once().returncode == 0  # once for each gap


def test_no_matching_topic_is_said(bootstrap: str, tmp_path: Path) -> None:
    result = fetchproxy(
        "archive", "--bootstrap", bootstrap, "--store", tmp_path.as_uri(), "--topics", "nothing",
        "--once",
    )  # fmt: skip
    assert result.returncode == 2
    assert (
        result.stderr.splitlines()[-1] == "fetchproxy: archive.topics = 'nothing' matches no topic"
    )


def test_brokers_out_of_reach_are_said(tmp_path: Path) -> None:
    result = fetchproxy(
        "archive", "--bootstrap", "127.0.0.1:1", "--store", tmp_path.as_uri(), "--topics", "t",
        "--once", "--set", "cluster.request_max_ms=300",
    )  # fmt: skip
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "127.0.0.1:1" in result.stderr


def test_a_wrong_bootstrap_is_said_and_makes_it_unready(tmp_path: Path) -> None:
    with running(
        "serve", "--bootstrap", "127.0.0.1:1", "--store", tmp_path.as_uri(),
        "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0",
    ) as process:  # fmt: skip
        console = event(process, "console_listening")["address"]
        began_at = time.monotonic()
        assert event(process, "brokers_away")["addresses"] == "127.0.0.1:1"
        assert time.monotonic() - began_at < 15
        with pytest.raises(HTTPError, match="503") as refused:
            urlopen(f"{console}/readyz")
        assert "brokers: none answers" in json.load(refused.value)["missing"]
        with urlopen(f"{console}/metrics") as response:
            assert b"fetchproxy_brokers_reachable 0.0" in response.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_cleanly(bootstrap: str, archive: Path, number: signal.Signals) -> None:
    with running(
        "serve", "--bootstrap", bootstrap, "--store", archive.as_uri(), "--archive", "orders",
        "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0",
    ) as process:  # fmt: skip
        console = event(process, "console_listening")["address"]
        event(process, "gateway_listening")
        event(process, "archive_found")
        with urlopen(f"{console}/readyz") as response:
            assert json.load(response) == {"ready": True, "missing": []}
        with urlopen(f"{console}/api/status") as response:
            assert json.load(response)["mode"] == "serve"
        os.kill(process.pid, number)
        assert event(process, "stopping")["signal"] == number.name
        _, rest = process.communicate(timeout=60)
        assert "Traceback" not in rest
        assert process.returncode == 0


def test_serve_starts_in_an_outage_of_the_store(bootstrap: str, tmp_path: Path) -> None:
    with running(
        "serve", "--bootstrap", bootstrap, "--store", (tmp_path / "absent").as_uri(),
        "--listen", "127.0.0.1:0",
    ) as process:  # fmt: skip
        event(process, "gateway_listening")
        assert "absent" in event(process, "store_unreachable")["error"]
        assert process.poll() is None


@pytest.mark.parametrize("archive_only", [False, True])
def test_a_taken_port_is_said(bootstrap: str, tmp_path: Path, archive_only: bool) -> None:
    mode = ["--archive-only"] if archive_only else ["--bootstrap", bootstrap]
    result = fetchproxy("serve", *mode, "--store", tmp_path.as_uri(), "--listen", bootstrap)
    assert result.returncode == 2
    (error,) = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    assert f"gateway.listen = {bootstrap}: cannot listen there" in error


def test_archive_runs_until_it_is_stopped(bootstrap: str, tmp_path: Path) -> None:
    with running(
        "archive", "--bootstrap", bootstrap, "--store", (tmp_path / "a").as_uri(),
        "--topics", "orders", "--set", "archive.segment_age_max_ms=1",
    ) as process:  # fmt: skip
        event(process, "partition_assigned")
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
