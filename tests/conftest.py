"""Fixtures that hand real parts to tests. A part that this machine cannot have skips the test and
is named; if `$FETCHPROXY_REQUIRE_PARTS` (comma separated) lists it, the test fails instead, so that
CI can never be green without it. Hypothesis: profile `ci` (default) is deterministic, `exhaustive`
(`--hypothesis-profile=exhaustive`) searches new ground."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
import structlog
from folder_fixture import folder_fixture
from hypothesis import HealthCheck, settings

from lab.clouds import AzureServer, GcsServer
from lab.errors import PartMissing
from lab.forked_start import install as fork_commands
from lab.hdfs import HdfsServer
from lab.kafka import KafkaServer
from lab.kerberos import Kdc, gssapi_folder
from lab.mock_cluster import MockCluster
from lab.s3 import RcloneServer, S3Server
from lab.store_server import StoreServer

# Tests start hundreds of processes. Without bytecode each of them compiles all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Most of them are fetchproxy's own, which take less to start as forks of one.
fork_commands()
# And hundreds of JVMs, most of which live for seconds.
os.environ.setdefault("LAB_QUICK_JAVA", "1")


def plain_logging() -> None:
    """structlog's defaults, but for tracebacks: rich takes 50 ms of a core to draw one."""
    structlog.reset_defaults()
    *processors, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, plain])


plain_logging()

pytest.register_assert_rewrite("fetchproxy.storage.contract")

# Modules have unique names, so the tests of each folder may use what stands beside others.
for folder in sorted({path.parent for path in Path(__file__).parent.rglob("*.py")}):
    sys.path.append(str(folder))
    pytest.register_assert_rewrite(
        *{path.stem for path in folder.glob("*.py")} - {"conftest", "folder_fixture"}
    )

# Time limits per example would fail on a busy machine for no fault of the code.
settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "exhaustive",
    max_examples=5_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")

_parts_used = pytest.StashKey[set[str]]()
_parts_missing = pytest.StashKey[dict[str, str]]()

CreateTopic = Callable[..., str]
Server = TypeVar("Server", bound=KafkaServer | StoreServer | HdfsServer | Kdc)
PartT = TypeVar("PartT")
FindPart = Callable[[str, Callable[[], PartT]], PartT]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_parts_used] = set()
    config.stash[_parts_missing] = {}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    used = config.stash[_parts_used]
    terminalreporter.write_line(f"real parts used: {', '.join(sorted(used)) or 'none'}")
    for name, reason in sorted(config.stash[_parts_missing].items()):
        terminalreporter.write_line(f"real part missing: {name}: {reason}")


def find(config: pytest.Config, name: str, look: Callable[[], PartT]) -> PartT:
    """What `look` returns; a missing part skips the test, or fails it when CI must have it."""
    missing: PartMissing
    try:
        prepared = look()
    except PartMissing as raised:
        missing = raised
    else:
        config.stash[_parts_used].add(name)
        return prepared
    config.stash[_parts_missing][name] = str(missing)
    required = os.environ.get("FETCHPROXY_REQUIRE_PARTS", "").split(",")
    if name in (part.strip() for part in required):
        pytest.fail(f"required part {name}: {missing}", pytrace=False)
    pytest.skip(f"part {name}: {missing}")


def serve(config: pytest.Config, name: str, server: Server) -> Iterator[Server]:
    """The life of a real server in a fixture: start, or skip or fail by name; always stop."""
    try:
        find(config, name, server.start)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def serve_part(pytestconfig: pytest.Config) -> Callable[[str, Server], Iterator[Server]]:
    """`yield from serve_part("kafka", server)`, for fixtures with a server of their own kind."""
    return functools.partial(serve, pytestconfig)


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """Logging is a process-wide setting, and commands set it up; each test gives it back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    plain_logging()
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


@folder_fixture
def kafka_server(pytestconfig: pytest.Config) -> Iterator[KafkaServer]:
    """One real broker for a folder's tests: use topics of your own, and never stop or pause it.

    Never change its files either: it ends itself minutes later, in another test.
    """
    for kafka in serve(pytestconfig, "kafka", KafkaServer()):
        yield kafka
        assert kafka.running, f"the folder's broker has ended\n{kafka.log.read_text()[-3000:]}"


@pytest.fixture
def own_kafka_server(pytestconfig: pytest.Config) -> Iterator[KafkaServer]:
    """A real broker for this test alone, which may stop, kill or pause it (5 to 10 s to start)."""
    yield from serve(pytestconfig, "kafka", KafkaServer())


@pytest.fixture(scope="module")
def module_kafka_server(pytestconfig: pytest.Config) -> Iterator[KafkaServer]:
    """A real broker for one module's tests, which may ill-treat it."""
    yield from serve(pytestconfig, "kafka", KafkaServer())


@pytest.fixture(scope="session")
def s3_server(pytestconfig: pytest.Config) -> Iterator[S3Server]:
    """One real S3 server for the whole run: use a bucket of your own, and never stop it."""
    yield from serve(pytestconfig, "s3", S3Server())


@pytest.fixture(scope="session")
def rclone_server(pytestconfig: pytest.Config) -> Iterator[RcloneServer]:
    """A second real S3 server for the whole run: use a bucket of your own, and never stop it."""
    yield from serve(pytestconfig, "rclone", RcloneServer())


@pytest.fixture
def own_s3_server(pytestconfig: pytest.Config) -> Iterator[S3Server]:
    """A real S3 server for this test alone, which may kill, restart or pause it."""
    yield from serve(pytestconfig, "s3", S3Server())


@pytest.fixture(scope="session")
def gcs_server(pytestconfig: pytest.Config) -> Iterator[GcsServer]:
    """One emulator of Cloud Storage for the whole run: use a bucket of your own."""
    yield from serve(pytestconfig, "gcs", GcsServer())


@pytest.fixture(scope="session")
def azure_server(pytestconfig: pytest.Config) -> Iterator[AzureServer]:
    """One emulator of Blob Storage for the whole run: use a container of your own."""
    yield from serve(pytestconfig, "azure", AzureServer())


@folder_fixture
def hdfs_server(pytestconfig: pytest.Config) -> Iterator[HdfsServer]:
    """One real HDFS for a folder's tests: use a folder of your own, and never stop it."""
    yield from serve(pytestconfig, "hdfs", HdfsServer())


@pytest.fixture(scope="module")
def module_hdfs_server(pytestconfig: pytest.Config) -> Iterator[HdfsServer]:
    """A real HDFS for one module's tests, which may ill-treat it (about 10 s to start)."""
    yield from serve(pytestconfig, "hdfs", HdfsServer())


@pytest.fixture(scope="module")
def module_kdc(pytestconfig: pytest.Config) -> Iterator[Kdc]:
    """A real KDC for one module's tests (0.1 s to start), and gssapi on this process's path."""
    for kdc in serve(pytestconfig, "kerberos", Kdc()):
        folder = str(gssapi_folder())
        sys.path.append(folder)
        yield kdc
        sys.path.remove(folder)


@pytest.fixture
def s3_bucket(
    s3_server: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A new bucket on `s3_server`; its credentials are in the environment for boto."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server.create_bucket(_unique_name(request).lower())


@pytest.fixture(scope="session")
def find_part(pytestconfig: pytest.Config) -> FindPart[PartT]:
    """`find_part("clients", franz_reader)` → what the function returns; skips when missing."""

    return functools.partial(find, pytestconfig)


@pytest.fixture
def mock_cluster() -> Iterator[MockCluster]:
    """librdkafka's mock cluster with one broker, in a process of its own."""
    with MockCluster() as cluster:
        yield cluster


@pytest.fixture
def create_topic(kafka_server: KafkaServer, request: pytest.FixtureRequest) -> CreateTopic:
    """`create_topic(partition_count=1, config={…})` → the name of a new topic of this test."""

    def create(partition_count: int = 1, config: Mapping[str, str] | None = None) -> str:
        return kafka_server.create_topic(_unique_name(request), partition_count, config)

    return create


@pytest.fixture
def topic(create_topic: CreateTopic) -> str:
    """A new topic with one partition on `kafka_server`."""
    return create_topic()


_sequence = itertools.count(1)


def _unique_name(request: pytest.FixtureRequest) -> str:
    """The test's name as far as topics and buckets may carry it, and a number."""
    plain = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:40]
    return f"{plain}-{next(_sequence)}"
