"""The memory of commands over archives with very large records, each in a process of its own."""

from __future__ import annotations

import gzip
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cramjam
import pyarrow.parquet as pq
import pytest
from made_batches import Record, made_batch, reseal
from written_archive import WrittenArchive

MIB = 1024 * 1024
HEADER_BYTES = 61
BOMB_BYTES = 500 * MIB
HONEST_BYTES = 32 * MIB
JOBS = ("backfill", "report", "verify", "merge")

# Prints the exit code and the most memory that a process of the command took, in bytes. In a
# process of its own: a child begins with the figure of its parent.
PEAK = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(done.returncode, kib * (1 if sys.platform == "darwin" else 1024))
"""


def _xerial(data: bytes) -> bytes:
    out = bytearray(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1))
    for at in range(0, len(data), 32 * 1024):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + 32 * 1024]))
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


PACK: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: partial(gzip.compress, compresslevel=1),
    2: _xerial,
    3: lambda data: bytes(cramjam.lz4.compress(data)),
    4: lambda data: bytes(cramjam.zstd.compress(data)),
}


def varint(value: int) -> bytes:
    zigzag, out = value << 1 ^ value >> 63, bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def batch_of(offset: int, large: bytes, codec: int, part: str = "value") -> bytes:
    """Of one record, of which a part is large; other people's builders take a minute."""
    null, some = varint(-1), varint(len(large)) + large
    body = (
        b"\0\0\0"
        + {
            "key": some + null + varint(0),
            "value": null + some + varint(0),
            "header": null + null + varint(1) + varint(1) + b"h" + some,
        }[part]
    )
    head = bytearray(made_batch(offset, [Record()])[:HEADER_BYTES])
    head[22] |= codec
    made = head + PACK[codec](varint(len(body)) + body)
    struct.pack_into(">i", made, 8, len(made) - 12)
    return reseal(made)


def peak(archive: WrittenArchive, out: Path, job: str) -> tuple[int, int, str]:
    """Exit code, bytes, and the error output."""
    more = {
        "backfill": ["--topics", "orders", "--parquet", str(out / "parquet")],
        "report": ["--out", str(out / "report")],
    }
    command = [sys.executable, "-m", "fetchproxy", job, "--store", archive.url, *more.get(job, [])]
    result = subprocess.run(
        [sys.executable, "-c", PEAK, *command], capture_output=True, text=True, check=True
    )
    code, size = result.stdout.split()
    return int(code), int(size), result.stderr


def archive_of(
    folder: Path, value: bytes | None, codec: int, part: str = "value"
) -> WrittenArchive:
    small = [made_batch(at, [Record()]) for at in (0, 2)]
    archive = WrittenArchive(folder)
    batches = [small[0], *([] if value is None else [batch_of(1, value, codec, part)]), small[1]]
    archive.add(batches)
    return archive


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The bytes that each command takes for two small records."""
    folder = tmp_path_factory.mktemp("usual")
    archive = archive_of(folder / "archive", None, 0)
    peak(archive, folder / "first", "backfill")  # compiles, which takes memory, too
    return {job: peak(archive, folder / job, job)[1] for job in JOBS}


@pytest.mark.slow
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_record_that_unpacks_to_half_a_gigabyte_costs_no_command_its_memory(
    tmp_path: Path, usual: dict[str, int], codec: int
) -> None:
    archive = archive_of(tmp_path / "archive", bytes(BOMB_BYTES), codec)
    for job in JOBS:
        code, size, errors = peak(archive, tmp_path / job, job)
        # What it unpacks before it gives up (64 MiB), and the stored batch.
        assert size < usual[job] + 128 * MIB, (job, size / MIB, usual[job] / MIB)
        assert code == (2 if job == "backfill" else 0), (job, errors)
        assert ("offsets 1 to 1 of orders-0 are left out" in errors) == (job == "backfill")
        assert ("--option maxUnpackedBytes=67108864" in errors) == (job == "backfill")


def _zeros() -> bytes:
    return bytes(HONEST_BYTES)


def _text() -> bytes:
    words = " ".join(str(random.Random(i).random()) for i in range(100_000)).encode()
    return (words * (HONEST_BYTES // len(words) + 1))[:HONEST_BYTES]


def _random() -> bytes:
    return random.Random(7).randbytes(HONEST_BYTES)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize(
    ("made", "part"),
    [
        (_zeros, "value"),
        (_text, "value"),
        (_random, "value"),
        (_random, "key"),
        (_random, "header"),
    ],
)
def test_a_large_record_passes_in_three_times_its_size(
    tmp_path: Path, usual: dict[str, int], codec: int, made: Callable[[], bytes], part: str
) -> None:
    """As it is stored, unpacked, and Arrow's column; then the column, Parquet's values and page."""
    large = made()
    archive = archive_of(tmp_path / "archive", large, codec, part)
    code, size, errors = peak(archive, tmp_path / "out", "backfill")
    assert code == 0, errors
    print(f"{(size - usual['backfill']) / HONEST_BYTES:.2f} times")
    assert size < usual["backfill"] + 3 * HONEST_BYTES, (size / MIB, usual["backfill"] / MIB)
    files = (tmp_path / "out").rglob("*.parquet")
    rows = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
    [row] = [row for row in rows if row["offset"] == 1]
    assert (row["headers"][0]["value"] if part == "header" else row[part]) == large
    assert len(rows) == 3
