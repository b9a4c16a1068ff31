"""`fetchproxy backfill`: writes archived records to Parquet files or to another topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from fetchproxy.archive import store_url
from fetchproxy.cli import options
from fetchproxy.cli.jobs import (
    check_store,
    count,
    end_job,
    print_not_encrypted,
    read_job,
    run_job,
)
from fetchproxy.cli.running import users_errors
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError

if TYPE_CHECKING:
    from fetchproxy.jobs.backfill_files import Manifest

_Parquet = Annotated[
    str | None,
    typer.Option(
        envvar="FETCHPROXY_BACKFILL_PARQUET",
        metavar="URI",
        help="Folder for Parquet files by topic and date: a path or URI (file, s3, gs, hdfs) that "
        "every Spark executor can reach.",
    ),
]
ToTopic = Annotated[
    str | None,
    typer.Option(
        envvar="FETCHPROXY_BACKFILL_TO_TOPIC",
        metavar="TOPIC",
        help="Write the records to this existing topic of --bootstrap instead. Partition, key, "
        "value, headers and timestamp stay the same.",
    ),
]
_Topics = Annotated[
    str,
    typer.Option(
        envvar="FETCHPROXY_TOPICS",
        metavar="NAME[,…]",
        help="Archived topics (whole names).",
    ),
]
SourceSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        envvar="FETCHPROXY_BACKFILL_OPTION",
        metavar="NAME=VALUE",
        help='An option of the data source "remotelog", such as startingTimestamp=…, '
        "isolationLevel=read_uncommitted or corruptBatches=skip; may be repeated.",
    ),
]
RangeBytes = Annotated[
    int,
    typer.Option(
        envvar="FETCHPROXY_BACKFILL_RANGE_BYTES",
        min=1,
        help="How many stored bytes one task reads; the files get about the same size.",
    ),
]
Append = Annotated[
    bool,
    typer.Option(
        "--append",
        envvar="FETCHPROXY_BACKFILL_APPEND",
        help="With --to-topic: allow a topic that already has other records.",
    ),
]
Compression = Annotated[
    str,
    typer.Option(
        envvar="FETCHPROXY_BACKFILL_COMPRESSION",
        help="Compression of the Parquet files: snappy, zstd, gzip, lz4 or none.",
    ),
]


@options.shares("store", "bootstrap", spark=True)
def backfill(
    context: typer.Context,
    topics: _Topics,
    parquet: _Parquet = None,
    to_topic: ToTopic = None,
    append: Append = False,
    source_settings: SourceSettings = None,
    range_bytes: RangeBytes = 128 * 1024 * 1024,
    compression: Compression = "snappy",
) -> None:
    """Write archived records to Parquet or to another topic; read_committed by default.

    If a run is interrupted, the next run continues from there. A later run adds records that have
    been archived or repaired since. Exit code 2 if a part could not be read or written; the other
    parts are complete.
    """
    config = read_job(context, "pyarrow", "numba")
    with users_errors():
        source = source_options(config, topics, source_settings or ())
        if (parquet is None) == (to_topic is None):
            raise ConfigError("use either --parquet or --to-topic")
    check_store(config, names_in(topics))
    from fetchproxy.jobs import backfill as job
    from fetchproxy.jobs import backfill_topic as topic_job

    if parquet is not None:
        outcome, ranges_before = run_job(
            context,
            config,
            lambda runner: job.backfill(
                runner,
                source,
                parquet,
                range_bytes_max=range_bytes,
                compression=compression,
            ),
            unit=_records,
        )
        _print_written(outcome.results, ranges_before)
        end_job(outcome.failures)
        return
    copy_outcome = run_job(
        context,
        config,
        lambda runner: topic_job.backfill_topic(
            runner, config, source, to_topic or "", append=append
        ),
        unit=_records,
    )
    for partition in copy_outcome.results:
        print_not_encrypted(partition.not_encrypted)
        left_out = skipped_records({topics: (partition.skipped_records, partition.faults)})
        typer.echo(
            f"{to_topic}-{partition.partition}: {partition.records:,} records, up to offset "
            f"{partition.source_end} of the source{left_out}"
        )
    end_job(copy_outcome.failures)


def _print_written(manifests: Sequence[Manifest], ranges_before: int) -> None:
    rows = sum(manifest.rows for manifest in manifests)
    size = decimal(sum(manifest.size_bytes for manifest in manifests))
    ranges = count(len(manifests), "range")
    text_before = f"{count(ranges_before, 'range')} there before"
    left_out: dict[str, tuple[int, int]] = {}
    for manifest in manifests:
        records, faults = left_out.get(manifest.range.topic, (0, 0))
        left_out[manifest.range.topic] = (
            records + manifest.skipped_records,
            faults + manifest.faults,
        )
    typer.echo(
        f"{rows:,} records in {ranges} written, {size} of Parquet; "
        f"{text_before}{skipped_records(left_out)}"
    )


def names_in(topics: str) -> list[str]:
    return [name.strip() for name in topics.split(",") if name.strip()]


def skipped_records(records: Mapping[str, tuple[int, int]]) -> str:
    """`records`: by topic, the records passed over, and the batches and objects that held them."""
    conditions = [
        f"{topic}: up to {count(skipped_count, 'record')} of "
        f"{count(faults, 'damaged or missing object')}"
        for topic, (skipped_count, faults) in sorted(records.items())
        if faults
    ]
    return f"; skipped: {', '.join(conditions)}" if conditions else ""


def source_options(config: Config, topics: str, more: Iterable[str]) -> dict[str, str]:
    """The data source's options: store, topics, then those of `more`. Raises ConfigError."""
    store_settings = config.store.model_dump(mode="json", exclude={"url"}, exclude_none=True)
    source = {f"store.{key}": str(value) for key, value in store_settings.items()}
    source |= {
        "store": store_url(config),
        "topics": topics,
        "isolationLevel": "read_committed",
    }
    for text in more:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--option {text!r}: expected NAME=VALUE")
        known = next((key for key in source if key.lower() == name.lower()), name)
        source[known] = value
    return source


def _records(size: float) -> str:
    return f"{size:,.0f} records"
