"""What SIGHUP does to a section, for tests of the parts that hold it. Not a test."""

from __future__ import annotations

from fetchproxy.config.load import all_keys
from fetchproxy.config.reloading import take
from fetchproxy.config.schema import Config, Section


def take_into(section: Section, **settings: object) -> None:
    """The settings are read again with these values, and taken."""
    [name] = [
        name for name, field in Config.model_fields.items() if field.annotation is type(section)
    ]
    assert all(all_keys()[f"{name}.{each}"].live for each in settings)
    changed = section.model_copy(update=settings)
    take(Config.model_construct(**{name: section}), Config.model_construct(**{name: changed}))
