from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.config.load import Setting, load_config
from fetchproxy.config.memory_plan import memory_budgets, memory_parts, within_ceiling
from fetchproxy.config.schema import Config, GatewayConfig, MiB, ProcessConfig
from fetchproxy.errors import ConfigError


def loaded(**settings: object) -> Config:
    return load_config(
        None, {}, [Setting(k.replace("__", "."), str(v), "--set") for k, v in settings.items()]
    )


def test_without_a_ceiling_every_limit_is_its_own() -> None:
    assert loaded() == Config()


def test_a_ceiling_above_all_limits_changes_none_of_them() -> None:
    whole = sum(memory_parts(Config()).values())
    config = loaded(process__memory_bytes_max=whole)
    assert memory_parts(config) == memory_parts(Config())


@given(st.integers(190 * MiB, 4096 * MiB), st.booleans())
def test_limits_shrink_together_until_all_fits(ceiling: int, archives: bool) -> None:
    config = Config(process=ProcessConfig(memory_bytes_max=ceiling))
    if archives:
        if ceiling < 512 * MiB:
            return
        config = config.model_copy(
            update={"archive": config.archive.model_copy(update={"topics": ".*"})}
        )
    fitted = within_ceiling(config, ())
    assert sum(memory_parts(fitted).values()) <= ceiling
    before, after = memory_budgets(config), memory_budgets(fitted)
    if sum(memory_parts(config).values()) > ceiling:  # and what there is is used
        assert sum(memory_parts(fitted).values()) >= 0.95 * ceiling
    shares = []
    for key, budget in before.items():
        assert budget.units_min <= after[key].units <= budget.units
        if after[key].units > budget.units_min:
            shares.append(after[key].units / budget.units)
    assert max(shares) - min(shares) < 0.01


def test_what_somebody_has_set_stays_and_the_rest_goes_without() -> None:
    config = loaded(
        process__memory_bytes_max=1024 * MiB,
        remote_fetch__chunk_cache_bytes_max=600 * MiB,
        gateway__connections_max=1_000,
    )
    assert config.remote_fetch.chunk_cache_bytes_max == 600 * MiB
    assert config.gateway.connections_max == 1_000
    assert config.remote_fetch.inflight_bytes_max < 100 * MiB
    assert sum(memory_parts(config).values()) <= 1024 * MiB


def test_what_cannot_fit_stops_the_start_and_is_named() -> None:
    with pytest.raises(ConfigError) as refusal:
        loaded(process__memory_bytes_max=512 * MiB, remote_fetch__chunk_cache_bytes_max=600 * MiB)
    for word in ("process.memory_bytes_max", "remote_fetch.chunk_cache_bytes_max 600", "at least"):
        assert word in str(refusal.value)


@pytest.mark.parametrize("extra", [-1, 0])
def test_the_least_that_is_said_is_the_least_that_works(extra: int) -> None:
    with pytest.raises(ConfigError) as refusal:
        loaded(process__memory_bytes_max=1)
    least = int(str(refusal.value).split("at least ")[1].split(",")[0])
    if extra < 0:
        with pytest.raises(ConfigError):
            loaded(process__memory_bytes_max=least + extra)
    else:
        config = loaded(process__memory_bytes_max=least)
        assert sum(memory_parts(config).values()) == least


def test_an_archiver_and_a_disk_cache_have_a_part() -> None:
    plain = memory_parts(Config())
    config = loaded(archive__topics=".*", remote_fetch__disk_cache_dir="/tmp/x")
    parts = memory_parts(config)
    assert parts.keys() - plain.keys() == {
        "archive.workers_max",
        "remote_fetch.disk_cache_dir",
    }
    assert min(parts.values()) > 0


def test_a_limit_below_its_usual_least_is_left_as_it_is() -> None:
    """A cache of nothing is a choice; so is a small one."""
    small = Config(gateway=GatewayConfig(remote_answers_bytes_max=MiB))
    fitted = within_ceiling(
        small.model_copy(update={"process": ProcessConfig(memory_bytes_max=200 * MiB)}), ()
    )
    assert fitted.gateway.remote_answers_bytes_max == MiB


def test_groups_count_where_they_are_kept() -> None:
    small = {"process__memory_bytes_max": 512 * MiB, "archive_only__enabled": "true"}
    config = loaded(**small)
    assert 8 * MiB <= config.archive_only.groups_bytes_max < 256 * MiB
    assert sum(memory_parts(config).values()) <= 512 * MiB
    assert loaded(process__memory_bytes_max=512 * MiB).archive_only == Config().archive_only
