"""The workers of one process have its memory and its ports, and only one archives."""

from __future__ import annotations

from pathlib import Path

import pytest

from fetchproxy.config.load import Setting, load
from fetchproxy.config.memory_plan import PROCESS_BYTES, memory_budgets, memory_parts
from fetchproxy.config.schema import Config, MiB
from fetchproxy.errors import ConfigError
from fetchproxy.workers.shares import config_of_worker

PORT = 9192


def configured(**settings: object) -> Config:
    all_settings = {
        "store.url": "file:///tmp/store",
        **{k.replace("__", "."): v for k, v in settings.items()},
    }
    return load(
        None, {}, [Setting(key, str(value), "test") for key, value in all_settings.items()]
    ).config


@pytest.mark.parametrize("count", [2, 3, 7])
def test_all_workers_together_stay_within_the_ceiling(count: int) -> None:
    ceiling = 1_600 * MiB
    config = configured(
        process__workers=count, process__memory_bytes_max=ceiling, archive__topics="orders"
    )
    workers = [config_of_worker(config, number, PORT) for number in range(count)]
    used = sum(sum(memory_parts(worker).values()) for worker in workers) + PROCESS_BYTES
    assert 0.98 * ceiling < used <= ceiling


def test_a_ceiling_with_no_room_for_so_many_is_refused() -> None:
    configured(process__memory_bytes_max=400 * MiB)
    with pytest.raises(ConfigError, match=r"process\.memory_bytes_max.*the process 768"):
        configured(process__memory_bytes_max=400 * MiB, process__workers=8)


def test_each_limit_of_memory_is_divided() -> None:
    config = configured(process__workers=2)
    workers = [config_of_worker(config, number, PORT) for number in range(2)]
    for key, whole in memory_budgets(config).items():
        assert sum(memory_budgets(worker)[key].units for worker in workers) == whole.units, key


def test_only_the_first_one_archives_and_each_has_folders_of_its_own(tmp_path: Path) -> None:
    config = configured(
        process__workers=2,
        archive__topics="orders",
        remote_fetch__disk_cache_dir=tmp_path,
        metadata__cache_dir=tmp_path,
        console__listen="0.0.0.0:9190",
        gateway__listen="127.0.0.1:0",
    )
    first, second = (config_of_worker(config, number, PORT) for number in range(2))
    assert (first.archive.topics, second.archive.topics) == ("orders", None)
    assert first.remote_fetch.disk_cache_dir == tmp_path / "worker-0"
    assert second.metadata.cache_dir == tmp_path / "worker-1"
    for worker in (first, second):
        assert worker.gateway.listen == f"127.0.0.1:{PORT}"
        assert worker.gateway.share_ports
        assert worker.console.listen == "127.0.0.1:0", "only the parent's console is seen"
        assert worker.process.workers == 1


def test_archive_only_has_one_process() -> None:
    with pytest.raises(ConfigError, match=r"process\.workers \(test\) contradicts archive_only"):
        configured(process__workers=2, archive_only__enabled="true")
