"""`fetchproxy resolve`: decides which log counts after a partition's log began again."""

from __future__ import annotations

from typing import Annotated

import typer

from fetchproxy.archive import managed_archive, wall_clock_ms
from fetchproxy.auditing.resolve import LogChoice, ResolutionPlan
from fetchproxy.auditing.resolve import resolve as resolve_partition
from fetchproxy.cli import options
from fetchproxy.cli.running import run_to_end, safe_one_line, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.metadata.leader_views import LeaderLog
from fetchproxy.model import TopicIdPartition
from fetchproxy.writing.own_archive import check_is_own_archive

_Partition = Annotated[
    str, typer.Argument(metavar="TOPIC-PARTITION", help="The partition, such as orders-0.")
]
Keep = Annotated[
    bool,
    typer.Option(
        "--keep",
        help="The archive counts up to its end: the leader's records below that offset are not "
        "archived. A log that --new-history has hidden is shown again.",
    ),
]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="The leader's log counts. The archive's log is deleted.")
]
NewHistory = Annotated[
    bool,
    typer.Option(
        "--new-history",
        help="The leader's log counts. The archive's log stays in the store, hidden from readers.",
    ),
]


@options.shares("bootstrap", "store")
def resolve(
    context: typer.Context,
    partition: _Partition,
    keep: Keep = False,
    truncate: Truncate = False,
    new_history: NewHistory = False,
    dry_run: options.DryRun = False,
) -> None:
    """Decide which log counts after a partition's log has started over, so that archiving can
    continue.

    The archiver has stopped such a partition (partition_stopped in its log) and deletes nothing of
    it. After this command it continues.
    """
    with users_errors():
        config = options.read_logged(context)
        flags = {
            LogChoice.KEEP: keep,
            LogChoice.TRUNCATE: truncate,
            LogChoice.NEW_HISTORY: new_history,
        }
        choices = [choice for choice, is_given in flags.items() if is_given]
        if len(choices) != 1:
            raise ConfigError("use one of --keep, --truncate and --new-history")
    plan = run_to_end(_resolve(config, partition, choices[0], dry_run))
    typer.echo(f"{partition}: {'would be' if dry_run else 'was'} resolved by --{choices[0].value}")
    for sentence in plan.sentences:
        typer.echo(f"  {safe_one_line(sentence)}")


async def _resolve(
    config: Config, partition: str, choice: LogChoice, dry_run: bool
) -> ResolutionPlan:
    topic, _, number = partition.rpartition("-")
    if not topic or not number.isdecimal():
        raise ConfigError(f"{partition!r} is not a partition; expected a form such as orders-0")
    async with managed_archive(config) as (storage, rlmm, cluster):
        await check_is_own_archive(storage, cluster)
        topic_info = await cluster.topic_by_name(topic, max_age_ms=0)
        tp = TopicIdPartition(topic_info.topic_id, topic_info.name, int(number))
        if tp.partition not in topic_info.leaders:
            raise ConfigError(f"the topic {topic} has no partition {number}")
        return await resolve_partition(
            tp,
            choice,
            LeaderLog(cluster),
            storage,
            rlmm,
            wall_clock_ms=wall_clock_ms,
            dry_run=dry_run,
        )
