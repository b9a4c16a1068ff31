"""Kafka's own console consumer on one partition, in the background, with a log that tests read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from proxy_process import wait_for

from lab.java import find_java
from lab.kafka import class_path, java_options
from lab.process import ServerProcess

_LOG4J = """\
rootLogger.level = WARN
rootLogger.appenderRefs = out
rootLogger.appenderRef.out.ref = OUT
logger.consumer.name = org.apache.kafka.clients
logger.consumer.level = INFO
logger.network.name = org.apache.kafka.clients.NetworkClient
logger.network.level = DEBUG
appender.out.name = OUT
appender.out.type = File
appender.out.fileName = {log}
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = LOG %p %m%n
"""
RECORD = re.compile(r"^Partition:(\d+) Offset:(\d+) (\S+) (\S+)$", re.MULTILINE)

# The Java client's messages when it has lost its position: none may appear.
_LOST = ("Truncation detected", "LogTruncation", "Resetting offset", "OffsetOutOfRange")


class JavaReader:
    """Reads partition 0 from its beginning until it is stopped; it never resets (`none`).

    With `group` it reads all partitions from where the group has committed.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        folder: Path,
        group: str | None = None,
        **properties: object,
    ) -> None:
        log4j = folder / f"java-reader-{topic}.properties"
        # Not among the records: those are written in pieces, and a log line could split one.
        self._log = folder / f"java-{topic}.client.log"
        log4j.write_text(_LOG4J.format(log=self._log))
        settings: dict[str, object] = {
            "auto.offset.reset": "none",
            "enable.auto.commit": "false",
            "max.partition.fetch.bytes": 8000,
            "reconnect.backoff.max.ms": 200,
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        where = ["--partition", "0", "--offset", "0"] if group is None else ["--group", group]
        command = find_java().command(
            class_path(),
            *("-Xmx128m", *java_options()),
            f"-Dlog4j2.configurationFile={log4j}",
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", bootstrap, "--topic", topic),
            *where,
            *("--property", "print.offset=true"),
            *("--property", "print.partition=true"),
            *("--property", "print.key=true"),
            *("--property", "key.separator= "),
        )
        for name, value in settings.items():
            command += ["--consumer-property", f"{name}={value}"]
        self._process = ServerProcess("Java reader", command, folder / f"java-{topic}.log")

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def has(self, count: int) -> bool:
        """Whether it has read `count` records. It must still be running."""
        output = self.read()
        assert self._process.running, output[-1500:] + self.log()[-1500:]
        return len(RECORD.findall(output)) >= count

    def read(self) -> str:
        """The records as it printed them, and its other output apart from the log."""
        return self._process.log.read_text(errors="replace")

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def records(self, count: int) -> list[tuple[int, bytes, bytes]]:
        """(offset, key, value) as read, once there are `count`; its position was never lost."""
        try:
            wait_for(f"{count} records by Java", lambda: self.has(count), timeout_s=120.0)
        except AssertionError as error:
            error.add_note(self.read()[-1000:] + self.log()[-3000:])
            raise
        output = self.log() + self.read()
        lost = [line for line in output.splitlines() if any(word in line for word in _LOST)]
        assert not lost, lost[:5]
        records = RECORD.findall(self.read())
        assert {partition for partition, *_ in records} == {"0"}
        return [(int(offset), key.encode(), value.encode()) for _, offset, key, value in records]

    def count_sent(self, api: str) -> int:
        """The number of requests of this API, such as FETCH, that it has sent."""
        return self.log().count(f"Sending {api} request")
