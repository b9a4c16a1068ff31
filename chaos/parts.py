"""The parts that are broken: three brokers, the store, two archivers and two proxies.

Each archiver and proxy has a relay in front of the store. The queries here bypass all relays and
proxies.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.fault_relay import NO_FAULT, Fault, FaultRelay
from chaos.ledger import Log
from chaos.plan import ARCHIVERS, BROKERS, PROXIES
from fetchproxy.cli.segments import SegmentRow, read_archive
from fetchproxy.config.schema import Config, StoreConfig
from fetchproxy.errors import StorageUnavailable
from fetchproxy.observability.health import Kind
from lab import limited
from lab.errors import PartFailed
from lab.kafka import KafkaServer
from lab.kafka_cluster import KafkaCluster
from lab.process import ServerProcess, free_port, free_ports
from lab.s3 import S3Server

TOPICS = "chaos-.*"
BUCKET, PREFIX, WRONG_PREFIX = "chaos", "archive", "archvie"
FINISHED = "COPY_SEGMENT_FINISHED"
SEGMENT_BYTES = 96 * 1024
RETAINED_BYTES = 16 * SEGMENT_BYTES  # of chaos-kept, in the archive
_PROJECT = Path(__file__).parents[1]
_WRONG_CLOCK = Path(__file__).parent / "wrong_clock"
_FETCHPROXY = [sys.executable, "-m", "fetchproxy"]
_LOSSES = ("archive_gap", "lost_offsets_skipped")
_START_S = 90.0
_CALL_S = 20.0
_WHOLE_S = 1_200.0  # verify of the whole archive, on a busy machine
_PATIENCE_MS = 120_000  # for queries with all parts up, on a busy machine

# Small segments and short turns, so that a round of acts meets every kind of an archiver's work.
# Retention by time is on because of the wrong clock: no record gets a day old.
SETTINGS: dict[str, object] = {
    "metadata.view_age_max_ms": 5_000,
    "limits.console.refresh_interval_ms": 2_000,
    "archive.segment_bytes_max": SEGMENT_BYTES,
    "archive.segment_age_max_ms": 5_000,
    "limits.writing.rlm_process_interval_ms": 500,
    "limits.writing.rlm_retry_interval_ms": 1_000,
    "limits.writing.discovery_interval_ms": 2_000,
    "limits.writing.remote_refresh_interval_ms": 5_000,
    "archive.copy_max_ms": 30_000,
    "limits.writing.turn_max_ms": 30_000,
    "archive.group_id": "chaos-archivers",
    "archive.group_session_timeout_ms": 6_000,
    "archive.local_retention_bytes": 3 * SEGMENT_BYTES,
    "archive.remote_log_retention_ms": 86_400_000,
    "archive.retention_overrides": json.dumps(
        {"chaos-kept": {"remote_log_retention_bytes": RETAINED_BYTES}}
    ),
    "limits.writing.retention_check_interval_ms": 2_000,
    "archive.retention_grace_ms": 10_000,
    "limits.writing.retention_clock_settle_ms": 3_000,
    "limits.writing.orphan_check_interval_ms": 20_000,
    "limits.writing.orphan_age_min_ms": 60_000,
    # Smaller than the archive, so that readers need the store.
    "limits.reading.chunk_bytes": 32 * 1024,
    "remote_fetch.chunk_cache_bytes_max": 1024 * 1024,
    "remote_fetch.index_cache_bytes_max": 1024 * 1024,
    "store.timeout_ms": 5_000,
    "store.connections_max": 8,
}  # fmt: skip


class Server:
    """One fetchproxy process, which may have several lives, some with a fault of their own."""

    def __init__(self, name: str, command: list[str], folder: Path, parts: Parts) -> None:
        self.name = name
        self.log = folder / f"{name.replace(' ', '-')}.log"
        self.relay = FaultRelay(parts.s3.port)
        self._parts = parts
        self._command = command
        self._console = f"127.0.0.1:{free_port()}"
        self._process: ServerProcess | None = None

    def start(self, prefix: str = PREFIX, clock_ahead_s: int = 0) -> None:
        instance = {"archive.group_instance_id": self.name.replace(" ", "-")}
        settings = {**SETTINGS, **self._parts.metadata_settings, **instance}
        whole = [*limited.command(settings), *self._command, "--console", self._console]
        whole += ["--store", self._parts.store_url(self.relay.endpoint_url, prefix)]
        whole += limited.options(settings)
        environment = dict(self._parts.s3.environment)
        if clock_ahead_s:
            environment |= {
                "PYTHONPATH": f"{_WRONG_CLOCK}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
                "CHAOS_CLOCK_AHEAD_S": str(clock_ahead_s),
            }
        self._process = ServerProcess(self.name, whole, self.log, environment, _PROJECT)
        self._process.start()
        self._process.wait_until(lambda: self._get("/healthz") is not None, _START_S)

    def start_in_vain(self, prefix: str) -> None:
        """Starts at a prefix that lacks the expected archive. Raises PartFailed if it runs."""
        try:
            self.start(prefix)
        except PartFailed as error:
            if "there is no archive at" not in str(error):
                raise
        else:
            raise PartFailed(f"{self.name} begins another archive at the wrong prefix {prefix}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(30.0)

    def kill(self) -> None:
        self._running().kill()

    def pause(self) -> None:
        self._running().pause()

    def resume(self) -> None:
        self._running().resume()

    def ended(self) -> bool:
        return not self._running().running

    def defects(self) -> list[str]:
        """Log lines that a sound process never writes, whatever fails around it."""
        complaints = []
        for line in self.log.read_text(errors="replace").splitlines():
            if "Traceback" in line or '"part_failed"' in line or "_crashed" in line:
                complaints.append(f"{self.name} logged: {line[:300]}")
        return complaints[:3]

    def called_lost(self) -> list[tuple[str, range]]:
        """The lost offsets in its log, with the name of the partition's log."""
        losses = []
        for line in self.log.read_text(errors="replace").splitlines():
            if any(f'"{event}"' in line for event in _LOSSES):
                log_entry = json.loads(line)
                offsets = range(log_entry["first_lost_offset"], log_entry["last_lost_offset"] + 1)
                losses.append((f"{log_entry['topic']}-{log_entry['partition']}", offsets))
        return losses

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise PartFailed(f"{self.name} has not been started")
        return self._process

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://{self._console}{path}", timeout=10) as response:
                return str(response.read().decode())
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class Verified:
    """The output of `fetchproxy verify`. `gaps`: by log, both ends inclusive."""

    clean: bool
    gaps: dict[str, list[tuple[int, int]]]
    faults: list[str]
    output: str


class Parts:
    """A context manager that runs all parts."""

    def __init__(self, folder: Path, metadata_manager: str) -> None:
        self._folder = folder
        self.metadata_settings: dict[str, object] = {
            "metadata.manager": metadata_manager,
            "metadata.topic_partitions": 4,
        }
        self._exits = ExitStack()
        # The heartbeat interval is also the timeout of a registration. On a busy machine, no
        # registration is answered within the lab's half a second.
        settings = {
            "log.segment.bytes": str(1024 * 1024),
            "broker.heartbeat.interval.ms": "1500",
            "broker.session.timeout.ms": "6000",
        }
        self.cluster = KafkaCluster(3, settings)
        self.s3 = S3Server()
        self.servers: dict[str, Server] = {}
        self.proxies: dict[str, str] = {}  # bootstrap address by name

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _start(self) -> None:
        self._exits.enter_context(self.cluster)
        self._exits.enter_context(self.s3)
        # This process uses the store, too.
        for key, value in self.s3.environment.items():
            os.environ[key] = value
            self._exits.callback(os.environ.pop, key, None)
        self.s3.create_bucket(BUCKET)
        endless = {"retention.ms": "-1", "retention.bytes": "-1"}
        self.cluster.create_topic("chaos-plain", [[1, 2, 3], [2, 3, 1]], endless)
        self.cluster.create_topic("chaos-txn", [[3, 1, 2]], endless)
        self.cluster.create_topic("chaos-kept", [[1, 3, 2]], endless)
        for broker, name in enumerate(BROKERS, start=1):
            self.cluster.create_topic(single_topic(name), [[broker]], endless)
        brokers = ["--bootstrap", self.cluster.bootstrap]
        for name in ARCHIVERS:
            self._add(name, ["archive", *brokers, "--topics", TOPICS])
        for name in PROXIES:
            listen = f"127.0.0.1:{free_ports(5)}"  # and a port for each broker behind it
            self.proxies[name] = listen
            self._add(name, ["serve", *brokers, "--listen", listen])
        with ThreadPoolExecutor(max_workers=len(self.servers)) as pool:
            list(pool.map(Server.start, self.servers.values()))

    def _add(self, name: str, command: list[str]) -> None:
        server = self.servers[name] = Server(name, command, self._folder, self)
        self._exits.enter_context(server.relay)
        self._exits.callback(server.stop)

    def store_url(self, endpoint_url: str = "", prefix: str = PREFIX) -> str:
        endpoint = quote(endpoint_url or self.s3.endpoint_url, safe="")
        return f"s3://{BUCKET}/{prefix}?endpoint_url={endpoint}&region={self.s3.region}"

    def broker(self, name: str) -> KafkaServer:
        return self.cluster.nodes[BROKERS.index(name) + 1]

    def set_fault(self, name: str, fault: Fault = NO_FAULT) -> None:
        self.servers[name].relay.set(fault)

    # -- queries --------------------------------------------------------------------------------
    def edges(self, log: Log) -> tuple[int, int]:
        """The log start offset and high watermark at the brokers. Raises KafkaException."""
        settings = {"bootstrap.servers": self.cluster.bootstrap, "group.id": "chaos-edges"}
        consumer = Consumer({**settings, "log_level": 0})
        try:
            place = TopicPartition(log.topic, log.partition)
            begin, end = consumer.get_watermark_offsets(place, timeout=_CALL_S)
            return int(begin), int(end)
        finally:
            consumer.close()

    def delete_records(self, log: Log, offset: int) -> None:
        """Deletes at the brokers, as if there were no archive. Raises KafkaException."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        target = TopicPartition(log.topic, log.partition, offset)
        for future in admin.delete_records([target], request_timeout=_CALL_S).values():
            future.result()

    def rows(self, topic: str | None = None) -> tuple[list[SegmentRow], list[str]]:
        """The rows of `fetchproxy segments`, and the partitions that await `resolve`."""
        config = Config(
            store=StoreConfig(url=self.store_url(), timeout_ms=_PATIENCE_MS),
        )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                rows, published_conditions = asyncio.run(read_archive(config, topic))
                break
            except StorageUnavailable:  # acts overlap, so the store may be broken now
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        stopped = [one.what for one in published_conditions if one.kind == Kind.PARTITION_STOPPED]
        return rows, stopped

    def archived(self, topic: str | None = None) -> dict[str, set[int]]:
        """Offsets in finished segments that readers see. A log without any has no entry."""
        offsets_by_partition: dict[str, set[int]] = {}
        for row in self.rows(topic)[0]:
            if row["state"] == FINISHED and not row["put_aside"]:
                offsets = range(row["base_offset"], row["last_offset"] + 1)
                offsets_by_partition.setdefault(f"{row['topic']}-{row['partition']}", set()).update(
                    offsets
                )
        return offsets_by_partition

    def archived_end(self, log: Log) -> int:
        """The end that the archiver has recorded: perhaps slightly behind, but much cheaper."""
        folders = self.objects_folder().glob(f"{log.topic}-*/{log.partition}/finished-offsets")
        return max((json.loads(path.read_text())["end_offset"] + 1 for path in folders), default=0)

    def verify(self) -> Verified:
        result = self._command("verify")
        gaps: dict[str, list[tuple[int, int]]] = {}
        faults = []
        for line in result.stdout.splitlines():
            if line.startswith("archive_gap: "):
                name, _, rest = line.removeprefix("archive_gap: ").partition(": offsets ")
                words = rest.split()
                gaps.setdefault(name, []).append((int(words[0]), int(words[2])))
            elif line.startswith("fault: "):
                faults.append(line)
        return Verified(result.returncode == 0, gaps, faults, result.stdout + result.stderr)

    def resolve(self, log: Log, response: str) -> str:
        """Returns its output. Raises PartFailed."""
        result = self._command("resolve", log.name, f"--{response}")
        if result.returncode != 0:
            raise PartFailed(f"resolve {log.name} --{response}: {result.stdout}{result.stderr}")
        return result.stdout

    def _command(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*_FETCHPROXY, *words, "--store", self.store_url()]
        command += ["--bootstrap", self.cluster.bootstrap]
        command += ["--set", f"store.timeout_ms={_PATIENCE_MS}"]
        for key, value in self.metadata_settings.items():
            command += ["--set", f"{key}={value}"]
        try:
            return subprocess.run(
                command, cwd=_PROJECT, capture_output=True, text=True, check=False, timeout=_WHOLE_S
            )
        except subprocess.TimeoutExpired:
            raise PartFailed(f"fetchproxy {words[0]} does not end in {_WHOLE_S:.0f} s") from None

    def objects_folder(self) -> Path:
        """The store's folder for the archive's objects."""
        return self.s3.objects / BUCKET / PREFIX


def single_topic(broker: str) -> str:
    """The topic whose only replica is on this broker."""
    return f"chaos-single-{BROKERS.index(broker) + 1}"


def wait_until(what: str, check: Callable[[], bool], timeout_s: float) -> None:
    """Raises PartFailed on a timeout. A `check` that raises KafkaException is repeated."""
    deadline = time.monotonic() + timeout_s
    last: Exception | None = None
    while True:
        try:
            if check():
                return
        except KafkaException as error:
            last = error
        if time.monotonic() > deadline:
            raise PartFailed(f"not in {timeout_s:.0f} s: {what}{f' ({last})' if last else ''}")
        time.sleep(0.3)
