"""A restore with local history, in a process of its own that a test may kill: see `LocalRestore`.

It prints each step, and then the report as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fetchproxy.cli.cluster_restore import order_of
from fetchproxy.cluster_restore.restore import ClusterRestore, RestoreOrder
from fetchproxy.config.schema import ClusterConfig, Config, StoreConfig

NOW_MS = 1 << 62


def config_with(bootstrap: str, store: str, keys: str | None = None) -> Config:
    """`keys`: the file of the archive's encryption."""
    of_store = StoreConfig(url=store, encryption_keys=keys)
    return Config(cluster=ClusterConfig(bootstrap=bootstrap), store=of_store)


def local_order(
    config: Config, state_file: Path, local: str | None, replicas: int = 1, **more: Any
) -> RestoreOrder:
    """Of the newest state, with so many `replicas` of each partition. `more`: of RestoreOrder."""
    order = order_of(
        config, NOW_MS, ".*", ".*", "127.0.0.1:0", None, None, state_file, local, None
    )  # fmt: skip
    topics = [replace(topic, replication_factor=replicas) for topic in order.topics]
    return replace(order, topics=topics, **more)


class LocalRestore:
    def __init__(
        self,
        bootstrap: str,
        store: str,
        state_file: Path,
        local: str | None,
        replicas: int,
        keys: str | None = None,
    ) -> None:
        order = {
            "bootstrap": bootstrap, "store": store, "state_file": str(state_file),
            "local": local, "replicas": replicas, "keys": keys,
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(order)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def lines(self) -> Iterator[str]:
        """As they come, until the process ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.strip()

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def kill_while_serving(self) -> None:
        for line in self.lines():
            if line.startswith("local history: followers have fetched"):
                self.kill()
                return
        raise AssertionError("the restore has served nothing")

    def report(self) -> Mapping[str, Any]:
        """Waits for the end, which has to be a success."""
        *_, last = self.lines()
        assert self._end() == 0, last
        report: Mapping[str, Any] = json.loads(last)
        return report

    def _end(self) -> int:
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait()


def main(text: str) -> None:
    order = json.loads(text)
    config = config_with(order["bootstrap"], order["store"], order["keys"])
    of_run = local_order(config, Path(order["state_file"]), order["local"], order["replicas"])

    def say(line: str) -> None:
        print(line, flush=True)

    report = asyncio.run(ClusterRestore(config, of_run, say).run())
    print(json.dumps(report.as_json()), flush=True)
    sys.exit(0 if report.is_whole else 1)


if __name__ == "__main__":
    main(sys.argv[1])
