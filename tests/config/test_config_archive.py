"""What the keys of `archive` demand of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from fetchproxy.config.load import load_config, parse_assignment
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError


def loaded(*assignments: str) -> Config:
    return load_config(None, {}, [parse_assignment(text) for text in assignments])


def test_log_dirs_are_named_like_kafkas() -> None:
    archive = loaded("archive.log_dirs=/a/b, /c", "archive.spool_dir=/a/spool").archive
    assert archive.log_dirs == "/a/b, /c"
    assert archive.spool_dir == Path("/a/spool")


def test_a_member_of_a_group() -> None:
    archive = loaded("archive.group_id=archivers", "archive.group_instance_id=one").archive
    assert (archive.group_id, archive.group_instance_id) == ("archivers", "one")


def test_compacted_topics_are_named_beside_the_others() -> None:
    archive = loaded("archive.topics=orders", "archive.compacted_topics=_schemas").archive
    assert [archive.names(topic) for topic in ("orders", "_schemas", "_schemas2")] == [
        True, True, False,
    ]  # fmt: skip
    assert not loaded().archive.names("orders")


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["archive.compacted_topics=a"], "archive.topics is not: a process without it"),
        (
            ["archive.topics=a", "archive.compacted_topics=b", "archive.log_dirs=/a"],
            "archive.compacted_topics and archive.log_dirs are both set",
        ),
        (
            [
                "archive_only.enabled=true",
                "archive.compacted_topics=b",
                "gateway.listen=127.0.0.1:0",
            ],
            "archive.compacted_topics",
        ),
        (["archive.log_dirs=data,/c"], "expected absolute paths"),
        (["archive.log_dirs=/c,"], "expected absolute paths"),
        (
            ["archive.log_dirs=/a,/c", "archive.spool_dir=/c/spool"],
            "archive.spool_dir = /c/spool: expected a folder outside of /c",
        ),
        (["archive.group_instance_id=a"], "archive.group_id is not"),
        (
            ["archive.group_id=g", "archive.log_dirs=/a"],
            "archive.group_id and archive.log_dirs are both set",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(*assignments)
