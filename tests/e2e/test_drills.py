"""`fetchproxy drill` on a real store and a real broker: what fails, fails for its time only;
readers get every record, and nothing wrong is written.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_process import verify
from archived_topics import NO_MEMORY, SETTINGS, archive_and_trim, new_topic
from fetchproxy_command import PROJECT, fetchproxy
from held_reader import HeldReader
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, produce

from fetchproxy.runtime.drills import LEASE_S
from lab.kafka import KafkaServer
from lab.s3 import S3Server

pytestmark = [pytest.mark.kafka, pytest.mark.s3]

COUNT = 600
ALLOWED = {**SETTINGS, **NO_MEMORY, "drills.enabled": True}


class Scene:
    """A topic of which the broker has the end, and a proxy that allows drills."""

    def __init__(self, kafka: KafkaServer, store: str, folder: Path, name: str) -> None:
        self.kafka, self.store = kafka, store
        self.data: TopicData = new_topic(kafka, name)
        produce(kafka.bootstrap, self.data, COUNT)
        self.proxy = ProxyProcess(kafka.bootstrap, store, folder, archive=name, settings=ALLOWED)

    def reader(self) -> HeldReader:
        """It reads a sixth, and then goes on in the drill."""
        ends = {0: COUNT}
        reader = HeldReader(
            "confluent-kafka", self.proxy.bootstrap, self.data.topic, ends, hold_at=100
        )
        return reader

    def drill(self, *words: str, then: Callable[[], None] = lambda: None) -> dict[str, int]:
        """Its report: the figure of each line. `then`: called when it has begun."""
        console = f"127.0.0.1:{self.proxy.console_port}"
        command = [sys.executable, "-m", "fetchproxy", "drill", *words, "--console", console]
        process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
        wait_for("a drill", lambda: self.proxy.logged("drill_began") or process.poll() is not None)
        then()
        report, _ = process.communicate()
        assert process.returncode == 0
        figures = re.findall(r"^  (.*?)  +(\d+)$", report, re.MULTILINE)
        return {text: int(figure) for text, figure in figures}


@pytest.fixture
def scene(
    kafka_server: KafkaServer, s3_server: S3Server, s3_bucket: str, tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Scene]:  # fmt: skip
    name = re.sub(r"[^a-z]+", "-", request.node.name.lower()).strip("-")[:60]
    scene = Scene(kafka_server, s3_server.store_url(s3_bucket, "archive"), tmp_path, name)
    with scene.proxy:
        archive_and_trim(kafka_server.bootstrap, scene.store, scene.data)
        yield scene


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["store-down", "store-slow", "store-corrupt"])
def test_readers_wait_and_get_every_record(scene: Scene, fault: str) -> None:
    with scene.reader() as reader:
        reader.wait_until_held()
        figures = scene.drill(fault, "--for", "8s", then=reader.go_on)
        assert reader.records() == {0: scene.data.written[0]}
    if fault != "store-slow":
        assert figures["longest time in which readers waited and none got records, in s"] >= 2
    assert figures["errors that readers of the archive got"] == 0
    damaged = figures["damaged chunks that were found and not served"]
    assert (damaged > 0) == (fault == "store-corrupt")
    assert (figures["operations of the store that failed"] > 0) == (
        fault == "store-down"
    ) or damaged
    began, ended = scene.proxy.logged("drill_began"), scene.proxy.logged("drill_ended")
    assert [(one["fault"], two["why"]) for one, two in zip(began, ended, strict=True)] == [
        (fault, "its time is over")
    ]
    verify(scene.store)


def test_what_is_produced_in_a_drill_is_archived_after_it(scene: Scene) -> None:
    with scene.reader() as reader:
        reader.wait_until_held()
        produce(scene.kafka.bootstrap, scene.data, COUNT)
        scene.drill("store-corrupt", "--for", "3s")
        reader.go_on()
        archive_and_trim(scene.kafka.bootstrap, scene.store, scene.data)
        assert reader.records()[0] == scene.data.written[0][:COUNT]
    verify(scene.store)


@pytest.mark.slow
def test_brokers_are_away_and_come_back(scene: Scene) -> None:
    with scene.reader() as reader:
        reader.wait_until_held()
        scene.drill("broker-down", "--for", "8s", then=reader.go_on)
        assert scene.proxy.logged("brokers_away")
        wait_for("brokers", lambda: scene.proxy.metric("fetchproxy_brokers_reachable") == 1)
        assert reader.records() == {0: scene.data.written[0]}


@pytest.mark.slow
def test_a_command_that_is_killed_leaves_no_fault_behind(scene: Scene) -> None:
    console = f"127.0.0.1:{scene.proxy.console_port}"
    command = [sys.executable, "-m", "fetchproxy", "drill", "store-down", "--for", "1h"]
    for number, how in enumerate((signal.SIGKILL, signal.SIGINT)):
        process = subprocess.Popen([*command, "--console", console], cwd=PROJECT)
        wait_for("a drill", lambda: len(scene.proxy.logged("drill_began")) > number)  # noqa: B023
        time.sleep(1.5)  # it asks once a second
        process.send_signal(how)
        process.wait()
        wait_for("its end", lambda: len(scene.proxy.logged("drill_ended")) > number)  # noqa: B023
    killed, interrupted = (one["why"] for one in scene.proxy.logged("drill_ended"))
    assert (killed, interrupted) == (
        "the command that started it is gone",
        "it was ended by request",
    )
    assert LEASE_S < 60


def test_what_is_refused(scene: Scene, tmp_path: Path) -> None:
    base = f"http://127.0.0.1:{scene.proxy.console_port}/api/drill"
    assert post_drill(f"{base}?fault=store-down&for_s=3601")[0] == 409
    assert post_drill(f"{base}?fault=store-down&for_s=nan")[0] == 409
    assert post_drill(f"{base}?fault=none&for_s=1")[0] == 400
    assert post_drill(f"{base}?fault=store-down&for_s=x")[0] == 400
    status, text = post_drill(f"{base}?fault=store-down&for_s=1", Origin="http://elsewhere")
    assert (status, "own pages" in text) == (403, True)
    assert post_drill(f"{base}?fault=store-slow&for_s=60")[0] == 200
    assert "store-slow is running" in post_drill(f"{base}?fault=store-down&for_s=1")[1]
    assert post_drill(base, "DELETE")[0] == 200
    with ProxyProcess(scene.kafka.bootstrap, scene.store, tmp_path) as other:
        result = fetchproxy("drill", "store-down", "--console", f"127.0.0.1:{other.console_port}")
        assert result.returncode == 2
        assert "set drills.enabled = true" in result.stderr
    for words, why in (
        (("store-down",), "use --console"),
        (("store-down", "--console", "127.0.0.1:1"), "does not respond"),
        (("store-down", "--console", "127.0.0.1:1", "--broker", "a:1"), "only with broker-down"),
        (("store-down", "--console", "127.0.0.1:1", "--for", "soon"), "--for soon"),
    ):
        result = fetchproxy("drill", *words)
        assert (result.returncode, why in result.stderr) == (2, True), result.stderr


def post_drill(url: str, method: str = "POST", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
