"""A key of before stops the start, and the error says truly what became of it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fetchproxy.config.load import all_keys, load_config, parse_assignment, variable_of
from fetchproxy.config.rules import GONE, Constant, Follows, Renamed
from fetchproxy.config.values import DURATION, SIZE
from fetchproxy.errors import ConfigError

CONSTANTS = {key: became for key, became in GONE.items() if isinstance(became, Constant)}
RENAMED = {key: became for key, became in GONE.items() if isinstance(became, (Renamed, Follows))}
# It fell from 165, and from 106. A key more needs an answer to: when does an operator change it?
KEYS_MAX = 94


def test_there_are_no_more_keys_than_operators_need() -> None:
    assert len(all_keys()) <= KEYS_MAX


def value_of(where: str) -> Any:
    """The constant by its name: of a module, or a default of a class there."""
    module, _, name = where.rpartition(".")
    try:
        return getattr(import_module(f"fetchproxy.{module}"), name)
    except ModuleNotFoundError:
        module, _, holder = module.rpartition(".")
        return getattr(getattr(import_module(f"fetchproxy.{module}"), holder), name)


@pytest.mark.parametrize("key", CONSTANTS)
def test_a_constant_has_the_value_that_is_told(key: str) -> None:
    value = value_of(CONSTANTS[key].where)
    forms = (SIZE.show(value), DURATION.show(value)) if isinstance(value, int) else ()
    assert CONSTANTS[key].value in (str(value), *forms)


@pytest.mark.parametrize("key", RENAMED)
def test_a_new_key_is_one(key: str) -> None:
    assert RENAMED[key].key.removesuffix(".file") in all_keys()


@pytest.mark.parametrize("key", GONE)
def test_it_stops_the_start_wherever_it_is_set(key: str, tmp_path: Path) -> None:
    assert key not in all_keys()
    section, _, name = key.partition(".")
    file = tmp_path / "fetchproxy.toml"
    file.write_text(f"[{section}]\n{name} = 1\n")
    told = f"is gone: {GONE[key]}"
    # The variable of a secret's file is still one.
    environ = {} if key.endswith(("_password_file", "_secret_file")) else {variable_of(key): "1"}
    with pytest.raises(ConfigError) as caught:
        load_config(file, environ, [parse_assignment(f"{key}=1")])
    assert caught.value.faults == (
        *(f"{variable} in the environment {told}" for variable in environ),
        f"{key} ({file}:2) {told}",
        f"{key} (--set {key}) {told}",
    )


def test_an_empty_variable_of_one_counts_as_absent() -> None:
    load_config(None, {variable_of(key): "" for key in GONE})
