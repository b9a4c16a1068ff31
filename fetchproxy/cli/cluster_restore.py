"""`fetchproxy cluster restore`: a lost cluster's topics, groups and rights in a new, real one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from fetchproxy.archive import StoredArchive, stored_archive, wall_clock_ms
from fetchproxy.auditing.journal_ends import read_journal_ends
from fetchproxy.cli import options
from fetchproxy.cli.console_client import AsJson, json_text
from fetchproxy.cli.jobs import count
from fetchproxy.cli.journal import segments_of_journal
from fetchproxy.cli.running import EXIT_FAULTS, run_to_end, safe_one_line, users_errors
from fetchproxy.cli.state_time import At, epoch_ms
from fetchproxy.cluster_restore.archived_topics import read_archived_topics
from fetchproxy.cluster_restore.local_history import LocalAmount, parse_local_amount
from fetchproxy.cluster_restore.padding_plan import offsets_to_pad, padding_text
from fetchproxy.cluster_restore.plan import (
    RestoreBy,
    RestorePlan,
    beyond_state,
    diff_lines,
    logs_that_end,
    producer_id_blocks,
)
from fetchproxy.cluster_restore.report import RestoreReport
from fetchproxy.cluster_restore.restore import ClusterRestore, RestoreOrder
from fetchproxy.cluster_restore.state_file import read_restore_job
from fetchproxy.cluster_state.document import decode_state
from fetchproxy.cluster_state.kept_states import state_at
from fetchproxy.cluster_state.state import ClusterState
from fetchproxy.config.schema import Config
from fetchproxy.config.values import HostPort, parse_bootstrap, parse_host_port
from fetchproxy.errors import ConfigError
from fetchproxy.model import TopicIdPartition

TopicPattern = Annotated[
    str, typer.Option("--topics", metavar="REGEX", help="Only topics whose whole name matches.")
]
GroupPattern = Annotated[
    str, typer.Option("--groups", metavar="REGEX", help="Only groups whose whole name matches.")
]
Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="Address at which the new brokers connect to this command while it runs. Port 0: a "
        "free port.",
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        "--advertise",
        metavar="HOST",
        help="The host name that the brokers connect to. Default: the host of --listen.",
    ),
]
Controllers = Annotated[
    str | None,
    typer.Option(
        "--controllers",
        metavar="HOST:PORT[,…]",
        help="Addresses of the controllers. Default: the brokers name them (Kafka 3.9 and newer).",
    ),
]
Local = Annotated[
    str | None,
    typer.Option(
        "--local",
        metavar="BYTES|AGE",
        help="Also give the new brokers the last archived records of each partition: this many "
        "bytes (10GiB), or those of this much time before the state (7d). Default: none.",
    ),
]
BrokerUsers = Annotated[
    Path | None,
    typer.Option(
        "--broker-users",
        metavar="FILE",
        help="If the new brokers use SASL among themselves: file with their user, as fetchproxy "
        "user prints it. Default: cluster.sasl_username.",
    ),
]
By = Annotated[
    RestoreBy,
    typer.Option(
        "--by",
        help="How partitions get their start offsets. phantoms: from temporary leaders; this needs "
        "access to the controllers. padding: from empty records, which are then deleted; this "
        "needs only CREATE, WRITE and DELETE on the topics, and takes longer.",
    ),
]
StateFile = Annotated[
    Path,
    typer.Option(
        "--state",
        metavar="FILE",
        help="File that identifies this restore, so that a later run can continue it.",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Take the archive over even if an archiver of the lost cluster is still running.",
    ),
]


class _Chosen(NamedTuple):
    """`at_state`: partitions begin at the ends of the state."""

    at_ms: int
    at_state: bool


def _state_time(at: str | None, state_file: Path) -> _Chosen:
    """Without --at: the state of an unfinished restore, or the newest. Raises ConfigError."""
    if at is not None:
        return _Chosen(epoch_ms(at), True)
    job = read_restore_job(state_file)
    if job is not None and job.is_unfinished:
        return _Chosen(job.read_at_ms, job.at_state)
    return _Chosen(wall_clock_ms(), False)


def order_of(
    config: Config,
    at_ms: int,
    topics: str,
    groups: str,
    listen: str,
    advertise: str | None,
    controllers: str | None,
    state_file: Path,
    local: str | None,
    broker_users: Path | None,
    by: RestoreBy = RestoreBy.PHANTOMS,
    *,
    at_state: bool = False,
    dry_run: bool = False,
) -> RestoreOrder:
    """Reads the archive; makes segments of its journal before, if it is not a `dry_run`.
    `at_state`: partitions begin at the ends of the state. Raises ConfigError, RemoteStorageError,
    CorruptSegment, OSError.
    """
    is_topic, is_group = _matcher("--topics", topics), _matcher("--groups", groups)
    addresses = () if controllers is None else tuple(_parsed("--controllers", controllers))
    try:
        address = parse_host_port(listen)
    except ValueError as error:
        raise ConfigError(f"--listen {listen}: {error}") from None

    async def read() -> RestoreOrder:
        faults = [] if dry_run else await _recover_journal(config)
        async with stored_archive(config) as archive:
            objects = archive.storage.objects
            states = await objects.list_cluster_states()
            if (stored := state_at(states, at_ms)) is None:
                raise ConfigError(
                    "the archive has no state of a cluster of that time: see "
                    "fetchproxy cluster show"
                )
            state = decode_state(await objects.get_cluster_state(stored), stored.key)
            amount = None if local is None else _amount(local, state.read_at_ms)
            journal = await _journal_ends(archive) if dry_run else {}
            archived = await read_archived_topics(
                archive, state, is_topic, amount, journal, at_state=at_state,
                gives_records=by is not RestoreBy.PADDING,
            )  # fmt: skip
        return RestoreOrder(
            state=_of_groups(state, is_group),
            topics=archived,
            listen=address,
            advertise=advertise,
            controllers=addresses,
            state_file=state_file,
            broker_users=broker_users,
            by=by,
            at_state=at_state,
            archive_faults=tuple(faults),
        )

    return run_to_end(read())


async def _recover_journal(config: Config) -> list[str]:
    """What could not be recovered, in words."""
    async with stored_archive(config) as archive:
        journal = await read_journal_ends(archive.storage.objects, archive.rlmm)
    if not journal.objects:
        return list(journal.faults)
    recovered = await segments_of_journal(config)
    gained = [
        recovered_log
        for recovered_log in recovered.logs
        if recovered_log.end != recovered_log.end_before
    ]
    if gained:
        _progress(f"step: journal: it had more records of {count(len(gained), 'partition')}")
    return recovered.all_faults


async def _journal_ends(archive: StoredArchive) -> Mapping[TopicIdPartition, int]:
    journal = await read_journal_ends(archive.storage.objects, archive.rlmm)
    if journal.ends:
        _progress(
            f"the journal has records of {count(len(journal.ends), 'partition')} beyond the "
            "archive: a restore first turns them into segments, and the plan includes them"
        )
    for fault in journal.faults:
        _progress(fault)
    return journal.ends


def run_restore(config: Config, order: RestoreOrder, *, dry_run: bool, as_json: bool) -> None:
    """Prints the plan or the report. Exits with 1 for a report with faults."""
    work = ClusterRestore(config, order, _progress)
    if dry_run:
        _print_plan(run_to_end(work.plan()), order, as_json)
        return
    report = run_to_end(work.run())
    _print_report(report, as_json)
    if not report.is_whole:
        raise typer.Exit(EXIT_FAULTS)


def _of_groups(state: ClusterState, is_group: Callable[[str], bool]) -> ClusterState:
    return replace(state, groups=tuple(g for g in state.groups if is_group(g.group_id)))


def _progress(line: str) -> None:
    typer.echo(safe_one_line(line), err=True)


def _print_plan(plan: RestorePlan, order: RestoreOrder, as_json: bool) -> None:
    producer_id_max = order.state.producer_id_max
    if not as_json:
        text = padding_text if order.by is RestoreBy.PADDING else None
        for line in diff_lines(plan, producer_id_max, text):
            typer.echo(safe_one_line(line))
        return
    rows = [
        {
            "topic": topic.name,
            "action": topic.action.value,
            "why": topic.why,
            "configs": dict(topic.archived.configs),
            "start_offsets": [partition.start_offset for partition in topic.archived.partitions],
            "end_offsets": [partition.end_offset for partition in topic.archived.partitions],
            "replicas": topic.replicas,
            **({"padding_offsets": offsets_to_pad(topic)} if topic.log_ends else {}),
        }
        for topic in plan.topics
    ]
    document = {
        "topics": rows,
        "producer_id_blocks": producer_id_blocks(plan, producer_id_max),
        "beyond_state": list(beyond_state(plan)),
        "logs_that_end": logs_that_end(plan),
        "notes": plan.notes,
        "archive": plan.archive,
    }
    typer.echo(json_text(document))


def _print_report(report: RestoreReport, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(report.as_json()))
        return
    for line in report.lines():
        typer.echo(safe_one_line(line))


def _matcher(option: str, pattern: str) -> Callable[[str], bool]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{option} {pattern}: not a regular expression: {error}") from None
    return lambda name: compiled.fullmatch(name) is not None


def _amount(text: str, read_at_ms: int) -> LocalAmount:
    try:
        return parse_local_amount(text, read_at_ms)
    except ValueError as error:
        raise ConfigError(f"--local {text}: {error}") from None


def _parsed(option: str, addresses: str) -> list[HostPort]:
    try:
        return list(parse_bootstrap(addresses))
    except ValueError as error:
        raise ConfigError(f"{option} {addresses}: {error}") from None


@options.shares("store", "bootstrap")
def restore_cluster(
    context: typer.Context,
    at: At = None,
    topics: TopicPattern = ".*",
    groups: GroupPattern = ".*",
    listen: Listen = "127.0.0.1:0",
    advertise: Advertise = None,
    controllers: Controllers = None,
    by: By = RestoreBy.PHANTOMS,
    state_file: StateFile = Path("fetchproxy-restore.json"),
    local: Local = None,
    broker_users: BrokerUsers = None,
    take_over: TakeOver = False,
    dry_run: options.DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Restore topics, groups, ACLs and quotas in a new Apache Kafka cluster, with their offsets.

    Each new partition begins where its archive ends (with --at: where it ended at that time), so
    producers and groups continue at the offsets that they know. If there is a journal, its records
    become segments first. With --local, the new brokers also get the last archived records.
    fetchproxy serves all older ones: from now on the archive belongs to the new cluster, and
    refuses the old one. If the command was killed, run it again: it continues.

    Exit codes: 0 restored, even if the report names lost records; 1 a topic was refused, or
    something is wrong; 2 the archive or the cluster cannot be used; 130 interrupted.
    """
    with users_errors():
        config = options.read_logged(context)
        if by is RestoreBy.PADDING and local is not None:
            raise ConfigError("--local cannot be combined with --by padding")
        chosen = _state_time(at, state_file)
        order = order_of(
            config, chosen.at_ms, topics, groups, listen, advertise, controllers, state_file, local,
            broker_users, by, at_state=chosen.at_state, dry_run=dry_run,
        )  # fmt: skip
    order = replace(order, take_over=take_over)
    run_restore(config, order, dry_run=dry_run, as_json=as_json)
