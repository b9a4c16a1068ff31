"""What a large record takes in a Python worker of Spark, beside what the worker takes anyway."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from made_batches import Record, made_batch
from spark_program import SparkProgram
from test_memory_of_records import HONEST_BYTES, MIB, archive_of
from test_spark_versions import options_of
from written_archive import WrittenArchive

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES, RECORDS, RECORD_BYTES = 32, 256, 4096


def small_records(folder: Path) -> WrittenArchive:
    """As many bytes as the large record has."""
    value = random.Random(7).randbytes(RECORD_BYTES)
    archive = WrittenArchive(folder)
    records = [Record(None, value, 0)] * RECORDS
    archive.add(
        [made_batch(n * RECORDS, records, codec=4) for n in range(BATCHES)], interval_bytes=MIB
    )
    assert BATCHES * RECORDS * RECORD_BYTES == HONEST_BYTES
    return archive


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("kind", ["zeros", "random"])
def test_a_large_record_passes_in_three_times_its_size(
    any_spark: SparkProgram, tmp_path: Path, kind: str, codec: int
) -> None:
    """As it is stored, unpacked, and Arrow's column. Spark's own memory, in the JVM, is its own."""
    _, usual = any_spark.ask("worker_memory", options_of(small_records(tmp_path / "small")))
    large = bytes(HONEST_BYTES) if kind == "zeros" else random.Random(8).randbytes(HONEST_BYTES)
    archive = archive_of(tmp_path / "archive", large, codec)
    _, most = any_spark.ask("worker_memory", options_of(archive))
    print(f"{kind} {codec}: {(most - usual) / HONEST_BYTES:.2f} times; usual {usual >> 20} MiB")
    assert most < usual + 3 * HONEST_BYTES
