"""Jobs that take over segments name those that are not encrypted, though new ones are."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_batches import Record, made_batch
from planted_archive import TP
from stored_archives import PREFIX, config_of
from test_backfill_topic import ANY_TIME, CreateTopic, stored
from typer.testing import CliRunner
from written_archive import WrittenArchive

from fetchproxy.cli.main import app
from fetchproxy.jobs.restore import restore_work
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.key_rings import NO_KEYS, FileKeyRing, write_keys
from fetchproxy.storage.packed_logs import NO_ENCRYPTION, AtRest
from lab.kafka import KafkaServer

RECORDS_EACH = 10


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    write_keys(path, NO_KEYS.with_new("k1", bytes(range(32))), new=True)
    return path


@pytest.fixture
def archive(tmp_path: Path, ring: Path) -> WrittenArchive:
    """Two encrypted segments, then two that anybody may have put there."""
    encrypted = AtRest(keys=FileKeyRing(ring))
    made = WrittenArchive(tmp_path / "store" / PREFIX, encrypted)
    for number, at_rest in enumerate((encrypted, encrypted, NO_ENCRYPTION, AtRest(compress=True))):
        made.at_rest = at_rest
        base = number * RECORDS_EACH
        records = [Record(b"k", b"v%d" % offset) for offset in range(base, base + RECORDS_EACH)]
        made.add([made_batch(base, records)])
    return made


def plain_names(archive: WrittenArchive) -> list[str]:
    last = archive.segments[2:]
    assert [each.packed for each in last] == [False, True]
    return [archive.path(each, SegmentFile.LOG).name for each in last]


def test_restore_names_them(archive: WrittenArchive, ring: Path, tmp_path: Path) -> None:
    with_keys = config_of(tmp_path / "store", store__encryption_keys=str(ring))
    group = restore_work(with_keys, True, False)((TP,))
    assert [Path(key).name for key in group.not_encrypted] == plain_names(archive)
    # Without a key, nothing says that segments should be encrypted.
    group = restore_work(config_of(tmp_path / "store"), True, False)((TP,))
    assert group.not_encrypted == ()


@pytest.mark.kafka
def test_a_restored_topic_and_a_backfill_to_a_topic_come_with_their_names(
    archive: WrittenArchive, ring: Path, kafka_server: KafkaServer, create_topic: CreateTopic
) -> None:
    topic = create_topic(1, ANY_TIME)
    common = ["--bootstrap", kafka_server.bootstrap, "--store", archive.url]
    common += ["--set", f"store.encryption_keys={ring}"]
    to_topic = ["backfill", "--to-topic", topic, "--topics", TP.topic]
    restored = ["restore", "--set", f"metadata.topic_name=__{topic}"]
    restored += ["--set", "metadata.topic_replication_factor=1"]
    for command in (to_topic, restored):
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*command, *common])
        assert done.exit_code == 0, done.output
        lines = [line for line in done.output.splitlines() if line.startswith("not encrypted: ")]
        assert [Path(line.split()[-1]).name for line in lines] == plain_names(archive)
    assert len(stored(kafka_server, topic)) == 4 * RECORDS_EACH
