"""The settings of a process that runs, from what its console tells (`/api/process`). Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fetchproxy.config.load import Loaded, Setting, load
from fetchproxy.config.values import MASK
from fetchproxy.doctor.installation import NotChecked
from fetchproxy.errors import ConfigError
from fetchproxy.runtime.open_files import clients_that_fit

_PLACE = "the running process"
_CLIENTS = "gateway.connections_max"


def settings_in_force(rows: Sequence[Mapping[str, Any]], new: Loaded) -> Loaded:
    """Settings whose value is a secret count as those of `new`. Raises NotChecked."""
    of_all = len(rows) > 0 and bool(rows[0].get("settings_of_all"))
    if len(rows) != 1 and not of_all:
        raise NotChecked("each of several workers reports only its share of the settings")
    try:
        return load(None, {}, list(_settings(rows[0], new, of_all)))
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise NotChecked(f"the running process reports other settings: {error}") from error


def _settings(row: Mapping[str, Any], new: Loaded, of_all: bool) -> Iterator[Setting]:
    for text in row["settings_of_all" if of_all else "settings"]:
        name, _, value = text.partition(" = ")
        if MASK in value:
            if (setting := new.chosen.get(name)) is not None:
                yield setting
            continue
        parsed_value: Any = "" if value == "not set" else tomllib.loads(f"value = {value}")["value"]
        if name == _CLIENTS and parsed_value == _clients_max(row, new):
            parsed_value = new.config.gateway.connections_max
        yield Setting(name, parsed_value, _PLACE)


def _clients_max(row: Mapping[str, Any], new: Loaded) -> int:
    """How many clients `new` allows the process, whose limit of open files may lower the number."""
    files = row["limits"]["ulimit open files"].partition(",")[0]
    clients = new.config.gateway.connections_max
    return clients_that_fit(int(files), clients) if files.isdigit() else clients
