"""A real Apache Kafka broker (KRaft, one node) and Kafka's command-line tools, from published jars.

This module must not hide Kafka's behaviour: a test's properties override the lab's.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from lab import cache
from lab.errors import PartFailed
from lab.java import find_java, quick_options
from lab.kafka_versions import KAFKA_VERSION, kafka_entry, kafka_jars
from lab.process import OneProcess, ServerProcess, free_port, port_responses

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_START_ATTEMPTS_MAX = 3

_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRefs = out
rootLogger.appenderRef.out.ref = OUT
appender.out.name = OUT
appender.out.type = Console
appender.out.target = {target}
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
"""

# One node cannot hold the replicas that Kafka's defaults require. By default, the first rebalance
# waits 3 s for more members, and every consumer of every test would wait that long.
_SINGLE_NODE: dict[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Many tests write records of years ago. By default a broker would delete them after 30 s, and
    # then every 5 minutes: on a busy machine in the middle of a test.
    "log.retention.ms": "-1",
    # After a SIGKILL the restarted broker is admitted only when the session of its last life has
    # expired.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "4000",
}


def class_path(version: str = KAFKA_VERSION) -> str:
    return f"{kafka_jars(version)}/*"


def java_options(version: str = KAFKA_VERSION, *, build: bool = False) -> list[str]:
    """Options for a JVM with `class_path(version)`: none, or in tests those of `quick_options`, and
    the classes that a broker loads from one archive (`java -XX:ArchiveClassesAtExit`). Together
    they save two thirds of the CPU of a start.

    `build`: make the archive if it does not exist, by a broker's start and end.
    """
    quick = quick_options()
    if not quick:
        return []

    def make(folder: Path) -> None:
        cache.say(f"archiving the classes that Kafka {version} loads")
        archive = f"-XX:ArchiveClassesAtExit={folder}/classes"
        server = KafkaServer(version=version, java=[*quick, archive])
        try:
            server.start()
            server.create_topic("topic")
        finally:
            server.stop(timeout_s=300.0)

    digest = hashlib.sha256(f"{class_path(version)} {find_java()}".encode()).hexdigest()[:12]
    name = f"{kafka_entry(version)}-classes-{digest}"
    made = cache.build_once(name, make) if build else cache.entry(name)
    # A Java that cannot make the archive starts without it.
    if made is None or not (made / "classes").is_file():
        return quick
    return [*quick, f"-XX:SharedArchiveFile={made}/classes", "-Xlog:disable"]


def new_cluster_id() -> str:
    """A random id in Kafka's format: 16 bytes in URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def run_tool(
    main_class: str,
    *arguments: str,
    timeout_s: float = 120.0,
    check: bool = True,
    version: str = KAFKA_VERSION,
) -> subprocess.CompletedProcess[str]:
    """Runs one of Kafka's tools, such as `org.apache.kafka.tools.DeleteRecordsCommand`.

    Raises PartFailed with the tool's output if it exits non-zero (unless `check` is False), and
    subprocess.TimeoutExpired after `timeout_s`.
    """
    with tempfile.TemporaryDirectory(prefix="lab-kafka-tool-") as folder:
        command = tool_command(Path(folder), main_class, *arguments, version=version)
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    if check and result.returncode != 0:
        output = (result.stdout + result.stderr)[-3000:]
        raise PartFailed(f"{main_class} exited with status {result.returncode}\n{output}")
    return result


def tool_command(
    folder: Path, main_class: str, *arguments: str, version: str = KAFKA_VERSION
) -> list[str]:
    """The command line of a tool, for a caller that runs it. `folder` gets a log config."""
    log4j = folder / "log4j2-tool.properties"
    log4j.write_text(_LOG4J.format(level="WARN", target="SYSTEM_ERR"))
    return find_java().command(
        class_path(version),
        "-Xmx256m",
        *(java_options(version) or ["-XX:+UseSerialGC"]),
        f"-Dlog4j2.configurationFile={log4j}",
        main_class,
        *arguments,
    )


class KafkaServer(OneProcess):
    """One broker and controller in one JVM on loopback. `with KafkaServer() as kafka: …`.

    `properties`: server.properties that override the lab's (`listeners` may use `{port}` and
    `{controller_port}`). `data_dir`: if given, data and log stay, and a later server continues from
    them; otherwise data is in a temporary folder that `stop()` removes. Data also stays after
    `kill()`, as after a crash. `port`: 0 takes a free one. `jars_behind`: a folder for the end of
    the class path (a plugin). `java`: options in place of `java_options`.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        heap: str = "512m",
        log: Path | None = None,
        start_timeout_s: float = 120.0,
        port: int = 0,
        cluster_id: str = "",
        version: str = KAFKA_VERSION,
        jars_behind: Path | None = None,
        java: Sequence[str] | None = None,
    ) -> None:
        self.version = version
        self._java = java
        self._jars_behind = jars_behind
        self._properties = dict(properties or {})
        self._keeps_data = data_dir is not None
        self._folder = data_dir or Path(tempfile.mkdtemp(prefix="lab-kafka-"))
        self._heap = heap
        self._log = log or self._folder / "server.log"
        self._start_timeout_s = start_timeout_s
        self._chosen_port = port
        self._cluster_id = cluster_id or new_cluster_id()
        self._port = port

    @property
    def port(self) -> int:
        return self._port

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def data_dir(self) -> Path:
        """Kafka's log directory, with one folder `TOPIC-PARTITION` per partition."""
        return self._folder / "data"

    @property
    def log(self) -> Path:
        return self._log

    def start(self) -> None:
        """Starts the broker and returns when it serves. A restart keeps port and data.

        Raises PartMissing (no Java, no jars) and PartFailed (with the end of the broker's log).
        """
        if self._process is not None:
            self._start_once()
            return
        for attempt in range(1, _START_ATTEMPTS_MAX + 1):
            self.prepare()
            try:
                self._start_once()
                return
            except PartFailed as failure:
                # Another process may have bound the port between our choice and Kafka's bind.
                if "Address already in use" not in str(failure) or attempt == _START_ATTEMPTS_MAX:
                    raise

    def create_topic(
        self,
        name: str,
        partition_count: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Creates a topic, waits until the broker has it, and returns its name.

        Raises confluent_kafka.KafkaException, for example if the topic exists.
        """
        # Imported here, so the broker can be set up and run before any client is installed.
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        new = NewTopic(name, partition_count, replication_factor=1, config=dict(config or {}))
        admin.create_topics([new], operation_timeout=30.0)[name].result(timeout=60.0)
        # The controller has answered; the broker's own metadata follows.
        end = monotonic() + 60.0
        while not self._leads(admin, name, partition_count):
            if monotonic() > end:
                raise PartFailed(f"the broker does not lead the new topic {name} after 60 s")
            sleep(0.01)
        return name

    @staticmethod
    def _leads(admin: AdminClient, topic: str, partition_count: int) -> bool:
        partitions = admin.list_topics(topic, timeout=30.0).topics[topic].partitions
        return len(partitions) == partition_count and all(
            partition.leader >= 0 for partition in partitions.values()
        )

    def stop(self, timeout_s: float = 30.0) -> None:
        """An orderly shutdown. Removes the data unless the caller gave `data_dir`."""
        if self._process is not None:
            self._process.stop(timeout_s)
        if not self._keeps_data:
            shutil.rmtree(self._folder, ignore_errors=True)

    def restart(self) -> None:
        """An orderly shutdown and a start, which keep port and data."""
        self._server().stop(timeout_s=60.0)
        self.start()

    def prepare(self) -> None:
        """Chooses ports, writes the configuration and formats the log directory, as `start` does
        by itself: for a test that puts files into the log directory before the first start."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._port = self._chosen_port or free_port()
        settings = self._settings(controller_port=free_port())
        config = self._folder / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        log4j = self._folder / "log4j2-server.properties"
        log4j.write_text(_LOG4J.format(level="INFO", target="SYSTEM_OUT"))
        if not (self.data_dir / "meta.properties").exists():
            # One argument, because an id may begin with a dash.
            chosen = f"--cluster-id={self._cluster_id}"
            run_tool(
                *("kafka.tools.StorageTool", "format", chosen, "-c", str(config)),
                version=self.version,
            )
        path = class_path(self.version)
        if self._jars_behind is not None:
            path = f"{path}{os.pathsep}{self._jars_behind}/*"
        command = find_java().command(
            path,
            f"-Xmx{self._heap}",
            *(java_options(self.version, build=True) if self._java is None else self._java),
            "-XX:+ExitOnOutOfMemoryError",
            f"-Dlog4j2.configurationFile={log4j}",
            "kafka.Kafka",
            str(config),
        )
        self._process = ServerProcess("Kafka", command, self._log)

    def _settings(self, controller_port: int) -> dict[str, str]:
        settings = {
            **_SINGLE_NODE,
            "log.dirs": str(self.data_dir),
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": "PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            **self._properties,
        }
        ports = {"{port}": str(self._port), "{controller_port}": str(controller_port)}
        for placeholder, port in ports.items():
            settings = {key: value.replace(placeholder, port) for key, value in settings.items()}
        return settings

    def _start_once(self) -> None:
        process = self._server()
        log_size = self._log.stat().st_size if self._log.exists() else 0
        process.start()

        def ready() -> bool:
            with open(self._log, "rb") as log:
                log.seek(log_size)
                return b"Kafka Server started" in log.read() and port_responses(self._port)

        try:
            process.wait_until(ready, self._start_timeout_s)
        except BaseException:
            process.kill()
            raise
