"""What a running process takes of a configuration that was read again; the rest needs a restart.

The declaration of each key in `fetchproxy.config.schema` decides (`Live`). The sections are values
that nobody else changes, and all parts of a process hold the same ones. `take` is the only place
that changes them, so whoever reads a key at each use follows. Kafka's brokers do the same with
their dynamic settings (KIP-226).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fetchproxy.config.document import masked_assignment
from fetchproxy.config.load import Key, Loaded, all_keys
from fetchproxy.config.memory_plan import memory_budgets
from fetchproxy.config.schema import Config


@dataclass(frozen=True, slots=True)
class Reload:
    """`fault`: why nothing was taken; "" if it was. `config`: what is to be in force.
    `applied_keys`: each changed key with its new value, without secrets.
    `waiting`: keys whose change needs a restart.
    """

    config: Config
    applied_keys: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    fault: str = ""


def own_copy(config: Config) -> Config:
    """A copy for a process to `take` into: configurations share the sections of defaults."""
    return config.model_copy(deep=True)


def compare_settings(in_force: Config, loaded: Loaded) -> Reload:
    """`in_force`: the settings of the start, with all changes that were taken since."""
    target = own_copy(in_force)
    changed_keys = list(_changed_keys(in_force, loaded))
    applied_keys = [key for key in changed_keys if _may_be_taken(key, in_force, loaded.config)]
    take(target, loaded.config, applied_keys)
    return Reload(
        target,
        tuple(masked_assignment(key, loaded.config) for key in applied_keys),
        tuple(key.dotted for key in changed_keys if key not in applied_keys),
    )


def take(running: Config, target: Config, keys: list[Key] | None = None) -> None:
    """Changes the sections of `running` in place. `keys`: None: all that can be taken."""
    for key in all_keys().values() if keys is None else keys:
        if key.live is not None:
            section = getattr(running, key.section)
            object.__setattr__(section, key.name, key.value_in(target))


def _changed_keys(in_force: Config, loaded: Loaded) -> Iterator[Key]:
    """Without limits that only follow from `process.memory_bytes_max`."""
    followers = memory_budgets(loaded.config) if loaded.config.process.memory_bytes_max else {}
    for key in all_keys().values():
        follows = key.dotted in followers and key.dotted not in loaded.chosen
        if key.value_in(in_force) != loaded.value_of(key) and not follows:
            yield key


def _may_be_taken(key: Key, before: Config, after: Config) -> bool:
    if key.live is None:
        return False
    values = key.value_in(before), key.value_in(after)
    return not key.live.only_if_set or None not in values
