"""The clients of the matrix that are programs: Kafka's own Java tools, franz-go, kafkajs, kcat."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from matrix_client import Line, MatrixClient

from lab import node_client
from lab.go_client import franz_reader, franz_reader_command, module_version
from lab.kafka import run_tool
from lab.kafka_versions import KAFKA_VERSION
from lab.kcat import find_kcat
from lab.node_client import kafkajs_command

LAB_CLIENTS = Path(node_client.__file__).with_name("clients")
PROGRAM_S = 120


def run(command: list[str], stdin: str | None = None) -> str:
    result = subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, timeout=PROGRAM_S
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    return result.stdout


def parsed(text: str) -> list[Line]:
    split = [line.split(" ", 3) for line in text.splitlines()]
    return [(int(p), int(o), k, v) for p, o, k, v in split]


def franz_assign(bootstrap: str, topic: str, ends: dict[int, int], level: str) -> list[Line]:
    return parsed(run(franz_reader_command(bootstrap, topic, ends, level, 90.0)))


def franz(do: str, bootstrap: str, topic: str, *more: str) -> str:
    where = ("-do", do, "-bootstrap", bootstrap, "-topic", topic)
    return run([str(franz_reader()), *where, *more])


def franz_group(bootstrap: str, topic: str, group: str, count: int, level: str) -> list[Line]:
    more = ("-group", group, "-count", str(count), "-isolation", level)
    return parsed(franz("group", bootstrap, topic, *more))


def franz_produce(bootstrap: str, topic: str, count: int) -> None:
    franz("produce", bootstrap, topic, "-count", str(count))


def franz_transact(bootstrap: str, topic: str, count: int) -> None:
    franz("transact", bootstrap, topic, "-count", str(count))


def franz_times(bootstrap: str, topic: str, partition: int, timestamp: int) -> int:
    more = ("-partition", str(partition), "-timestamp", str(timestamp))
    return int(franz("times", bootstrap, topic, *more))


def kafkajs_group(bootstrap: str, topic: str, group: str, count: int, level: str) -> list[Line]:
    return parsed(run(kafkajs_command("group", bootstrap, topic, group, str(count), level)))


def kafkajs_produce(bootstrap: str, topic: str, count: int) -> None:
    run(kafkajs_command("produce", bootstrap, topic, str(count), "idempotent"))


def kafkajs_transact(bootstrap: str, topic: str, count: int) -> None:
    run(kafkajs_command("produce", bootstrap, topic, str(count), "transactional"))


def kafkajs_times(bootstrap: str, topic: str, partition: int, timestamp: int) -> int:
    return int(run(kafkajs_command("times", bootstrap, topic, str(partition), str(timestamp))))


def kcat(*arguments: str, stdin: str | None = None) -> str:
    return run([str(find_kcat()), *arguments], stdin)


KCAT_READS = ("-q", "-f", "%p %o %k %s\n", "-X", "auto.offset.reset=error")


def kcat_assign(bootstrap: str, topic: str, ends: dict[int, int], level: str) -> list[Line]:
    isolation = ("-X", f"isolation.level={level}")
    where = ("-C", "-e", "-b", bootstrap, "-t", topic, "-o", "0", *isolation, *KCAT_READS)
    return [line for p in ends for line in parsed(kcat(*where, "-p", str(p)))]


def kcat_group(bootstrap: str, topic: str, group: str, count: int, level: str) -> list[Line]:
    isolation = ("-X", f"isolation.level={level}")
    where = ("-b", bootstrap, "-c", str(count), *isolation, *KCAT_READS)
    return parsed(kcat(*where, "-G", group, topic))


def kcat_produce(bootstrap: str, topic: str, count: int, *settings: str) -> None:
    lines = "".join(f"k{number}:v{number}\n" for number in range(count))
    to = ("-P", "-b", bootstrap, "-t", topic, "-p", "0", "-K", ":")
    kcat(*to, *(settings or ("-X", "enable.idempotence=true")), stdin=lines)


def kcat_transact(bootstrap: str, topic: str, count: int) -> None:
    kcat_produce(bootstrap, topic, count, "-X", f"transactional.id=kcat-{topic}")


def kcat_times(bootstrap: str, topic: str, partition: int, timestamp: int) -> int:
    output = kcat("-Q", "-b", bootstrap, "-t", f"{topic}:{partition}:{timestamp}")
    match = re.search(r"offset (-?\d+)", output)
    assert match, output
    return int(match[1])


def kcat_version() -> str:
    match = re.search(r"Version (\S+).*librdkafka (\S+)", run([str(find_kcat()), "-V"]))
    assert match
    return f"{match[1]} (librdkafka {match[2]})"


def java_console(
    bootstrap: str,
    topic: str,
    count: int,
    level: str,
    *where: str,
    reset: str = "none",
    timeout_ms: int = 60_000,
) -> list[Line]:
    result = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, *where),
        *("--max-messages", str(count), "--timeout-ms", str(timeout_ms)),
        *("--isolation-level", level, "--consumer-property", f"auto.offset.reset={reset}"),
        *("--property", "print.offset=true", "--property", "print.partition=true"),
        *("--property", "print.key=true", "--property", "key.separator= "),
        timeout_s=PROGRAM_S,
    )
    assert "OffsetOutOfRange" not in result.stderr
    return parsed(result.stdout.replace("Partition:", "").replace("Offset:", ""))


def java_assign(bootstrap: str, topic: str, until: dict[int, int], level: str) -> list[Line]:
    lines: list[Line] = []
    for partition, count in until.items():
        where = ("--partition", str(partition), "--offset", "0")
        lines += java_console(bootstrap, topic, count, level, *where)
    return lines


def java_group(bootstrap: str, topic: str, group: str, count: int, level: str) -> list[Line]:
    return java_console(bootstrap, topic, count, level, "--group", group)


def java_produce(bootstrap: str, topic: str, count: int) -> None:
    result = run_tool(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--bootstrap-server", bootstrap, "--topic", topic),
        *("--max-messages", str(count), "--acks", "-1"),
    )
    events = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [event["acked"] for event in events if event["name"] == "tool_data"] == [count]


def java_transact(bootstrap: str, topic: str, count: int) -> None:
    run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", "20"),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}"),
        *("--transactional-id", f"java-{topic}", "--transaction-duration-ms", "60000"),
    )


def java_times(bootstrap: str, topic: str, partition: int, timestamp: int) -> int:
    result = run_tool(
        "org.apache.kafka.tools.GetOffsetShell",
        *("--bootstrap-server", bootstrap, "--time", str(timestamp)),
        *("--topic-partitions", f"{topic}:{partition}"),
    )
    return int(result.stdout.strip().rpartition(":")[2] or "-1")


def kafkajs_version() -> str:
    package = json.loads((LAB_CLIENTS / "kafkajs_client/package.json").read_text())
    return str(package["dependencies"]["kafkajs"])


JAVA = MatrixClient(
    name="Java",
    version=lambda: KAFKA_VERSION,
    assign=java_assign,
    assign_until="count",
    group=java_group,
    produce=java_produce,
    transact=java_transact,
    aborted=0,
    times=java_times,
)
FRANZ_GO = MatrixClient(
    name="franz-go",
    version=lambda: module_version("franz_reader", "github.com/twmb/franz-go"),
    assign=franz_assign,
    group=franz_group,
    produce=franz_produce,
    transact=franz_transact,
    times=franz_times,
    find=franz_reader,
    in_crc32=True,
)
KAFKAJS = MatrixClient(
    name="kafkajs",
    version=kafkajs_version,
    group=kafkajs_group,
    produce=kafkajs_produce,
    transact=kafkajs_transact,
    times=kafkajs_times,
    part="kafkajs",
    find=kafkajs_command,
    lacks={"assign": "it can read only in a group"},
)
KCAT = MatrixClient(
    name="kcat",
    version=kcat_version,
    assign=kcat_assign,
    group=kcat_group,
    produce=kcat_produce,
    transact=kcat_transact,
    aborted=0,
    times=kcat_times,
    part="kcat",
    find=find_kcat,
    commits_ahead=True,
)
