"""Each command of README, docs/start, docs/deploy, docs/recover, Troubleshoot and Leave is run.

`test_tutorial`, `test_runbooks` and `test_load_balancers` follow lines with `$`, and see what they
print. All other commands run here, in the order of their page and as they stand there, with only
places changed; or ELSEWHERE names what runs them. So a new command fails until a test runs it.
"""

from __future__ import annotations

import re
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificates import Authority
from page_commands import Terminal, plain_commands
from proxy_process import PROJECT, START_S
from runbook_scene import Scene, prepared

from lab.kafka import KafkaServer
from lab.kcat import find_kcat
from lab.process import ServerProcess, free_port
from lab.s3 import S3Server
from tests.conftest import FindPart

pytestmark = [pytest.mark.kafka, pytest.mark.s3]

DOCS = PROJECT / "docs"
PAGES = [PROJECT / "README.md", DOCS / "leave.md"]
for folder in ("start", "deploy", "recover", "troubleshoot"):
    PAGES += sorted((DOCS / folder).glob("*.md"))
# How a command begins, and what runs it, or why nothing does.
ELSEWHERE = {
    "docker compose up": "packaging/test_compose_commands.py runs what the containers run",
    "docker compose": "packaging/test_drill_compose.py checks what the containers run",
    "make drill-cluster": "cluster_restore/test_drill_short.py",
    "docker build": "packaging/test_package.py builds what the image gets; no test has Docker",
    "make demo": "demo/test_demo_command.py",
    "make venv": "makes the environment in which the tests run",
    ".venv/bin/fetchproxy": "e2e/test_quick_start.py",
    "fetchproxy serve --store hdfs:": "e2e/test_archive_on_hdfs.py",
    "KRB5_CLIENT_KTNAME=": "storage/test_hdfs_kerberos.py",
    "pip install '.[kerberos]'": "storage/test_hdfs_kerberos.py runs with what it installs",
    "fetchproxy cluster recover-journal": "cluster_state/test_recover_journal.py",
    "fetchproxy cluster restore": "cluster_restore/test_restore_command.py",
    "fetchproxy cluster show": "cluster_restore/test_restore_command.py",
    "fetchproxy user broker": "cluster_restore/test_secured_brokers.py uses what it prints",
    "fetchproxy resolve": "e2e/test_replaced_disk.py",
    "helm install": "packaging/test_helm_chart.py renders what it installs; no test has a cluster",
    "kubectl --namespace": "needs a cluster of Kubernetes; no test has one",
    "kubectl apply": "packaging/test_helm_chart.py checks the file; no test has a cluster",
    "pip install '.[encryption]'": "packaging/test_systemd_install.py installs the same without it",
    "python3 -m venv /opt/": "packaging/test_systemd_install.py",
    "/opt/fetchproxy/bin/pip": "packaging/test_systemd_install.py",
    "cp deploy/systemd/": "packaging/test_systemd_install.py",
    "systemctl enable": "packaging/test_systemd_install.py runs what the units run",
    "systemctl daemon-reload": "needs systemd as the first process",
    "useradd": "needs root",
}
FETCHPROXY = [sys.executable, "-m", "fetchproxy"]
SERVER = re.compile(r"fetchproxy (serve|archive)(?! --once) ")


def here(page: Path) -> list[str]:
    """The page's commands that run here."""
    commands = plain_commands(page.read_text("utf-8"))
    return [command for command in commands if not command.startswith(tuple(ELSEWHERE))]


@pytest.fixture(scope="module")
def scene(
    module_kafka_server: KafkaServer,
    serve_part: Callable[[str, S3Server], Iterator[S3Server]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("commands")
    for s3 in serve_part("s3", S3Server()):
        with prepared(Scene(module_kafka_server, s3, folder)) as made:
            yield made


class Typist:
    """Types a page's commands. A server runs until the next one starts."""

    def __init__(self, scene: Scene, folder: Path, kcat: Path, *, serves: bool) -> None:
        self._folder = folder
        self._console = f"127.0.0.1:{free_port()}"
        self._server: ServerProcess | None = None
        url = scene.s3.store_url("archive", "kafka")
        (segment,) = (scene.s3.objects / "archive" / "kafka").glob("orders-*/0/*.log")
        listen, console = (f"127.0.0.1:{free_port()}" for _ in range(2))
        if not serves:  # the page asks a proxy that runs
            listen, console = map(scene.terminal.here, ("127.0.0.1:9192", "127.0.0.1:8080"))
        places = {
            "kafka:9092": scene.kafka.bootstrap,
            "s3://bucket/archive": f"'{scene.s3.store_url('archive', 'log-dirs')}'",
            "orders.2019=s3://old-bucket/prefix#orders": f"'orders.2019={url}#orders'",
            "s3://bucket/prefix": f"'{url}'",
            "/var/lib/kafka/data-1,/var/lib/kafka/data-2": str(scene.kafka.data_dir),
            "/var/lib/kafka": str(folder),
            "/etc/fetchproxy": str(scene.etc),
            "…/00000000000000000000-SEGMENT.log": str(segment),
            **{f"{host}:9192": listen for host in ("127.0.0.1", "0.0.0.0")},
            **{f"{host}:8080": console for host in ("127.0.0.1", "0.0.0.0")},
        }
        environment = {
            **scene.s3.environment,
            "FETCHPROXY_CONSOLE_LISTEN": self._console,
            "FETCHPROXY_GATEWAY_LISTEN": listen,
            "FETCHPROXY_METADATA_TOPIC_REPLICATION_FACTOR": "1",  # there is one broker
            # What run.md says to set in the file.
            "FETCHPROXY_CLUSTER_BOOTSTRAP": scene.kafka.bootstrap,
            "FETCHPROXY_STORE_URL": url,
        }
        programs = {"fetchproxy": FETCHPROXY, "kcat": [str(kcat)]}
        self._terminal = Terminal(folder, places, programs, environment, cwd=folder)

    def type(self, command: str) -> None:
        if SERVER.match(command):
            self._serve(self._terminal.here(command))
        else:
            self._terminal.run(command, typed="a password\n")

    def _serve(self, command: str) -> None:
        self.stop()
        environment = dict(self._terminal.environment)
        if "--archive-only" in command:
            del environment["FETCHPROXY_CLUSTER_BOOTSTRAP"]
        console_option = re.search(r"--console (\S+)", command)
        console = console_option[1] if console_option else self._console
        words = ["bash", "-c", f"exec {command}"]
        log = self._folder / "log"
        self._server = ServerProcess("fetchproxy", words, log, environment, cwd=self._folder)
        self._server.start()
        self._server.wait_until(lambda: is_ready(console), START_S)

    def stop(self) -> None:
        if self._server is not None:
            assert self._server.running, self._server.log_tail()
            self._server.stop()


def is_ready(console: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{console}/readyz") as response:
            return bool(response.status == 200)
    except OSError:  # it does not listen yet, or says 503
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES[1:] if here(page)], ids=lambda page: page.stem
)
def test_each_command_runs(
    scene: Scene, page: Path, tmp_path: Path, find_part: FindPart[Path]
) -> None:
    Authority(tmp_path).issue("node")
    (scene.etc / "fetchproxy.toml").write_text('[archive]\ntopics = "orders"\n')
    commands = here(page)
    serves = any(map(SERVER.match, commands))
    typist = Typist(scene, tmp_path, find_part("kcat", find_kcat), serves=serves)
    try:
        for command in commands:
            typist.type(command)
    finally:
        typist.stop()


def test_readme_asks_broker_and_proxy(scene: Scene) -> None:
    commands = here(PAGES[0])
    assert len(commands) == 2
    for command in commands:
        words, _, output = command.partition("#")
        assert scene.run(words.replace("localhost:9092", "kafka:9092")) == output.strip()


def test_what_runs_elsewhere_is_on_a_page() -> None:
    commands = [each for page in PAGES for each in plain_commands(page.read_text("utf-8"))]
    for beginning, runs in ELSEWHERE.items():
        assert [each for each in commands if each.startswith(beginning)], beginning
        for module in re.findall(r"\S+/test_\S+\.py", runs):
            assert (PROJECT / "tests" / module).is_file(), module
