"""What each worker is told: the whole configuration, with its own share of the memory. Pure.

The first worker has the archiver. All listen on the same ports, which the parent has found free.
"""

from __future__ import annotations

from pathlib import Path

from fetchproxy.config.memory_plan import memory_budgets
from fetchproxy.config.schema import Config, Section
from fetchproxy.config.values import HostPort, parse_host_port

ARCHIVES = 0  # the number of the worker with the archiver


def config_of_worker(config: Config, number: int, port: int) -> Config:
    """`port`: the port in use, as `gateway.listen` may say 0."""
    count = config.process.workers
    shared: dict[str, dict[str, object]] = {
        "gateway": {
            "listen": str(HostPort(parse_host_port(config.gateway.listen).host, port)),
            "share_ports": True,
            "connections_per_ip_max": -(-config.gateway.connections_per_ip_max // count),
        },
        "process": {
            "workers": 1,
            "memory_bytes_max": config.process.memory_bytes_max // count,
        },
        "remote_fetch": {
            "disk_cache_dir": _of_worker(config.remote_fetch.disk_cache_dir, number),
            "disk_cache_bytes_max": config.remote_fetch.disk_cache_bytes_max // count,
        },
        "metadata": {"cache_dir": _of_worker(config.metadata.cache_dir, number)},
        "archive": {} if number == ARCHIVES else {"topics": None},
        "console": {} if config.console.listen is None else {"listen": "127.0.0.1:0"},
    }
    for key, budget in memory_budgets(config).items():
        section, _, name = key.partition(".")
        shared[section][name] = max(budget.units, budget.units_min) // count
    return config.model_copy(
        update={name: _changed(getattr(config, name), changes) for name, changes in shared.items()}
    )


def _changed(section: Section, changes: dict[str, object]) -> Section:
    return section.model_copy(update=changes)


def _of_worker(folder: Path | None, number: int) -> Path | None:
    return None if folder is None else folder / f"worker-{number}"
