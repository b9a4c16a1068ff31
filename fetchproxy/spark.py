"""The archive on Spark, in one import: `import fetchproxy.spark`.

    orders = fetchproxy.spark.read_archive(spark, "s3://archive/kafka", "orders")

Spark finds the format `remotelog` by itself if this package is installed beside it. The import also
registers the format in the active session. Wrong options raise here, on the driver, before Spark
runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from fetchproxy.remotelog.archive_then_live import archive_then_live
from fetchproxy.remotelog.options import parse_options
from fetchproxy.remotelog.source import (
    ADMITS,
    NAME,
    check_batch,
    check_stream,
    register_source,
    schema_of,
)

__all__ = ["archive_then_live", "follow_archive", "read_archive", "register"]

# If a Python source does not declare support for availableNow queries, Spark ends such a query
# after the one batch that a crash has left. With this setting it goes on to the end.
_TO_THE_END = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
_session = SparkSession.getActiveSession()


def register(spark: SparkSession) -> None:
    """Register the format `remotelog`. Its streams with availableNow then run to their end."""
    register_source(spark)
    if not ADMITS:
        spark.conf.set(_TO_THE_END, "true")


def read_archive(
    spark: SparkSession,
    store: str,
    topics: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """The archived records of `topics` (names with commas, or None with topicPattern or assign).

    `columns`: only these columns are built. `options`: the options of the format. Dictionaries are
    written as JSON; pass names with dots as `**{"store.timeout_ms": 1000}`. Raises ConfigError.
    """
    source_options = _options(store, topics, options)
    check_batch(parse_options(source_options))
    return _loaded(spark, spark.read, source_options, columns)


def follow_archive(
    spark: SparkSession,
    store: str,
    topics: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """The same as a stream. Raises ConfigError."""
    source_options = _options(store, topics, options)
    check_stream(parse_options(source_options, streaming=True))
    return _loaded(spark, spark.readStream, source_options, columns)


def _loaded(
    spark: SparkSession,
    reader: Any,
    source_options: Mapping[str, str],
    columns: Sequence[str] | None,
) -> DataFrame:
    register(spark)
    named = reader.format(NAME).options(**source_options)
    return (named if columns is None else named.schema(schema_of(columns))).load()


def _options(store: str, topics: str | None, more: Mapping[str, Any]) -> dict[str, str]:
    source_options = {"store": store, "topics": topics, **more}
    return {name: _text(value) for name, value in source_options.items() if value is not None}


def _text(value: Any) -> str:
    """The value as the format's options are written."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value)


if _session is not None:
    register(_session)
