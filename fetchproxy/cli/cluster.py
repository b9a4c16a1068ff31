"""`fetchproxy cluster`: what the archive has of a cluster besides records, for which it needs no
broker, and the restore of a lost cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

import typer

from fetchproxy.archive import StoredArchive, store_url, stored_archive, wall_clock_ms
from fetchproxy.cli import cluster_restore, options
from fetchproxy.cli.console_client import AsJson, json_text, table, terminal
from fetchproxy.cli.jobs import count
from fetchproxy.cli.journal import recover_journal
from fetchproxy.cli.running import run_to_end, safe_one_line, users_errors
from fetchproxy.cli.state_time import At, epoch_ms
from fetchproxy.cluster_restore.compacted_topics import CopyState, copy_lines, copy_state
from fetchproxy.cluster_state.comparison import (
    ComparedGroup,
    ComparedPartition,
    compared_groups,
    compared_partitions,
)
from fetchproxy.cluster_state.document import decode_state
from fetchproxy.cluster_state.kept_states import state_at
from fetchproxy.cluster_state.state import ClusterState
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError, CorruptSegment, ObjectNotFound, RemoteStorageError
from fetchproxy.metadata.archiver_positions import (
    RecoveryPoint,
    decode_recovery_point,
    of_all_archivers,
)
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.storage.archive_objects import ArchiveObjects, ClusterStateObject

_TOPICS_AT_ONCE = 16
_LISTED_MAX = 10  # of the kept states, and of the groups beyond the archive
_TOPIC_COLUMNS = (
    *(("topic", "topic"), ("partitions", "partitions"), ("replicas", "replication_factor")),
    *(("log end", "log_end_offset"), ("not archived", "not_archived")),
)
_PARTITION_COLUMNS = (
    *(("topic", "topic"), ("partition", "partition"), ("log start", "log_start_offset")),
    *(("log end", "log_end_offset"), ("archived end", "archived_end_offset")),
    ("not archived", "not_archived"),
)
_GROUP_COLUMNS = (
    *(("group", "group"), ("kind", "kind"), ("partitions", "partitions"), ("lag", "lag_offsets")),
    ("beyond the archive", "beyond_offsets"),
)

app = typer.Typer(
    help="Show what the archive has of the cluster besides records, and restore a lost cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("recover-journal")(recover_journal)
app.command("restore")(cluster_restore.restore_cluster)


class _StateAndArchive(NamedTuple):
    """What the command shows. `unread`: topics whose archive could not be read, and why."""

    states: Sequence[ClusterStateObject]
    state: ClusterState
    partitions: Sequence[ComparedPartition]
    groups: Sequence[ComparedGroup]
    unread: dict[str, str]
    recovery_points: Sequence[RecoveryPoint]
    copies: Sequence[CopyState]  # of compacted logs


@app.command("show")
@options.shares("store")
def show_cluster(
    context: typer.Context,
    at: At = None,
    topic: options.Topic = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of the cluster in the archive: topics, log ends, groups and rights.

    It also says what is missing. With --topic, it shows each partition of the topic.

    Exit codes: 0 done; 2 the archive has no state of that time, or cannot be read; 130
    interrupted.
    """
    with users_errors():
        config = options.read_logged(context)
        at_ms = wall_clock_ms() if at is None else epoch_ms(at)
    view = run_to_end(_read(config, at_ms))
    if as_json:
        typer.echo(json_text(state_document(view, topic)))
    else:
        _print(view, topic)


async def _read(config: Config, at_ms: int) -> _StateAndArchive:
    """Raises ConfigError, RemoteStorageError, CorruptSegment."""
    async with stored_archive(config) as archive:
        objects = archive.storage.objects
        states = await objects.list_cluster_states()
        stored = state_at(states, at_ms)
        if stored is None:
            raise ConfigError(_nothing(config, states, at_ms))
        state = decode_state(await objects.get_cluster_state(stored), stored.key)
        unread: dict[str, str] = {}
        copies: list[CopyState] = []
        ends = await _archived_ends(archive, state, unread, copies)
        points = await _recovery_points(objects)
    return _StateAndArchive(
        states,
        state,
        list(compared_partitions(state, ends)),
        list(compared_groups(state, ends)),
        unread,
        points,
        copies,
    )


async def _recovery_points(objects: ArchiveObjects) -> list[RecoveryPoint]:
    """As the running archivers with a journal have written them in the last seconds."""
    points: list[RecoveryPoint] = []
    async for stored in objects.list_archiver_positions():
        try:
            raw = await objects.get_archiver_positions(stored.key)
            point = decode_recovery_point(raw, stored.key)
        except (ObjectNotFound, CorruptSegment):
            continue  # it has ended meanwhile, or another version's is unreadable here
        points += [] if point is None else [point]
    return points


def _nothing(config: Config, states: Sequence[ClusterStateObject], at_ms: int) -> str:
    if states:
        return (
            f"the archive has no state of the cluster at {time_text(at_ms)} or before; the oldest "
            f"is of {time_text(states[0].read_at_ms)}"
        )
    return (
        f"the archive at {store_url(config)} has no state of a cluster: an archiver writes it "
        "after archive.cluster_state_interval_ms, unless that is 0 or archive.log_dirs is set"
    )


async def _archived_ends(
    archive: StoredArchive, state: ClusterState, unread: dict[str, str], copies: list[CopyState]
) -> dict[tuple[UUID, int], int]:
    """`unread`, `copies`: get what is found of them."""
    names = {topic.topic_id: topic.name for topic in state.topics}
    begun_at = asyncio.get_running_loop().time()
    ends: dict[tuple[UUID, int], int] = {}

    async def read(topic_id: UUID) -> None:
        try:
            views = await archive.rlmm.refresh_topic(topic_id, begun_at)
        except RemoteStorageError as error:
            if not error.may_be_of_object:
                raise
            unread[names[topic_id]] = str(error)
            return
        for number, view in views.items():
            if view.log_end_offset is not None:
                ends[topic_id, number] = view.log_end_offset
            copy = copy_state(view)
            copies.extend([] if copy is None else [copy])

    archived = {topic_id for _, topic_id in await archive.storage.objects.list_topics()}
    await for_each(sorted(archived & names.keys()), read, _TOPICS_AT_ONCE)
    return ends


# --- what is shown --------------------------------------------------------------------------------


def state_document(view: _StateAndArchive, topic: str | None) -> dict[str, object]:
    """For programs. `topic`: only this topic's partitions; groups have all of theirs."""
    state = view.state
    return {
        "cluster_id": state.cluster_id,
        "read_at_ms": state.read_at_ms,
        "kept_states_ms": [state.read_at_ms for state in view.states],
        "topics": [
            {
                "topic": state_topic.name,
                "partitions": state_topic.partition_count,
                "replication_factor": state_topic.replication_factor,
                "configs": dict(state_topic.configs),
                "inherited_configs": dict(state_topic.inherited),
            }
            for state_topic in state.topics
            if topic in (None, state_topic.name)
        ],
        "partitions": list(_partition_rows(view, topic)),
        "groups": list(_group_rows(view)),
        "beyond_archive": list(_beyond_rows(view)),
        "acls": len(state.acls),
        "quotas": len(state.quotas),
        "scram_users": list(state.scram_users),
        "broker_configs": dict(state.broker_configs),
        "producer_id_max": state.producer_id_max,
        "missing": [
            {"what": missing.what, "why": missing.why, "right": missing.right}
            for missing in state.missing
        ],
        "unread": view.unread,
        "recovery_points": [asdict(point) for point in view.recovery_points],
        "compacted_copies": [
            asdict(copy)
            for copy in sorted(view.copies, key=lambda copy: (copy.topic, copy.partition))
            if topic in (None, copy.topic)
        ],
    }


def _topic_rows(view: _StateAndArchive) -> Iterator[dict[str, Any]]:
    ends: dict[str, int] = {}
    left: dict[str, int] = {}
    for partition in view.partitions:
        ends[partition.topic] = ends.get(partition.topic, 0) + partition.log_end_offset
        left[partition.topic] = left.get(partition.topic, 0) + partition.not_archived
    for topic in view.state.topics:
        yield {
            "topic": topic.name,
            "partitions": topic.partition_count,
            "replication_factor": topic.replication_factor,
            "log_end_offset": ends.get(topic.name),
            "not_archived": left.get(topic.name),
        }


def _partition_rows(view: _StateAndArchive, topic: str | None) -> Iterator[dict[str, Any]]:
    for partition in view.partitions:
        if topic in (None, partition.topic):
            yield {
                "topic": partition.topic,
                "partition": partition.partition,
                "log_start_offset": partition.log_start_offset,
                "log_end_offset": partition.log_end_offset,
                "archived_end_offset": partition.archived_end_offset,
                "not_archived": partition.not_archived,
            }


def _group_rows(view: _StateAndArchive) -> Iterator[dict[str, Any]]:
    for group in view.groups:
        yield {
            "group": group.group.group_id,
            "kind": group.group.kind.value,
            "partitions": len(group.group.offsets),
            "lag_offsets": group.lag_offsets,
            "beyond_offsets": sum(beyond.offsets for beyond in group.beyond),
        }


def _beyond_rows(view: _StateAndArchive) -> Iterator[dict[str, Any]]:
    for group in view.groups:
        for partition in group.beyond:
            yield {
                "group": partition.group_id,
                "topic": partition.topic,
                "partition": partition.partition,
                "committed_offset": partition.offset,
                "archived_end_offset": partition.archived_end_offset,
                "offsets": partition.offsets,
            }


def time_text(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms since 1970"


def _print(view: _StateAndArchive, topic: str | None) -> None:
    state, console = view.state, terminal()
    _print_line(f"cluster {state.cluster_id or 'without an id'} at {time_text(state.read_at_ms)}")
    if topic is None:
        console.print(table(list(_topic_rows(view)), _TOPIC_COLUMNS))
    else:
        console.print(table(list(_partition_rows(view, topic)), _PARTITION_COLUMNS))
    if view.groups:
        console.print(table(list(_group_rows(view)), _GROUP_COLUMNS))
    for row in list(_beyond_rows(view))[:_LISTED_MAX]:
        _print_line(
            f"group {row['group']} is beyond the archive: {row['topic']}-{row['partition']} at "
            f"{row['committed_offset']:,}, archived up to {row['archived_end_offset']:,}, "
            f"{count(row['offsets'], 'offset')}"
        )
    _print_line(
        f"{count(len(state.acls), 'ACL')}, {count(len(state.quotas), 'quota')}, "
        f"{count(len(state.scram_users), 'SCRAM user')} (without keys), "
        f"{count(len(state.broker_configs), 'broker setting')}"
    )
    for missing in state.missing:
        right = f" (needs {missing.right})" if missing.right else ""
        _print_line(f"missing: {missing.what}: {missing.why}{right}")
    for line in copy_lines(copy for copy in view.copies if topic in (None, copy.topic)):
        _print_line(line)
    for name, error in view.unread.items():
        _print_line(f"the archive of {name} was not read: {error}")
    if (point := of_all_archivers(view.recovery_points)) is not None:
        _print_line(point.in_words())
    newest = [time_text(state.read_at_ms) for state in reversed(view.states)]
    more = f" and {len(newest) - _LISTED_MAX} more" if len(newest) > _LISTED_MAX else ""
    _print_line(f"{count(len(newest), 'kept state')}: {', '.join(newest[:_LISTED_MAX])}{more}")


def _print_line(text: str) -> None:
    typer.echo(safe_one_line(text))
