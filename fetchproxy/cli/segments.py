"""`fetchproxy segments` and `report`: the archive's content and problems. They need no broker."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypedDict

import typer
from rich.filesize import decimal
from rich.table import Table

from fetchproxy.archive import store_url, stored_archive
from fetchproxy.cli import options
from fetchproxy.cli.console_client import terminal
from fetchproxy.cli.jobs import count, end_job, run_over
from fetchproxy.cli.running import run_to_end, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.errors import RemoteStorageError
from fetchproxy.jobs import report as job
from fetchproxy.jobs.runner import Runner, not_listed
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import RemoteLogSegmentMetadata
from fetchproxy.observability.health import Condition
from fetchproxy.segments.object_keys import uuid_text
from fetchproxy.storage.listings import Unlisted
from fetchproxy.writing.archive_health import (
    mirror_in_words,
    partition_health,
    with_published_conditions,
)
from fetchproxy.writing.published_conditions import read_published_conditions

AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        envvar="FETCHPROXY_JSON",
        help="Print a JSON list of the segments, for programs; the rest goes to stderr.",
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        envvar="FETCHPROXY_REPORT_OUT",
        metavar="FOLDER",
        help="Folder for report.html, and for the tables unless --parquet is given.",
    ),
]
_Parquet = Annotated[
    str | None,
    typer.Option(
        envvar="FETCHPROXY_REPORT_PARQUET",
        metavar="URI",
        help="Other folder for the tables: a path or URI. With --spark, a URI that all executors "
        "can reach.",
    ),
]


class SegmentRow(TypedDict):
    """`last_offset` is inclusive; `topic_id` is in the form that Kafka's tools print.

    `log_start_offset`: the partition's log start offset. Records below it are deleted and not
    served. `put_aside`: `fetchproxy resolve` has hidden the segment: another log counts. Not served
    either.
    """

    topic: str
    topic_id: str
    partition: int
    base_offset: int
    last_offset: int
    size_bytes: int
    state: str
    log_start_offset: int | None
    put_aside: bool


@options.shares("store")
def segments(
    context: typer.Context,
    topic: options.Topic = None,
    as_json: AsJson = False,
) -> None:
    """List the archived segments, and the archive's known problems and notes.

    This command reads only metadata. `fetchproxy verify` checks each byte.

    Exit codes: 0 success; 2 the archive is empty, or some of it could not be read, with the reason
    on stderr; 130 interrupted.
    """
    with users_errors():
        config = options.read_logged(context)
    failing: Unlisted = {}
    rows, published_conditions = run_to_end(read_archive(config, topic, failing))
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    elif rows:
        _print_table(rows)
    for condition in published_conditions:
        typer.echo(str(condition), err=as_json)
    if failing:
        end_job(not_listed(failing))
    if not (rows or published_conditions):
        with users_errors():
            raise options.empty_archive_error(config, topic)


async def read_archive(
    config: Config, topic: str | None, failing: Unlisted | None = None
) -> tuple[list[SegmentRow], tuple[Condition, ...]]:
    """The segments by topic, partition and offset. `failing`: for the partitions and topics whose
    folder alone cannot be listed. Raises RemoteStorageError, ConfigError.
    """
    rows: list[SegmentRow] = []
    conditions: list[Condition] = []
    unlisted: Unlisted | None = None if failing is None else {}
    async with stored_archive(config) as (storage, rlmm):
        for tp in await rlmm.list_partitions(unlisted):
            if topic is None or tp.topic == topic:
                try:
                    conditions += await partition_health(storage.objects, rlmm, tp)
                    view = await rlmm.refresh(tp, float("-inf"))  # the view that was just read
                except RemoteStorageError as error:
                    if failing is None or not error.may_be_of_object:
                        raise
                    failing[str(tp)] = error
                    continue
                segments = rlmm.list_remote_log_segments(tp)
                rows += (_row(segment, view) for segment in segments)
        published = await read_published_conditions(storage.objects)
        identity = await storage.identity.look()
    if identity is not None and identity.is_mirror:
        conditions.append(mirror_in_words(store_url(config)))
    if failing is not None:
        failing |= {
            name: error for name, error in (unlisted or {}).items() if topic in (None, name)
        }
    rows.sort(key=lambda row: (row["topic"], row["topic_id"], row["partition"], row["base_offset"]))
    return rows, with_published_conditions(conditions, published.values(), topic)


def _row(segment: RemoteLogSegmentMetadata, view: PartitionView) -> SegmentRow:
    tp = segment.topic_id_partition
    return {
        "topic": tp.topic,
        "topic_id": uuid_text(tp.topic_id),
        "partition": tp.partition,
        "base_offset": segment.start_offset,
        "last_offset": segment.end_offset,
        "size_bytes": segment.segment_size_bytes,
        "state": segment.state.name,
        "log_start_offset": view.log_start_offset,
        "put_aside": not view.history.shows(segment),
    }


def _print_table(rows: Iterable[SegmentRow]) -> None:
    console = terminal()
    table = Table(box=None, pad_edge=False)
    table.add_column("topic", overflow="fold")
    for name in ("partition", "base offset", "last offset", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    size_bytes = 0
    for row in rows:
        size_bytes += row["size_bytes"]
        offsets = (str(row[name]) for name in ("partition", "base_offset", "last_offset"))
        start = row["log_start_offset"]
        deleted = start is not None and row["last_offset"] < start
        state = row["state"]
        if row["put_aside"]:
            state += ", put aside"
        elif deleted:
            state += ", below the log start"
        table.add_row(row["topic"], *offsets, decimal(row["size_bytes"]), state)
    console.print(table)
    console.print(f"{count(table.row_count, 'segment')}, {decimal(size_bytes)}")


@options.shares("store", spark=True)
def report(
    context: typer.Context,
    out: Out = Path("archive-report"),
    parquet: _Parquet = None,
    topic: options.Topic = None,
) -> None:
    """Report size, records, age, compression and growth by topic and partition, with a forecast.

    Exit code 2 if a partition could not be read; the report covers the others.
    """

    def work(runner: Runner, config: Config, topic: str | None) -> job.Reported:
        outcome = job.report(runner, config, topic=topic)
        outcome.write(out, parquet)
        return outcome

    done = run_over(context, topic, work, "pyarrow")
    size = sum(figure.size_bytes for figure in done.figures)
    typer.echo(f"{count(len(done.figures), 'partition')}, {decimal(size)}: {out / 'report.html'}")
    end_job(done.failures)
