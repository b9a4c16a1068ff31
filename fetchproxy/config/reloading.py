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
    """`fault`: why nothing was taken; "" if it was. `config`: what is to be in force. `taken`: each
    changed key with its new value, without secrets. `waiting`: keys whose change needs a restart.
    """

    config: Config
    taken: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    fault: str = ""


def own_copy(config: Config) -> Config:
    """A copy for a process to `take` into: configurations share the sections of defaults."""
    return config.model_copy(deep=True)


def compare_settings(in_force: Config, read: Loaded) -> Reload:
    """`in_force`: the settings of the start, with all changes that were taken since."""
    target = own_copy(in_force)
    changed = list(_changed(in_force, read))
    taken = [key for key in changed if _may_be_taken(key, in_force, read.config)]
    take(target, read.config, taken)
    return Reload(
        target,
        tuple(masked_assignment(key, read.config) for key in taken),
        tuple(key.dotted for key in changed if key not in taken),
    )


def take(running: Config, target: Config, keys: list[Key] | None = None) -> None:
    """Changes the sections of `running` in place. `keys`: None: all that can be taken."""
    for key in all_keys().values() if keys is None else keys:
        if key.live is not None:
            section = getattr(running, key.section)
            object.__setattr__(section, key.name, key.value_in(target))


def _changed(in_force: Config, read: Loaded) -> Iterator[Key]:
    """Without limits that only follow from `process.memory_bytes_max`."""
    followers = memory_budgets(read.config) if read.config.process.memory_bytes_max else {}
    for key in all_keys().values():
        follows = key.dotted in followers and key.dotted not in read.chosen
        if key.value_in(in_force) != read.value_of(key) and not follows:
            yield key


def _may_be_taken(key: Key, before: Config, after: Config) -> bool:
    if key.live is None:
        return False
    values = key.value_in(before), key.value_in(after)
    return not key.live.once_set or None not in values
