"""`fetchproxy drill` at a process with workers: each worker has the fault, and each ends it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from fetchproxy_command import PROJECT, fetchproxy
from proxy_process import ProxyProcess, wait_for

from fetchproxy.runtime.drills import LEASE_S
from lab.mock_cluster import MockCluster
from lab.process import free_ports

BEGAN, ENDED = "drill_began", "drill_ended"


def served(proxy: ProxyProcess) -> int:
    """How many workers serve."""
    try:
        return int(json.loads(proxy.get("/readyz"))["workers"])
    except (urllib.error.URLError, ConnectionError):
        return 0


@pytest.fixture
def proxy(
    mock_cluster: MockCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[ProxyProcess]:
    store = tmp_path / "store"
    store.mkdir()
    settings = {"process.workers": 2, "drills.enabled": getattr(request, "param", True)}
    port = free_ports(1 + 2)  # the mock's broker has node id 1
    with ProxyProcess(
        mock_cluster.bootstrap, store.as_uri(), tmp_path, settings=settings, port=port
    ) as process:
        wait_for("both workers", lambda: served(process) == 2)
        yield process


def workers_that_logged(proxy: ProxyProcess, event: str) -> list[int]:
    return sorted(entry["worker"] for entry in proxy.logged(event))


def drill_request(proxy: ProxyProcess, method: str, query: str = "") -> tuple[int, str]:
    url = f"http://127.0.0.1:{proxy.console_port}/api/drill?{query}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_each_worker_begins_and_ends(proxy: ProxyProcess) -> None:
    done = fetchproxy(
        "drill", "store-slow", "--for", "1s", "--console", f"127.0.0.1:{proxy.console_port}"
    )
    assert done.returncode == 0, done.stderr
    assert "store-slow is over" in done.stdout
    assert workers_that_logged(proxy, BEGAN) == workers_that_logged(proxy, ENDED) == [0, 1]
    assert {entry["why"] for entry in proxy.logged(ENDED)} == {"its time is over"}


def test_a_second_drill_is_refused_and_the_first_goes_on(proxy: ProxyProcess) -> None:
    assert drill_request(proxy, "POST", "fault=store-down&for_s=600")[0] == 200
    status, text = drill_request(proxy, "POST", "fault=store-slow&for_s=600")
    assert (status, "the drill store-down is running" in text) == (409, True)
    state = json.loads(drill_request(proxy, "GET")[1])
    assert state["fault"] == "store-down"
    assert state["left_s"] > 0
    assert workers_that_logged(proxy, ENDED) == []
    assert drill_request(proxy, "DELETE")[0] == 200
    assert workers_that_logged(proxy, ENDED) == [0, 1]
    assert json.loads(drill_request(proxy, "GET")[1]) == {"fault": None, "left_s": 0.0}


def test_a_broker_of_one_worker_is_away_for_all(
    proxy: ProxyProcess, mock_cluster: MockCluster
) -> None:
    known = f"broker={mock_cluster.bootstrap}"
    unknown = "broker=127.0.0.1:1"
    status, text = drill_request(proxy, "POST", f"fault=broker-down&for_s=600&{unknown}")
    assert (status, "no broker 127.0.0.1:1 is connected" in text) == (409, True)
    assert workers_that_logged(proxy, BEGAN) == []
    assert drill_request(proxy, "POST", f"fault=broker-down&for_s=600&{known}")[0] == 200
    assert workers_that_logged(proxy, BEGAN) == [0, 1]
    assert drill_request(proxy, "DELETE")[0] == 200


def test_a_killed_command_leaves_no_fault_behind(proxy: ProxyProcess) -> None:
    command = [sys.executable, "-m", "fetchproxy", "drill", "store-down", "--for", "1h"]
    command += ["--console", f"127.0.0.1:{proxy.console_port}"]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL) as process:
        wait_for("the drill", lambda: workers_that_logged(proxy, BEGAN) == [0, 1])
        process.kill()
    wait_for("its end", lambda: workers_that_logged(proxy, ENDED) == [0, 1], LEASE_S + 60)
    assert {entry["why"] for entry in proxy.logged(ENDED)} == {
        "the command that started it is gone"
    }


@pytest.mark.parametrize("proxy", [False], indirect=True)
def test_without_the_setting_it_is_refused(proxy: ProxyProcess) -> None:
    status, text = drill_request(proxy, "POST", "fault=store-down&for_s=600")
    assert (status, "drills.enabled" in text) == (409, True)
