"""`fetchproxy cluster restore`: a lost cluster's topics, groups and rights in a new, real one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fetchproxy.archive import stored_archive, wall_clock_ms
from fetchproxy.cli import options
from fetchproxy.cli.console_client import AsJson, json_text
from fetchproxy.cli.running import EXIT_FAULTS, run_to_end, safe_one_line, users_errors
from fetchproxy.cli.state_time import At, epoch_ms
from fetchproxy.cluster_restore.archived_topics import read_archived_topics
from fetchproxy.cluster_restore.local_history import LocalAmount, parse_local_amount
from fetchproxy.cluster_restore.plan import RestorePlan, diff_lines, producer_id_blocks
from fetchproxy.cluster_restore.report import RestoreReport
from fetchproxy.cluster_restore.restore import ClusterRestore, RestoreOrder
from fetchproxy.cluster_state.document import decode_state
from fetchproxy.cluster_state.kept import state_at
from fetchproxy.cluster_state.state import ClusterState
from fetchproxy.config.schema import Config
from fetchproxy.config.values import HostPort, parse_bootstrap, parse_host_port
from fetchproxy.errors import ConfigError

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
        help="Address at which the new brokers connect to this command while it runs. Port 0: any "
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
        help="The new brokers get the last records themselves, as they were: of each partition so "
        "many bytes (10GiB), or those of the time before the state (7d). Default: none.",
    ),
]
BrokerUsers = Annotated[
    Path | None,
    typer.Option(
        "--broker-users",
        metavar="FILE",
        help="If the new brokers log in at each other (SASL): their user, in the lines that "
        "fetchproxy user prints. Default: cluster.sasl_username.",
    ),
]
StateFile = Annotated[
    Path,
    typer.Option(
        "--state",
        metavar="FILE",
        help="File that identifies this restore, so that another run can continue it.",
    ),
]


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
) -> RestoreOrder:
    """Reads the archive. Raises ConfigError, RemoteStorageError, CorruptSegment."""
    is_topic, is_group = _matcher("--topics", topics), _matcher("--groups", groups)
    addresses = () if controllers is None else tuple(_parsed("--controllers", controllers))
    try:
        address = parse_host_port(listen)
    except ValueError as error:
        raise ConfigError(f"--listen {listen}: {error}") from None

    async def read() -> RestoreOrder:
        async with stored_archive(config) as archive:
            objects = archive.storage.objects
            kept = await objects.list_cluster_states()
            if (found := state_at(kept, at_ms)) is None:
                raise ConfigError(
                    "the archive has no state of a cluster of that time: see "
                    "fetchproxy cluster show"
                )
            state = decode_state(await objects.get_cluster_state(found), found.key)
            amount = None if local is None else _amount(local, state.read_at_ms)
            archived = await read_archived_topics(archive, state, is_topic, amount)
        return RestoreOrder(
            state=_of_groups(state, is_group),
            topics=archived,
            listen=address,
            advertise=advertise,
            controllers=addresses,
            state_file=state_file,
            broker_users=broker_users,
        )

    return run_to_end(read())


def run_restore(config: Config, order: RestoreOrder, *, dry_run: bool, as_json: bool) -> None:
    """Prints the plan or the report. Exits with 1 for a report with faults."""
    work = ClusterRestore(config, order, _progress)
    if dry_run:
        _print_plan(run_to_end(work.plan()), order.state.producer_id_max, as_json)
        return
    report = run_to_end(work.run())
    _print_report(report, as_json)
    if not report.is_whole:
        raise typer.Exit(EXIT_FAULTS)


def _of_groups(state: ClusterState, is_group: Callable[[str], bool]) -> ClusterState:
    return replace(state, groups=tuple(g for g in state.groups if is_group(g.group_id)))


def _progress(line: str) -> None:
    typer.echo(safe_one_line(line), err=True)


def _print_plan(plan: RestorePlan, producer_id_max: int, as_json: bool) -> None:
    if not as_json:
        for line in diff_lines(plan, producer_id_max):
            typer.echo(safe_one_line(line))
        return
    rows = [
        {
            "topic": topic.name,
            "action": topic.action.value,
            "why": topic.why,
            "configs": dict(topic.archived.configs),
            "start_offsets": [one.start_offset for one in topic.archived.partitions],
            "end_offsets": [one.end_offset for one in topic.archived.partitions],
            "replicas": topic.replicas,
        }
        for topic in plan.topics
    ]
    blocks = producer_id_blocks(plan, producer_id_max)
    typer.echo(json_text({"topics": rows, "producer_id_blocks": blocks}))


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
    state_file: StateFile = Path("fetchproxy-restore.json"),
    local: Local = None,
    broker_users: BrokerUsers = None,
    dry_run: options.DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Restore topics, groups, ACLs and quotas in a new Apache Kafka cluster, with their offsets.

    Each new partition begins where its archive ends, so producers and groups continue at the
    offsets that they know. With --local, the new brokers also get the last records before that.
    Older records are read through fetchproxy. If the command was killed, run it again: it
    continues.

    Exit codes: 0 restored; 1 something was refused or differs, and is named; 2 archive or cluster
    cannot be used; 130 interrupted.
    """
    with users_errors():
        config = options.read_logged(context)
        at_ms = wall_clock_ms() if at is None else epoch_ms(at)
    with users_errors():
        order = order_of(
            config, at_ms, topics, groups, listen, advertise, controllers, state_file, local,
            broker_users,
        )  # fmt: skip
    run_restore(config, order, dry_run=dry_run, as_json=as_json)
