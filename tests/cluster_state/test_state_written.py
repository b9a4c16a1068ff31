"""The archiver writes the state when it has changed, and `fetchproxy cluster show` shows it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from archive_harness import Archive, archived_up_to, open_archive, running_archiver, until_true
from confluent_kafka import Producer
from group_commit import commit
from memory_object_store import MemoryObjectStore
from secured_clients import USERS, as_user
from structlog.testing import capture_logs
from typer.testing import CliRunner

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cli.main import app
from fetchproxy.cluster_state.document import decode_state
from fetchproxy.cluster_state.reading import read_cluster_state
from fetchproxy.cluster_state.state import ClusterState
from fetchproxy.config.load import Setting, load_config
from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.errors import StorageDenied
from fetchproxy.observability.health import Kind
from fetchproxy.segments.object_keys import cluster_state_key
from fetchproxy.storage.archive_objects import ClusterStateObject
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, ObjectStore
from fetchproxy.writing.cluster_state_writer import ClusterStateWriter
from fetchproxy.writing.published_conditions import PublishedConditions, read_published_conditions
from lab.secured_kafka import SecuredKafka

pytestmark = pytest.mark.kafka

MINUTE, DAY = 60_000, 86_400_000
NOON = 1_700_000_000_000


@pytest.fixture(scope="module")
def kafka(serve_part: Callable[..., Iterator[SecuredKafka]]) -> Iterator[SecuredKafka]:
    yield from serve_part("kafka", SecuredKafka(USERS))


class Scene:
    """A writer with a clock that the test sets, an archive, and a cluster."""

    def __init__(self, archive: Archive, cluster: Cluster, **settings: Any) -> None:
        self.archive, self.cluster, self.now = archive, cluster, NOON
        self.conditions = PublishedConditions(archive.storage.objects)
        self.settings = settings
        self.writer = self.another()

    def another(self) -> ClusterStateWriter:
        return ClusterStateWriter(
            ArchiveConfig(topics=".*", **self.settings),
            self.cluster,
            self.archive.storage.objects,
            self.conditions,
            lambda topic: True,
            lambda: self.now,
        )

    async def states(self) -> list[ClusterStateObject]:
        return await self.archive.storage.objects.list_cluster_states()

    async def times(self) -> list[int]:
        return [one.read_at_ms for one in await self.states()]


@asynccontextmanager
async def scene(
    bootstrap: str,
    place: Path | ObjectStore,
    login: dict[str, object] | None = None,
    **settings: Any,
) -> AsyncIterator[Scene]:
    values: dict[str, Any] = {"cluster.bootstrap": bootstrap, **(login or {})}
    config = load_config(None, {}, [Setting(k, str(v), "test") for k, v in values.items()])
    async with open_archive(place) as archive, Cluster(config.cluster) as cluster:
        yield Scene(archive, cluster, **settings)


async def read_again(here: Scene) -> ClusterState:
    """The state, once the broker has followed the controller: users were made just before."""
    while True:
        state = await read_cluster_state(here.cluster, lambda topic: True, lambda: here.now)
        if set(USERS) <= set(state.scram_users):
            return state


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"value %d" % number, partition=0)
    assert producer.flush(60) == 0


async def test_a_state_is_written_when_it_has_changed(kafka: SecuredKafka, tmp_path: Path) -> None:
    topic = kafka.create_topic("changed-state")
    async with scene(kafka.bootstrap, tmp_path) as here:
        await read_again(here)
        for _ in range(3):
            await here.writer.write_once()
            here.now += MINUTE
        assert await here.times() == [NOON]
        # A writer of a new process finds that nothing has changed since.
        await here.another().write_once()
        assert await here.times() == [NOON]
        commit(kafka.bootstrap, "changed", topic, 7)
        await here.writer.write_once()
        assert await here.times() == [NOON, NOON + 3 * MINUTE]
        newest = (await here.states())[-1]
        state = decode_state(await here.archive.storage.objects.get_cluster_state(newest), "key")
        [group] = [group for group in state.groups if group.group_id == "changed"]
        assert [one.offset for one in group.offsets] == [7]


async def test_of_two_archivers_one_writes(kafka: SecuredKafka, tmp_path: Path) -> None:
    topic = kafka.create_topic("two-writers")
    async with scene(kafka.bootstrap, tmp_path) as here:
        other = here.another()
        await here.writer.write_once()
        for number in range(1, 4):
            commit(kafka.bootstrap, "two-writers", topic, number)
            here.now += MINUTE
            await here.writer.write_once()
            commit(kafka.bootstrap, "two-writers", topic, 10 + number)
            here.now += MINUTE // 3
            await other.write_once()
            here.now -= MINUTE // 3
        assert await here.times() == [NOON + number * MINUTE for number in range(4)]


async def test_old_states_go_and_the_newest_stays(kafka: SecuredKafka, tmp_path: Path) -> None:
    topic = kafka.create_topic("old-states")
    async with scene(kafka.bootstrap, tmp_path, cluster_state_retention_ms=DAY) as here:
        for number in range(3):
            commit(kafka.bootstrap, "old-states", topic, number)
            await here.writer.write_once()
            here.now += MINUTE
        commit(kafka.bootstrap, "old-states", topic, 99)
        here.now = NOON + 3 * DAY
        await here.writer.write_once()
        # The last of the old ones counted until now.
        assert await here.times() == [NOON + 2 * MINUTE, NOON + 3 * DAY]


@pytest.mark.parametrize("content", [b"{", b"", None])
def test_what_another_has_put_there_is_passed_over(
    kafka: SecuredKafka, tmp_path: Path, content: bytes | None
) -> None:
    """None: an object larger than any state."""
    kafka.create_topic(f"hostile-{len(content or b'12')}-{content is None}")
    key = cluster_state_key("", "somebody", NOON - MINUTE)

    async def write() -> list[int]:
        async with scene(kafka.bootstrap, tmp_path) as here:
            await here.archive.storage.store.put(key, content or b"")
            if content is None:
                with (tmp_path / key).open("ab") as file:
                    file.truncate(OBJECT_BYTES_MAX + 1)
            await here.writer.write_once()
            return await here.times()

    assert asyncio.run(write()) == [NOON - MINUTE, NOON]
    done = show(tmp_path, "--at", str(NOON - MINUTE))
    assert done.exit_code == 2
    assert key in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert show(tmp_path).exit_code == 0


@pytest.mark.remedy("cluster_state_incomplete")
async def test_missing_rights_are_a_condition_until_they_are_granted(
    kafka: SecuredKafka, tmp_path: Path
) -> None:
    topic = kafka.create_topic("few-rights")
    kafka.allow("proxy", topic, "READ")
    async with scene(kafka.sasl, tmp_path, as_user("proxy", "PLAIN")) as here:
        await here.writer.write_once()
        await here.conditions.publish()
        published = await read_published_conditions(here.archive.storage.objects)
        [condition] = published.values()
        assert condition.kind == Kind.CLUSTER_STATE_INCOMPLETE
        for right in (
            "DESCRIBE on the cluster (for groups that this user may not see, ACLs, SCRAM users)",
            "DESCRIBE_CONFIGS on all topics",
            "DESCRIBE_CONFIGS on the cluster",
        ):
            assert right in condition.what
        assert len(await here.states()) == 1  # what may be read is kept all the same

        kafka.allow("proxy", "kafka-cluster", "DESCRIBE", "DESCRIBE_CONFIGS", resource="BROKER")
        kafka.allow("proxy", "*", "DESCRIBE", "DESCRIBE_CONFIGS", "READ")
        kafka.allow("proxy", "*", "DESCRIBE", resource="GROUP")
        here.now += MINUTE
        await here.writer.write_once()
        await here.conditions.publish()
        assert not await read_published_conditions(here.archive.storage.objects)


async def test_an_outage_is_logged_once_and_the_old_state_stays(
    kafka: SecuredKafka, tmp_path: Path
) -> None:
    async with scene("127.0.0.1:1", tmp_path, cluster_state_interval_ms=1) as here:
        with capture_logs() as logs:
            running = asyncio.ensure_future(here.writer.run(lambda: True))
            await until_true(
                lambda: any(line["event"] == "cluster_state_not_written" for line in logs)
            )
            await asyncio.sleep(0.5)
            running.cancel()
        assert [line["event"] for line in logs].count("cluster_state_not_written") == 1
        assert await here.states() == []


class RefusingStore(MemoryObjectStore):
    """Takes no state while `refuses`."""

    refuses = True

    async def put_new(self, key: str, content: bytes) -> bool:
        if self.refuses and "cluster-states" in key:
            raise StorageDenied(f"put {key}: status 403")
        return await super().put_new(key, content)


@pytest.mark.remedy("cluster_state_old")
async def test_a_state_that_is_not_written_again_and_again_is_a_condition(
    kafka: SecuredKafka,
) -> None:
    store, kind = RefusingStore(), Kind.CLUSTER_STATE_OLD
    async with scene(kafka.bootstrap, store, cluster_state_interval_ms=1) as here:
        running = asyncio.ensure_future(here.writer.run(lambda: True))
        await until_true(lambda: here.conditions.health.reported(kind) is not None)
        condition = here.conditions.health.reported(kind)
        assert condition is not None
        assert "status 403" in condition.what
        store.refuses = False
        await until_true(lambda: here.conditions.health.reported(kind) is None)
        assert len(await here.states()) == 1
        running.cancel()


def show(folder: Path, *options: str) -> Any:
    arguments = ["cluster", "show", "--store", folder.as_uri(), *options]
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, arguments)


def test_without_a_state_the_command_says_what_writes_one(tmp_path: Path) -> None:
    async def begin() -> None:
        async with open_archive(tmp_path) as archive:
            await archive.storage.identity.check_to_put()

    asyncio.run(begin())
    nothing = show(tmp_path)
    assert nothing.exit_code == 2
    assert "an archiver writes it after archive.cluster_state_interval_ms" in nothing.stderr


async def archived_and_committed(bootstrap: str, folder: Path, topic: str) -> None:
    """Archives 40 of 50 records; one group is behind the archived end, and one beyond it."""
    async with open_archive(folder) as archive:
        changes = {"cluster_state_interval_ms": 60_000}
        async with running_archiver(bootstrap, archive, topic, **changes) as (manager, _):
            ends = archived_up_to(topic, {0: 40})
            await until_true(lambda: ends(manager.status()))
        commit(bootstrap, "behind", topic, 30)
        produce(bootstrap, topic, 10)
        commit(bootstrap, "beyond", topic, 47)
        # Its segments would come after an hour: the state comes at once.
        changes = {"cluster_state_interval_ms": 100, "segment_age_max_ms": 3_600_000}
        async with running_archiver(bootstrap, archive, topic, **changes):
            objects = archive.storage.objects
            async with asyncio.timeout(300):
                while not await objects.list_cluster_states():  # noqa: ASYNC110 - a store has no events
                    await asyncio.sleep(0.05)


def test_a_running_archiver_writes_it_and_the_command_shows_it(
    kafka: SecuredKafka, tmp_path: Path
) -> None:
    store = tmp_path / "archive"
    topic = kafka.create_topic("shown-state", 2)
    produce(kafka.bootstrap, topic, 40)
    asyncio.run(archived_and_committed(kafka.bootstrap, store, topic))
    done = show(store, "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    of_topic = [row for row in document["partitions"] if row["topic"] == topic]
    assert [
        (row["partition"], row["log_end_offset"], row["archived_end_offset"], row["not_archived"])
        for row in of_topic
    ] == [(0, 50, 40, 10), (1, 0, None, 0)]
    groups = {row["group"]: row for row in document["groups"]}
    assert (groups["behind"]["lag_offsets"], groups["behind"]["beyond_offsets"]) == (20, 0)
    assert (groups["beyond"]["lag_offsets"], groups["beyond"]["beyond_offsets"]) == (3, 7)
    assert {
        "group": "beyond",
        "topic": topic,
        "partition": 0,
        "committed_offset": 47,
        "archived_end_offset": 40,
        "offsets": 7,
    } in document["beyond_archive"]
    assert set(USERS) <= set(document["scram_users"])

    done = show(store, "--topic", topic)
    assert "group beyond is beyond the archive" in done.stdout
    assert f"{topic}-0 at 47, archived up to 40, 7 offsets" in done.stdout
    assert re.search(r"1 kept state: 20\d\d-", done.stdout)
    early = show(store, "--at", "2001-01-01T00:00")
    assert early.exit_code == 2
    assert "the oldest is of 20" in early.stderr
    assert show(store, "--at", "noon").exit_code == 2
    assert list((store / "cluster-states").iterdir())
    listed = CliRunner().invoke(app, ["segments", "--store", store.as_uri(), "--json"])
    assert listed.exit_code == 0, listed.stderr
    verified = CliRunner().invoke(app, ["verify", "--store", store.as_uri()])
    assert verified.exit_code == 0, verified.output
    mirror = tmp_path / "mirror"
    arguments = ["mirror", "--from", store.as_uri(), "--to", mirror.as_uri()]
    mirrored = CliRunner().invoke(app, arguments)
    assert mirrored.exit_code == 0, mirrored.output
    of_mirror = show(mirror, "--json")
    assert of_mirror.exit_code == 0, of_mirror.stderr
    assert json.loads(of_mirror.stdout) == document
