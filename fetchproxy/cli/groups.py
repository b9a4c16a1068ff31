"""`fetchproxy groups`: the groups' commits go with their clients, to an archive-only node and back.

The file is that of `archive_only.offsets_file`. A commit belongs to one incarnation of a topic, by
its id: a commit for another one is never written to a cluster.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.brokers.group_offsets import GroupOffset, commit_offsets, committed_offsets
from fetchproxy.cli import options
from fetchproxy.cli.jobs import count
from fetchproxy.cli.running import EXIT_FAULTS, run_to_end, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.observability.logs import configure_logging
from fetchproxy.serving.archive_only.committed_offsets import (
    CommittedOffset,
    OffsetKey,
    read_offsets,
    write_offsets,
)
from fetchproxy.tls.reloading import upstream_context

app = typer.Typer(
    help="Take the groups' committed offsets from a cluster to an archive-only node, and back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

OffsetsFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The file of archive_only.offsets_file.")
]


def _read(context: typer.Context) -> Config:
    """No archive is needed. Raises ConfigError."""
    config = options.read_config(context)
    configure_logging(config.log, sys.stderr)
    return config


@app.command("export")
@options.shares("bootstrap")
def export(context: typer.Context, file: OffsetsFile) -> None:
    """Write the committed offsets of all the cluster's groups to FILE, in place of its content.

    Groups with members count, too: run it again and again while the cluster lives. An archive-only
    node reads the file at its start.

    Exit codes: 0 written; 2 the cluster or the file cannot be used.
    """
    with users_errors():
        config = _read(context)
    offsets, left_out = run_to_end(_export(config, file))
    groups = len({key.group for key in offsets})
    typer.echo(f"{count(len(offsets), 'offset')} of {count(groups, 'group')} written to {file}")
    if left_out:
        typer.echo(f"left out, as the cluster does not have them: {', '.join(left_out)}")


async def _export(config: Config, file: Path) -> tuple[dict[OffsetKey, CommittedOffset], list[str]]:
    async with Cluster(config.cluster, tls=upstream_context(config.cluster, config.tls)) as cluster:
        found = await committed_offsets(cluster)
        topics = await cluster.topics_by_name({one.topic for one in found}, max_age_ms=0)
    offsets: dict[OffsetKey, CommittedOffset] = {}
    for one in found:
        topic = topics[one.topic]
        if isinstance(topic, TopicInfo):
            key = OffsetKey(one.group, one.topic, one.partition)
            offsets[key] = CommittedOffset(
                topic.topic_id, one.offset, one.leader_epoch, one.metadata
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

    Exit codes: 0 all are committed; 1 some are not, each with the reason; 2 the cluster or the file
    cannot be used.
    """
    with users_errors():
        config = _read(context)
        if not file.exists():
            raise ConfigError(f"{file}: no such file")
        offsets = read_offsets(file)
    done, faults = run_to_end(_import(config, offsets))
    typer.echo(f"offsets of {count(done, 'group')} committed")
    for fault in faults:
        typer.echo(fault, err=True)
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
        failed = await commit_offsets(cluster, to_commit)
    faults = [f"{name}: the cluster does not have the topic with this id" for name in others]
    faults += [f"group {group}: {error}" for group, error in failed.items()]
    return len(to_commit) - len(failed), sorted(faults)
