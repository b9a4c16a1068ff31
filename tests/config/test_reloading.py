"""What SIGHUP takes: each key is taken or waits, and what is taken is all that changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.config.load import Key, Loaded, Setting, all_keys, load
from fetchproxy.config.reloading import compare_settings, own_copy, take
from fetchproxy.config.schema import Config
from fetchproxy.config.values import UnitForm

KEYS = list(all_keys().values())


def with_other(config: Config, key: Key) -> Config:
    """`config` with another value of `key`, which need not be a valid one."""
    value = key.value_in(config)
    other: object = "other"
    if isinstance(value, bool):
        other = not value
    elif isinstance(value, int | float):
        other = value + 1
    section = getattr(config, key.section).model_copy(update={key.name: other})
    return config.model_copy(update={key.section: section})


@given(names=st.sets(st.sampled_from(list(all_keys()))))
def test_each_changed_key_is_taken_or_waits(names: set[str]) -> None:
    changed = [all_keys()[name] for name in names]
    in_force, target = own_copy(Config()), Config()
    for key in changed:
        target = with_other(target, key)
    chosen = {name: Setting(name, "other", "") for name in names}
    reload = compare_settings(in_force, Loaded(target, chosen))
    taken = {text.partition(" = ")[0] for text in reload.applied_keys}
    assert not taken & set(reload.waiting)
    assert taken | set(reload.waiting) == names
    assert taken <= {key.dotted for key in KEYS if key.live}
    for key in KEYS:
        after = key.value_in(target if key.dotted in taken else in_force)
        assert key.value_in(reload.config) == after
    assert in_force == Config(), "nothing is in force before all of it is"
    take(in_force, reload.config)
    assert in_force == reload.config
    again = compare_settings(reload.config, Loaded(target, chosen))
    assert (again.applied_keys, again.waiting) == ((), reload.waiting)


def test_sections_of_defaults_are_not_changed() -> None:
    config = own_copy(Config())
    take(config, compare_settings(config, load(None, {"FETCHPROXY_LOG_LEVEL": "debug"})).config)
    assert config.log.level == "debug"
    assert Config().log.level == "info"


@pytest.mark.parametrize(
    ("before", "after", "is_taken"),
    [("a", "b", True), (None, "a", False), ("a", None, False)],
)
def test_an_archiver_does_not_begin_or_end_without_a_restart(
    before: str | None, after: str | None, is_taken: bool
) -> None:
    in_force = load(None, {"FETCHPROXY_ARCHIVE_TOPICS": before or ""}).config
    reload = compare_settings(in_force, load(None, {"FETCHPROXY_ARCHIVE_TOPICS": after or ""}))
    assert reload.applied_keys == (('archive.topics = "b"',) if is_taken else ())
    assert reload.waiting == (() if is_taken else ("archive.topics",))
    assert reload.config.archive.topics == (after if is_taken else before)


def test_limits_that_follow_from_the_ceiling_are_not_said_to_wait() -> None:
    ceiling = Setting("process.memory_bytes_max", "1GiB", "")
    in_force = load(None, {}, [ceiling]).config
    more = load(None, {}, [ceiling, Setting("console.show_records", "true", "")])
    assert more.config.remote_fetch != in_force.remote_fetch
    reload = compare_settings(in_force, more)
    assert (reload.applied_keys, reload.waiting) == (("console.show_records = true",), ())


def test_no_secret_is_told(tmp_path: Path) -> None:
    settings = {
        "FETCHPROXY_CLUSTER_SECURITY_PROTOCOL": "SASL_SSL",
        "FETCHPROXY_CLUSTER_SASL_MECHANISM": "PLAIN",
        "FETCHPROXY_CLUSTER_SASL_USERNAME": "proxy",
        "FETCHPROXY_CLUSTER_SASL_PASSWORD": "hunter2-hunter2",
        "FETCHPROXY_CONSOLE_TOKEN_FILE": str(tmp_path / "token"),
    }
    reload = compare_settings(Config(), load(None, settings))
    assert "hunter2" not in repr(reload.applied_keys) + repr(reload.waiting)
    assert "cluster.sasl_password" in reload.waiting
    assert [text for text in reload.applied_keys if "token_file" in text]


def test_what_waits_has_a_reason_to() -> None:
    """Sizes of memory, places and identities are laid out at the start."""
    live = {key.dotted for key in KEYS if key.live}
    assert live.isdisjoint(key.dotted for key in KEYS if key.name.endswith(("_dir", "listen")))
    memory = [k for k in KEYS if any(isinstance(m, UnitForm) for m in k.field.metadata)]
    assert all(not k.live for k in memory if "cache" in k.name or "buffers" in k.name)
