"""`fetchproxy groups`: shows groups. Their commits go with their clients, to an archive-only node
back.

The file is that of `archive_only.offsets_file`. A commit belongs to one incarnation of a topic, by
its id: a commit for another one is never written to a cluster.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.brokers.group_offsets import GroupOffset, commit_offsets, committed_offsets
from fetchproxy.cli import options
from fetchproxy.cli.console_client import (
    AsJson,
    ConsoleClient,
    ConsoleUrl,
    JsonRow,
    TokenFile,
    print_rows,
)
from fetchproxy.cli.jobs import count
from fetchproxy.cli.running import EXIT_FAULTS, run_to_end, safe_one_line, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.model import LogOffsets, TopicIdPartition
from fetchproxy.observability.logs import configure_logging
from fetchproxy.serving.archive_only.committed_offsets import (
    CommittedOffset,
    OffsetKey,
    read_offsets,
    write_offsets,
)
from fetchproxy.tls.reloading import upstream_context

_LISTED = (
    *(("group", "group"), ("clients", "clients"), ("served", "served_bytes")),
    *(("from store", "store_bytes"), ("GET", "gets"), ("LIST", "lists")),
    *(("PUT", "puts"), ("throttled s", "throttle_seconds"), ("USD", "usd")),
)
_LISTED_BY_BROKERS = (("group", "group"), ("partitions", "partitions"), ("lag", "lag_offsets"))
_POSITIONS = (
    *(("topic", "topic"), ("partition", "partition"), ("committed", "committed_offset")),
    *(("log start", "log_start_offset"), ("log end", "log_end_offset"), ("lag", "lag_offsets")),
    ("reads from", "reads_from"),
)

app = typer.Typer(
    help="Show consumer groups, and move their committed offsets to an archive-only node and back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group's whole name.")]
OffsetsFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The file of archive_only.offsets_file.")
]


def _read_config(context: typer.Context) -> Config:
    """No archive is needed. Raises ConfigError."""
    config = options.read_config(context)
    configure_logging(config.log, sys.stderr)
    return config


@app.command("list")
@options.shares("bootstrap")
def list_groups(
    context: typer.Context,
    console_url: ConsoleUrl = None,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> None:
    """List consumer groups: of a running process, with their clients' cost, or of the cluster.

    With --console, it lists the groups of the process's clients. Without it, it lists all groups of
    the cluster that have committed offsets, with their lag.

    Exit codes: 0 done; 2 the console or the cluster does not respond.
    """
    rows: Sequence[JsonRow]
    with users_errors():
        if console_url is not None:
            rows = ConsoleClient(console_url, token_file).rows("/api/groups")
        else:
            config = _read_config(context)
    if console_url is None:
        rows = list(by_group(run_to_end(_positions(config, None))))
    columns = _LISTED_BY_BROKERS if console_url is None else _LISTED
    print_rows(rows, columns, json=json)


@app.command("show")
@options.shares("bootstrap")
def show_group(context: typer.Context, group: GroupName, json: AsJson = False) -> None:
    """Show how far GROUP has read, and whether its next records are in the archive or at a broker.

    --bootstrap must name brokers, not the proxy: through the proxy, archive and brokers look like
    one log, so `reads from` would always be "brokers".

    Exit codes: 0 done; 2 the cluster does not respond, or has no commits of the group.
    """
    with users_errors():
        config = _read_config(context)
    rows = run_to_end(_positions(config, group))
    with users_errors():
        if not rows:
            raise ConfigError(f"the cluster has no committed offsets of group {group}")
    print_rows(rows, _POSITIONS, json=json)


async def _positions(config: Config, group: str | None) -> list[dict[str, Any]]:
    """By group, topic and partition, with the edges of the brokers' logs. Raises ClusterError."""
    async with Cluster(config.cluster, tls=upstream_context(config.cluster, config.tls)) as cluster:
        offsets = [
            committed
            for committed in await committed_offsets(cluster)
            if group in (None, committed.group)
        ]
        topics = await cluster.topics_by_name({offset.topic for offset in offsets}, max_age_ms=0)
        tps = {
            (name, number): TopicIdPartition(topic.topic_id, name, number)
            for name, topic in topics.items()
            if isinstance(topic, TopicInfo)
            for number in topic.leaders
        }
        now = asyncio.get_running_loop().time()
        await cluster.fetch_log_offsets(list(tps.values()), not_older_than=now)
        rows = []
        for position in sorted(offsets):
            tp = tps.get((position.topic, position.partition))
            log_offsets = None if tp is None else cluster.cached_log_offsets(tp)
            rows.append(position_row(position, log_offsets))
    return rows


def position_row(committed: GroupOffset, log_offsets: LogOffsets | None) -> dict[str, Any]:
    """One commit and the edges of its log. None: the brokers do not tell them. Pure."""
    start = None if log_offsets is None else log_offsets.log_start_offset
    end = None if log_offsets is None else log_offsets.high_watermark
    is_archived = start is not None and committed.offset < start
    return {
        "group": committed.group,
        "topic": committed.topic,
        "partition": committed.partition,
        "committed_offset": committed.offset,
        "log_start_offset": start,
        "log_end_offset": end,
        "lag_offsets": None if end is None else max(0, end - committed.offset),
        "reads_from": None if start is None else "archive" if is_archived else "brokers",
    }


def by_group(rows: Iterable[JsonRow]) -> Iterator[dict[str, Any]]:
    """The sums of each group. A lag that is not known everywhere is not known at all. Pure."""
    for name, group_rows in groupby(rows, lambda row: str(row["group"])):
        lags = [row["lag_offsets"] for row in group_rows]
        all_known = None not in lags
        yield {
            "group": name,
            "partitions": len(lags),
            "lag_offsets": sum(lags) if all_known else None,
        }


@app.command("export")
@options.shares("bootstrap")
def export(context: typer.Context, file: OffsetsFile) -> None:
    """Write the committed offsets of all groups of the cluster to FILE, replacing its content.

    Groups with members are included, so run it regularly while the cluster works. An archive-only
    node reads the file when it starts.

    Exit codes: 0 written; 2 the cluster or the file cannot be used.
    """
    with users_errors():
        config = _read_config(context)
    offsets, left_out = run_to_end(_export(config, file))
    groups = len({key.group for key in offsets})
    typer.echo(f"{count(len(offsets), 'offset')} of {count(groups, 'group')} written to {file}")
    if left_out:
        typer.echo(f"left out, because the cluster does not have them: {', '.join(left_out)}")


async def _export(config: Config, file: Path) -> tuple[dict[OffsetKey, CommittedOffset], list[str]]:
    async with Cluster(config.cluster, tls=upstream_context(config.cluster, config.tls)) as cluster:
        positions = await committed_offsets(cluster)
        topics = await cluster.topics_by_name(
            {position.topic for position in positions}, max_age_ms=0
        )
    offsets: dict[OffsetKey, CommittedOffset] = {}
    for position in positions:
        topic = topics[position.topic]
        if isinstance(topic, TopicInfo):
            key = OffsetKey(position.group, position.topic, position.partition)
            offsets[key] = CommittedOffset(
                topic.topic_id, position.offset, position.leader_epoch, position.metadata
            )
    try:
        write_offsets(file, offsets)
    except OSError as error:
        raise ConfigError(f"{file}: cannot write: {error.strerror}") from error
    return offsets, sorted(name for name, t in topics.items() if not isinstance(t, TopicInfo))


@app.command("import")
@options.shares("bootstrap")
def import_(context: typer.Context, file: OffsetsFile) -> None:
    """Commit the offsets of FILE to the cluster, for groups without members.

    Exit codes: 0 all are committed; 1 some are not, and the reason of each is printed; 2 the
    cluster or the file cannot be used.
    """
    with users_errors():
        config = _read_config(context)
        if not file.exists():
            raise ConfigError(f"{file}: no such file")
        offsets = read_offsets(file)
    committed_count, faults = run_to_end(_import(config, offsets))
    typer.echo(f"offsets of {count(committed_count, 'group')} committed")
    for fault in faults:
        typer.echo(safe_one_line(fault), err=True)
    if faults:
        raise typer.Exit(EXIT_FAULTS)


async def _import(
    config: Config, offsets: dict[OffsetKey, CommittedOffset]
) -> tuple[int, list[str]]:
    async with Cluster(config.cluster, tls=upstream_context(config.cluster, config.tls)) as cluster:
        topics = await cluster.topics_by_name({key.topic for key in offsets}, max_age_ms=0)
        to_commit: dict[str, list[GroupOffset]] = {}
        others: set[str] = set()
        for key, value in offsets.items():
            topic = topics[key.topic]
            if not isinstance(topic, TopicInfo) or topic.topic_id != value.topic_id:
                others.add(key.topic)
                continue
            committed = GroupOffset(*key, value.offset, value.leader_epoch, value.metadata)
            to_commit.setdefault(key.group, []).append(committed)
        failed_commits = await commit_offsets(cluster, to_commit)
    faults = [f"{name}: the cluster does not have the topic with this id" for name in others]
    faults += [f"group {group}: {error}" for group, error in failed_commits.items()]
    return len(to_commit) - len(failed_commits), sorted(faults)
