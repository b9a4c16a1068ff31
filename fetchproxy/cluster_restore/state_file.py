"""The file by which a restore that was killed goes on: who the phantoms are, and the last step.

With the same incarnation, a phantom may register again at once; with another one it would have to
wait until the cluster takes the first one for dead, and would then lead nothing. What has been done
is read from the cluster, not from this file: the step in it is for people.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

from fetchproxy.errors import ConfigError
from fetchproxy.metadata.flat_files import replace_file

_VERSION = 1
_BYTES_MAX = 1 << 20


class RestoreStep(StrEnum):
    """In this order. A restore that is run again begins at the first one and skips what is done."""

    CHECK = "check"
    REGISTER = "register"
    PRODUCER_IDS = "producer ids"  # only with local history
    CREATE = "create"
    CONTINUE = "continue"
    RAISE = "raise"
    PLACE = "place"
    HAND_OVER = "hand over"
    LEAVE = "leave"
    PAD = "pad"
    RECORD = "record"  # after padding: which archived logs go on
    PROVE = "prove"
    GROUPS = "groups"
    RIGHTS = "rights"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class PhantomIdentity:
    node_id: int
    incarnation_id: UUID
    log_dir_id: UUID


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """`cluster_id`: of the new cluster. `read_at_ms`: of the state that is restored. `port`: at
    which brokers reach the phantoms; a follower goes on to connect there after the phantom was
    killed, so the next run needs the same one. 0: not chosen yet. `at_state`: partitions begin at
    the ends of the state (--at), not of the archive. A restore by padding has no phantoms.
    """

    cluster_id: str
    read_at_ms: int
    phantoms: tuple[PhantomIdentity, ...]
    step: RestoreStep = RestoreStep.CHECK
    port: int = 0
    at_state: bool = False

    @property
    def is_unfinished(self) -> bool:
        return self.step is not RestoreStep.DONE

    @property
    def has_phantoms(self) -> bool:
        """Whether phantoms may be in the cluster: the run may have been killed at this step."""
        order = list(RestoreStep)
        return self.step != RestoreStep.CHECK and order.index(self.step) < order.index(
            RestoreStep.PAD
        )

    def at(self, step: RestoreStep) -> RestoreJob:
        return replace(self, step=step)


def read_restore_job(path: Path) -> RestoreJob | None:
    """None: there is no file. Raises ConfigError."""
    try:
        raw = path.read_bytes()[:_BYTES_MAX]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from error
    try:
        return _decode(json.loads(raw))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not the state of a restore ({type(error).__name__}); name another file "
            "with --state, or delete this one if no restore is unfinished"
        ) from error


def _decode(fields: Mapping[str, Any]) -> RestoreJob:
    if fields["version"] != _VERSION:
        raise ValueError(f"version {fields['version']}")
    phantoms = tuple(
        PhantomIdentity(int(one["node_id"]), UUID(one["incarnation_id"]), UUID(one["log_dir_id"]))
        for one in fields["phantoms"]
    )
    return RestoreJob(
        str(fields["cluster_id"]),
        int(fields["read_at_ms"]),
        phantoms,
        RestoreStep(fields["step"]),
        int(fields["port"]),
        bool(fields.get("at_state", False)),
    )


def write_restore_job(path: Path, job: RestoreJob) -> None:
    """Atomically, and on the disk when it returns. Raises ConfigError."""
    fields = {
        "version": _VERSION,
        "cluster_id": job.cluster_id,
        "read_at_ms": job.read_at_ms,
        "step": job.step.value,
        "port": job.port,
        "at_state": job.at_state,
        "phantoms": [
            {
                "node_id": one.node_id,
                "incarnation_id": str(one.incarnation_id),
                "log_dir_id": str(one.log_dir_id),
            }
            for one in job.phantoms
        ],
    }
    try:
        replace_file(path, (json.dumps(fields, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from error


@dataclass(eq=False, slots=True)
class RestoreProgress:
    """The file of a running restore. `say` gets a line for people at each step."""

    job: RestoreJob
    path: Path
    say: Callable[[str], None]

    async def note(self, step: RestoreStep) -> None:
        """Raises ConfigError."""
        self.job = self.job.at(step)
        await asyncio.to_thread(write_restore_job, self.path, self.job)
        self.say(f"step: {step}")
