"""What each PySpark sees of the data source, asked as its own Python workers ask, without a JVM:
`python interface_program.py STORE` prints a line of JSON. Not a test."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from pyspark_remotelog import DefaultSource

SCHEMA = StructType([StructField("offset", LongType()), StructField("partition", IntegerType())])
LIMITS = {
    "maxBytesPerTrigger": "25000",
    "maxOffsetsPerTrigger": "25",
    "minOffsetsPerTrigger": "25",
    "maxTriggerDelay": "1m",
}


def rows_of(reader: Any, partitions: Any) -> int:
    return sum(batch.num_rows for each in partitions for batch in reader.read(each))


def main(store: str) -> dict[str, Any]:
    options = {"store": store, "topics": "orders", "startingOffsets": "earliest"}

    def source(**more: str) -> Any:
        return DefaultSource(CaseInsensitiveDict({**options, **more}))

    reader = source().reader(SCHEMA)
    base = getattr(DataSourceReader, "pushFilters", None)
    own_method = getattr(type(reader), "pushFilters", None)
    stream = source().streamReader(SCHEMA)
    pickle.loads(pickle.dumps(stream))
    results: dict[str, Any] = {
        "rows": rows_of(reader, reader.partitions()),
        "pushes": own_method is not base,
    }
    start = stream.initialOffset()
    end = stream.latestOffset()
    results["stream"] = rows_of(stream, stream.partitions(start, end))
    stream.stop()
    return {**results, "limits": {name: limited(source, name) for name in LIMITS}}


def limited(source: Any, name: str) -> Any:
    """Rows of each batch of a query that ends with what is there, or why it is refused."""
    try:
        stream = source(**{name: LIMITS[name]}).streamReader(SCHEMA)
    except Exception as error:  # noqa: BLE001 - the asker is told
        return str(error.__cause__)
    from pyspark.sql.streaming.python_streaming_source_runner import READ_LIMIT_REGISTRY

    limit = stream.getDefaultReadLimit()
    limit_fields = {**dataclasses.asdict(limit), "_type": type(limit).__name__}
    stream.prepareForTriggerAvailableNow()
    at, sizes = stream.initialOffset(), []
    while (end := stream.latestOffset(at, READ_LIMIT_REGISTRY.get(limit_fields))) != at:
        sizes.append(rows_of(stream, stream.partitions(at, end)))
        at = end
    assert stream.reportLatestOffset() == at
    stream.stop()
    return sizes


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
