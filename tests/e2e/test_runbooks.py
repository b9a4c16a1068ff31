"""docs/recover: each runbook, command by command, after what it is for has happened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_commands import Step, steps
from proxy_process import PROJECT
from runbook_scene import SERVICES, Scene, prepared

from lab.kafka import KafkaServer
from lab.s3 import S3Server

pytestmark = [pytest.mark.kafka, pytest.mark.s3]

RECOVER = PROJECT / "docs" / "recover"
# The sections that tests follow; "" is what stands before the first.
FOLLOWED = {
    "proxy.md": ("Start it again", "Without any proxy"),
    "bucket.md": ("", "The mirror becomes the archive", "Start a new archive"),
    "metadata.md": ("",),
    "topic.md": ("",),
    "cluster.md": ("",),
    "fail-over.md": ("Runbook",),
}


def page_steps(page: str, section: str = "") -> list[Step]:
    """Those of the page before its first section, or of one section."""
    assert section in FOLLOWED[page]
    text = (RECOVER / page).read_text("utf-8")
    parts = dict(
        part.partition("\n")[::2] for part in ("\n" + text).replace("\n# ", "\n## ").split("\n## ")
    )
    steps_found = (
        list(steps(parts[section]))
        if section
        else list(steps(next(iter(list(parts.values())[1:]))))
    )
    assert steps_found, (page, section)
    return steps_found


def follow(scene: Scene, page: str, section: str = "") -> None:
    for step in page_steps(page, section):
        scene.follow(step)


@pytest.fixture
def scene(
    own_kafka_server: KafkaServer, own_s3_server: S3Server, tmp_path: Path
) -> Iterator[Scene]:
    with prepared(Scene(own_kafka_server, own_s3_server, tmp_path)) as made:
        yield made


def empty(scene: Scene) -> None:
    """The bucket stays; all that was in it is gone."""
    folder = scene.s3.objects / "archive"
    for path in folder.iterdir():
        shutil.rmtree(path)


def test_a_proxy_is_lost(scene: Scene) -> None:
    scene.kill("fetchproxy")
    scene.kill("fetchproxy-archiver")
    follow(scene, "proxy.md", "Start it again")
    scene.kill("fetchproxy")
    follow(scene, "proxy.md", "Without any proxy")


@pytest.mark.slow
def test_the_bucket_is_lost_and_there_is_a_mirror(scene: Scene) -> None:
    follow(scene, "bucket.md")  # the mirror is made
    empty(scene)
    follow(scene, "bucket.md", "The mirror becomes the archive")


@pytest.mark.slow
def test_the_bucket_is_lost_and_there_is_no_copy(scene: Scene) -> None:
    empty(scene)
    follow(scene, "bucket.md", "Start a new archive")


@pytest.mark.slow
def test_the_metadata_topic_is_lost(
    own_kafka_server: KafkaServer, own_s3_server: S3Server, tmp_path: Path
) -> None:
    with prepared(Scene(own_kafka_server, own_s3_server, tmp_path, manager="topic")) as scene:
        follow(scene, "metadata.md")


@pytest.mark.slow
def test_a_topic_was_deleted(scene: Scene) -> None:
    scene.run("kafka-topics.sh --bootstrap-server kafka:9092 --delete --topic orders")
    follow(scene, "topic.md")


@pytest.mark.slow
def test_the_cluster_is_lost(
    own_kafka_server: KafkaServer,
    kafka_server: KafkaServer,
    own_s3_server: S3Server,
    tmp_path: Path,
) -> None:
    with prepared(Scene(own_kafka_server, own_s3_server, tmp_path, kafka_server)) as scene:
        own_kafka_server.kill()
        follow(scene, "cluster.md")


@pytest.mark.slow
def test_clients_keep_their_address_and_their_commits(scene: Scene) -> None:
    before, *rest = page_steps("fail-over.md", "Runbook")
    scene.follow(before)  # the export, while the cluster lives
    scene.kafka.kill()
    back = next(i for i, step in enumerate(rest) if "groups import" in step.command)
    for step in rest[:back]:
        scene.follow(step)
    scene.kafka.start()
    for step in rest[back:]:
        scene.follow(step)


def test_each_runbook_has_its_parts() -> None:
    for page, sections in FOLLOWED.items():
        text = (RECOVER / page).read_text("utf-8")
        for part in ("**Use this runbook when**", "**Decide first", "**You lose**", "**It takes**"):
            assert part in text, (page, part)
        assert "(index.md#the-examples)" in text, page
        assert f"({page}" in (RECOVER / "index.md").read_text("utf-8"), page
        followed = [step for section in sections for step in page_steps(page, section)]
        assert followed == list(steps(text)), page
    assert FOLLOWED.keys() == {
        page.name for page in RECOVER.glob("*.md") if any(steps(page.read_text("utf-8")))
    }
    named = {
        step.command.split()[2]
        for page in FOLLOWED
        for step in steps((RECOVER / page).read_text("utf-8"))
        if step.command.startswith("systemctl ")
    }
    assert named == set(SERVICES)
