"""Small tables as Parquet without Spark, which names their types: figures, not records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from fetchproxy.jobs.backfill_files import OutputFolder

_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "date": pa.date32(),
}


def write_table(rows: Sequence[tuple[Any, ...]], schema: str, place: str) -> None:
    """Replaces the folder at a path or URI (file, s3, gs, hdfs). Raises OSError, ConfigError."""
    columns = [(name, _TYPES[kind]) for name, kind in map(str.split, schema.split(","))]
    fields = pa.schema(columns)
    values = [[row[i] for row in rows] for i in range(len(columns))]
    table = pa.table(
        [pa.array(value, field.type) for value, field in zip(values, fields, strict=True)],
        schema=fields,
    )
    folder = OutputFolder(place)
    path = folder.path("")
    if folder.fs.get_file_info(path).type == pafs.FileType.Directory:
        folder.fs.delete_dir(path)
    folder.fs.create_dir(path, recursive=True)
    pq.write_table(table, folder.path("part-0.parquet"), filesystem=folder.fs)
