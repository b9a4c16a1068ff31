"""`fetchproxy index show`: each kind of file, as a table and as JSON, whole and damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from segment_values import segment
from typer.testing import CliRunner

from fetchproxy.cli.main import app
from fetchproxy.segments.remote_log_index import IndexSpan, encode_index_entry
from fetchproxy.storage.index_files import LocalRemoteLogIndex

KEYS = [f"archive/t-AAAAAAAAAAAAAAAAAAAAAA/0/{base:020d}-x.log" for base in (100, 130)]
SPANS = [
    IndexSpan(0, 500, 100, 109, 1_700_000_000_000, 1_700_000_001_234),
    IndexSpan(500, 70, 110, 129, -1, -1),
    IndexSpan(0, 300, 130, 139, 1_700_000_002_000, 1_700_000_003_000),
]
ENTRIES = [encode_index_entry(KEYS[n], span) for n, span in zip((0, 0, 1), SPANS, strict=True)]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The local index of two segments, of two entries and of one."""
    index = LocalRemoteLogIndex(
        tmp_path / "0",
        lambda metadata: KEYS[metadata.segment_id.id.int],
        file_bytes_max=2**20,
        file_age_max_ms=1,
    )
    index.append(replace(segment(0, 100, 129), segment_size_bytes=570), ENTRIES[0] + ENTRIES[1])
    index.append(replace(segment(1, 130, 139), segment_size_bytes=300), ENTRIES[2])
    index.close()
    return tmp_path / "0"


def show(file: Path, *options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["index", "show", str(file), *options])
    return result.exit_code, result.stdout, result.stderr


def file_of(folder: Path, suffix: str) -> Path:
    return folder / f"00000000000000000100.{suffix}"


def test_a_remote_log_index_as_json(files: Path) -> None:
    code, out, err = show(file_of(files, "remoteLogIndex"), "--json")
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    assert rows[0] == {
        "entry": 0,
        "byte": 0,
        "first_offset": 100,
        "last_offset": 109,
        "first_timestamp": "2023-11-14T22:13:20.000+00:00",
        "last_timestamp": "2023-11-14T22:13:21.234+00:00",
        "length": 500,
        "rdi": f"{KEYS[0]}#0",
    }
    assert [row["byte"] for row in rows] == [0, len(ENTRIES[0]), len(ENTRIES[0] + ENTRIES[1])]
    assert (rows[1]["first_timestamp"], rows[1]["rdi"]) == ("-1", f"{KEYS[0]}#500")
    assert (rows[2]["entry"], rows[2]["rdi"]) == (2, f"{KEYS[1]}#0")


def test_a_table_has_a_line_for_each_entry(files: Path) -> None:
    code, out, _ = show(file_of(files, "remoteLogIndex"))
    heading, *lines = out.splitlines()
    assert code == 0
    words = (
        "entry, byte, first, offset, last, offset, first, timestamp, last, timestamp, length, rdi"
    )
    assert heading.split() == words.split(", ")
    assert [line.split()[-1] for line in lines] == [
        f"{KEYS[0]}#0",
        f"{KEYS[0]}#500",
        f"{KEYS[1]}#0",
    ]


def test_the_index_object_of_a_segment(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000100-x.index"
    file.write_bytes(ENTRIES[0] + ENTRIES[1])
    code, out, _ = show(file, "--json")
    assert (code, len(out.splitlines())) == (0, 2)


def test_offset_and_time_index_show_what_they_mean(files: Path) -> None:
    code, out, _ = show(file_of(files, "remoteOffsetIndex"), "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(row["byte"], row["first_offset"], row["position"]) for row in rows] == [
        (0, 100, 0),
        (8, 110, len(ENTRIES[0])),
        (16, 130, len(ENTRIES[0] + ENTRIES[1])),
    ]
    code, out, _ = show(file_of(files, "remoteTimeIndex"), "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(row["byte"], row["first_offset"], row["timestamp"][:19]) for row in rows] == [
        (0, 100, "2023-11-14T22:13:21"),
        (12, 130, "2023-11-14T22:13:23"),
    ]


@pytest.mark.parametrize("suffix", ["remoteLogIndex", "remoteOffsetIndex", "remoteTimeIndex"])
def test_the_index_is_shown_up_to_the_limit(files: Path, suffix: str) -> None:
    code, out, _ = show(file_of(files, suffix), "--json", "--limit", "1")
    assert (code, len(out.splitlines())) == (0, 1)
    code, out, _ = show(file_of(files, suffix), "--limit", "0")
    assert (code, out) == (0, "no entries\n")


def test_damage_is_named_behind_the_entries_before_it(files: Path) -> None:
    file = file_of(files, "remoteLogIndex")
    content = bytearray(file.read_bytes())
    content[len(ENTRIES[0]) + 30] ^= 1
    file.write_bytes(content)
    for options in ((), ("--json",)):
        code, out, err = show(file, *options)
        assert code == 1
        assert f"{KEYS[0]}#0" in out
        assert f"{KEYS[0]}#500" not in out
        assert f"entry 1 at byte {len(ENTRIES[0])}: checksum" in err
    code, _, err = show(file, "--limit", "1")
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("suffix", "content", "what"),
    [
        ("remoteLogIndex", ENTRIES[0] + ENTRIES[1][:-1], f"entry 1 at byte {len(ENTRIES[0])}"),
        ("remoteLogIndex", ENTRIES[1], "entry 0 at byte 0: position 500, expected 0"),
        ("remoteLogIndex", ENTRIES[0] + ENTRIES[0], "position 0, expected 500"),
        ("remoteOffsetIndex", bytes(7), "entry 0 at byte 0: cut after 7 of 8 bytes"),
        ("remoteOffsetIndex", bytes(16), "entry 1 at byte 8: offset 100 at byte 0"),
        ("remoteOffsetIndex", b"\xff" * 8, "entry 0 at byte 0: offset 99"),
        ("remoteTimeIndex", bytes(24), "entry 1 at byte 12: timestamp 0 at offset 100"),
        ("remoteTimeIndex", bytes(13), "entry 1 at byte 12: cut after 1 of 12 bytes"),
    ],
)
def test_damage_of_each_index_is_named_with_exit_code_1(
    tmp_path: Path, suffix: str, content: bytes, what: str
) -> None:
    file = file_of(tmp_path, suffix)
    file.write_bytes(content)
    code, _, err = show(file)
    assert code == 1
    assert what in " ".join(err.split())


def test_any_bytes_are_shown_or_refused_never_a_traceback(tmp_path: Path) -> None:
    rng = Random(1)
    for suffix in ("remoteLogIndex", "remoteOffsetIndex", "remoteTimeIndex", "index"):
        for _ in range(20):
            file = file_of(tmp_path, suffix)
            file.write_bytes(rng.randbytes(rng.randint(0, 80)))
            code, _, err = show(file)
            assert code == 0 or (code == 1 and "entry" in err), err


def test_a_table_needs_its_base_offset(tmp_path: Path) -> None:
    file = tmp_path / "renamed.remoteOffsetIndex"
    file.write_bytes(bytes(8))
    code, _, err = show(file)
    assert code == 2
    assert "base offset" in err
    assert show(tmp_path / "missing.index")[0] == 2
