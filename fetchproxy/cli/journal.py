"""`fetchproxy cluster recover-journal`: segments of the records that only a journal has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import typer

from fetchproxy.archive import stored_archive, wall_clock_ms
from fetchproxy.auditing.journal_recovery import JournalRecovery, RecoveredLog
from fetchproxy.cli import options
from fetchproxy.cli.console_client import AsJson, json_text, table, terminal
from fetchproxy.cli.jobs import count
from fetchproxy.cli.running import run_to_end, safe_one_line, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.spool import Spool

_COLUMNS = (
    *(("topic", "topic"), ("partition", "partition"), ("end before", "end_before")),
    *(("end now", "end"), ("bytes", "size_bytes"), ("not recovered", "not_recovered")),
)
EXIT_INCOMPLETE = 1


class RecoveredJournal(NamedTuple):
    """`faults`: of objects that cannot be read at all."""

    logs: Sequence[RecoveredLog]
    faults: Sequence[str]

    @property
    def all_faults(self) -> list[str]:
        """In words, also of logs."""
        lost = [
            f"{log.tp}: the journal's offsets {log.unreachable[0]} to {log.unreachable[1]} do not "
            "continue the archive"
            for log in self.logs
            if log.unreachable is not None
        ]
        return [
            *self.faults,
            *(log.fault for log in self.logs if log.fault is not None),
            *lost,
        ]


@options.shares("store")
def recover_journal(context: typer.Context, as_json: AsJson = False) -> None:
    """Turn the journal of a lost cluster's archivers into segments.

    The journal has the newest records if archive.recovery_point_ms was set. After this command, the
    archive ends where the journal ended. The command needs no broker. You can repeat it, and run it
    while the archiver is still running.

    Exit codes: 0 all records of the journal are in segments; 1 some could not be recovered, and the
    journal still has them; 2 the archive cannot be read or written; 130 interrupted.
    """
    with users_errors():
        config = options.read_logged(context)
    recovery = run_to_end(segments_of_journal(config))
    if as_json:
        typer.echo(json_text(as_document(recovery)))
    else:
        _print(recovery)
    if recovery.faults or any(log.unreachable or log.fault for log in recovery.logs):
        raise typer.Exit(EXIT_INCOMPLETE)


async def segments_of_journal(config: Config) -> RecoveredJournal:
    """Raises ConfigError, RemoteStorageError, CorruptSegment, OSError."""
    async with stored_archive(config, writes=True) as (storage, rlmm):
        copier = SegmentCopier(
            storage.rsm,
            rlmm,
            copy_max_ms=config.archive.copy_max_ms,
            wall_clock_ms=wall_clock_ms,
            uuid_factory=uuid4,
        )
        async with Spool(config.archive.spool_dir, encrypted=storage.packed.encrypts) as spool:
            recovery = JournalRecovery(
                storage.objects,
                storage.identity,
                storage.at_rest,
                rlmm,
                copier,
                spool,
                segment_bytes_max=config.archive.segment_bytes_max,
            )
            tables, faults = await recovery.tables()
            return RecoveredJournal(await recovery.recover(tables), faults)


def as_document(recovery: RecoveredJournal) -> dict[str, object]:
    return {"partitions": list(_rows(recovery.logs)), "faults": list(recovery.faults)}


def _rows(logs: Sequence[RecoveredLog]) -> Iterator[dict[str, Any]]:
    for log in logs:
        first, last = log.unreachable or (0, -1)
        yield {
            "topic": log.tp.topic,
            "partition": log.tp.partition,
            "end_before": log.end_before,
            "end": log.end,
            "size_bytes": log.size_bytes,
            "not_recovered": f"{first}-{last}" if log.unreachable else "",
            "fault": log.fault,
        }


def _print(recovery: RecoveredJournal) -> None:
    gained = [log for log in recovery.logs if log.end != log.end_before or log.unreachable]
    if gained:
        terminal().print(table(list(_rows(gained)), _COLUMNS))
    for log in recovery.logs:
        if log.fault is not None:
            typer.echo(safe_one_line(log.fault))
    for fault in recovery.faults:
        typer.echo(safe_one_line(fault))
    size_bytes = sum(log.size_bytes for log in recovery.logs)
    typer.echo(
        f"the journal had more records than the archive for {len(gained)} of "
        f"{count(len(recovery.logs), 'partition')}: {size_bytes:,} bytes copied"
    )
