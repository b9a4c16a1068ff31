"""A restore in a process of its own, which a test may kill at a step.

Run as a script with a JSON file: see `write_order`. It prints each step, and then the report.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fetchproxy.cluster_restore.plan import LostPartition, LostTopic, RestoreBy
from fetchproxy.cluster_restore.restore import ClusterRestore, RestoreOrder
from fetchproxy.cluster_state.state import (
    ClusterState,
    GroupKind,
    GroupWithOffsets,
    OffsetOfGroup,
    PartitionState,
    TopicState,
)
from fetchproxy.config.schema import ClusterConfig, Config
from fetchproxy.config.values import HostPort


def state_of(
    topics: Sequence[LostTopic], groups: Sequence[GroupWithOffsets] = (), **parts: Any
) -> ClusterState:
    """A state whose ends are those of the archive."""
    states = [
        TopicState(
            one.name,
            uuid.uuid4(),
            one.replication_factor,
            len(one.partitions),
            one.configs,
            (),
            tuple(
                PartitionState(n, 0, p.end_offset, p.leader_epoch)
                for n, p in enumerate(one.partitions)
            ),
        )
        for one in topics
    ]
    return ClusterState("lost", 1_000, tuple(states), tuple(groups), **parts)


def topic(
    name: str, ends: Sequence[int], *, replicas: int = 1, epoch: int = 0, **configs: str
) -> LostTopic:
    partitions = tuple(LostPartition(end, epoch) for end in ends)
    values = tuple(sorted((key.replace("_", "."), value) for key, value in configs.items()))
    return LostTopic(name, replicas, partitions, values)


def order_of(
    state_file: Path,
    topics: Sequence[LostTopic],
    groups: Sequence[GroupWithOffsets] = (),
    by: RestoreBy = RestoreBy.PHANTOMS,
    **parts: Any,
) -> RestoreOrder:
    return RestoreOrder(
        state=state_of(topics, groups, **parts),
        topics=topics,
        listen=HostPort("127.0.0.1", 0),
        advertise=None,
        controllers=(),
        state_file=state_file,
        by=by,
    )


def config_of(bootstrap: str) -> Config:
    return Config(cluster=ClusterConfig(bootstrap=bootstrap))


def group(name: str, offsets: dict[tuple[str, int], int], epoch: int = -1) -> GroupWithOffsets:
    committed = tuple(OffsetOfGroup(t, n, offset, epoch) for (t, n), offset in offsets.items())
    return GroupWithOffsets(name, GroupKind.CLASSIC, committed)


class RestoreProcess:
    def __init__(
        self, bootstrap: str, state_file: Path, name: str, ends: Sequence[int], **more: int | str
    ) -> None:
        """`more`: of `topic`, and `by`."""
        order = {"bootstrap": bootstrap, "state_file": str(state_file), "name": name, "ends": ends}
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(order | more)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def steps(self) -> Iterator[str]:
        """Lines as they come, until the process ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.strip()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait(self) -> int:
        for _ in self.steps():
            pass
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait()


def main(text: str) -> None:
    order = json.loads(text)
    of_topic = {key: order[key] for key in ("replicas", "epoch") if key in order}
    topics = [topic(order["name"], order["ends"], **of_topic)]

    def say(line: str) -> None:
        print(line, flush=True)

    restore = ClusterRestore(
        config_of(order["bootstrap"]),
        order_of(Path(order["state_file"]), topics, by=RestoreBy(order.get("by", "phantoms"))),
        say,
    )
    report = asyncio.run(restore.run())
    sys.exit(0 if report.is_whole else 1)


if __name__ == "__main__":
    main(sys.argv[1])
