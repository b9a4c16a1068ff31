"""Configuration from defaults, TOML file, environment and command line. The last value wins.

Pure except that it reads the given file; the environment is an argument. Every ConfigError names
the key, the value, its origin and what was expected. An unknown key is an error: it is most likely
a typing mistake, which would silently leave the default in force.

The keys, each with name, variable, default and expected form, are derived from
`fetchproxy.config.schema`, which declares each once. Loading, documentation and error messages all
read this list, so they cannot disagree.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from fetchproxy.config.memory_plan import within_ceiling
from fetchproxy.config.rules import relation_faults
from fetchproxy.config.schema import Config, Section
from fetchproxy.config.values import (
    MASK,
    LiveReload,
    SecretFile,
    TextForm,
    UnitForm,
    is_secret_name,
    mask_text,
)
from fetchproxy.errors import ConfigError

VARIABLE_PREFIX = "FETCHPROXY_"

_TYPE_WORDS = {
    int: "an integer",
    str: "text",
    bool: "true or false",
    Path: "a path",
    float: "a number",
    SecretStr: "text, which is never shown",
}
# Variables for the project's tests and lab, which are also set for the programs they start.
_LAB_VARIABLE = re.compile(rf"{VARIABLE_PREFIX}(LAB_.*|REQUIRE_PARTS)")
# Kubernetes and Docker links set these in every container next to a service of that name.
_SERVICE_VARIABLE = re.compile(
    rf"{VARIABLE_PREFIX}(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)"
)
_TABLE = re.compile(r"\s*\[\[?\s*(?P<name>[\w.-]+)\s*\]")
_ENTRY = re.compile(r"\s*(?P<name>[\w.-]+)\s*=")
# Variables of command line options that are not configuration keys.
OPTION_VARIABLES = frozenset(
    f"{VARIABLE_PREFIX}{name}"
    for name in (
        *("CONFIG", "SET", "ONCE", "TOPIC", "TOPICS", "JSON", "REPAIR", "DRY_RUN"),
        *("SPARK", "SPARK_MASTER", "SPARK_CONF", "MERGE_BYTES_MAX", "REPORT_OUT"),
        *("REPORT_PARQUET", "BACKFILL_PARQUET", "BACKFILL_TO_TOPIC", "BACKFILL_OPTION"),
        *("BACKFILL_RANGE_BYTES", "BACKFILL_APPEND", "BACKFILL_COMPRESSION"),
        *("ASK", "TOP_INTERVAL", "TOP_ROWS", "BUNDLE_OUT", "BUNDLE_INTERVAL"),
        *("MIRROR_TO", "MIRROR_COMPARE", "MIRROR_WITH_DAMAGED", "MIRROR_BYTES_PER_S"),
    )
)


def variable_of(key: str) -> str:
    return f"{VARIABLE_PREFIX}{key.replace('.', '_')}".upper()


@dataclass(frozen=True, slots=True)
class Key:
    section: str
    name: str
    field: FieldInfo

    @property
    def dotted(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        return variable_of(self.dotted)

    @property
    def default(self) -> object:
        return self.field.default

    def value_in(self, config: Config) -> object:
        return getattr(getattr(config, self.section), self.name)

    def as_text(self, value: object) -> str:
        """`value` as text, with its unit if the key has one."""
        for form in self._forms:
            if isinstance(form, UnitForm) and isinstance(value, int):
                return form.show(value)
        return str(value)

    def takes(self, kind: type) -> bool:
        """Whether a value may have this type."""
        return kind in _alternatives(self.field.annotation)

    @property
    def live(self) -> LiveReload | None:
        """None: a change waits for a restart."""
        return next((m for m in self.field.metadata if isinstance(m, LiveReload)), None)

    @property
    def is_secret(self) -> bool:
        return self.takes(SecretFile)

    @property
    def expected(self) -> str:
        """The type and the range in words, for example "an integer, at least 1"."""
        return self._in_words([m.expected for m in self._forms])

    @property
    def expected_shortly(self) -> str:
        """As `expected`, without examples of sizes and durations."""
        return self._in_words(
            [m.name if isinstance(m, UnitForm) else m.expected for m in self._forms]
        )

    @property
    def _forms(self) -> list[TextForm]:
        return [m for m in self.field.metadata if isinstance(m, TextForm)]

    def _in_words(self, forms: list[str]) -> str:
        bounds = [_bound_words(m, self.as_text) for m in self.field.metadata]
        words = forms or [_type_words(t) for t in _alternatives(self.field.annotation)]
        return ", ".join([*(w for w in words if w), *(b for b in bounds if b)])


def section_docstrings() -> dict[str, str]:
    """First line of each section's docstring, by section name, in declaration order."""
    return {
        name: (field.annotation.__doc__ or "").strip().split("\n")[0]
        for name, field in Config.model_fields.items()
        if field.annotation is not None
    }


def all_keys() -> dict[str, Key]:
    """Every key by its dotted name, in declaration order."""
    keys: dict[str, Key] = {}
    for section, field in Config.model_fields.items():
        model = field.annotation
        assert isinstance(model, type)
        assert issubclass(model, Section)
        for name, key_field in model.model_fields.items():
            keys[f"{section}.{name}"] = Key(section, name, key_field)
    return keys


def _alternatives(annotation: Any) -> tuple[Any, ...]:  # Any: typing offers no type of types
    if get_origin(annotation) in (Union, UnionType):
        return get_args(annotation)
    return (annotation,)


def _type_words(annotation: Any) -> str:  # Any: a field's type
    if annotation is NoneType:
        return ""
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(get_args(annotation))
    return _TYPE_WORDS.get(annotation, str(annotation))


def _bound_words(bound_value: object, in_words: Callable[[object], str]) -> str:
    match bound_value:
        case Ge(ge=limit):
            return f"at least {in_words(limit)}"
        case Gt(gt=limit):
            return f"above {in_words(limit)}"
        case Le(le=limit):
            return f"at most {in_words(limit)}"
        case Lt(lt=limit):
            return f"below {in_words(limit)}"
    return ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value and where the user set it. `place` is text for the user."""

    key: str
    value: object
    place: str


def parse_assignment(text: str, place: str = "--set") -> Setting:
    """Parses `section.key=value` from the command line. Raises ConfigError."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"{place} {mask_text(text)!r}: expected section.key=value")
    return Setting(key.strip(), value.strip(), f"{place} {key.strip()}")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and the origin of its values. `chosen`: the settings of the user, by key."""

    config: Config
    chosen: Mapping[str, Setting]

    def value_of(self, key: Key) -> object:
        return key.value_in(self.config)

    def place_of(self, key: Key) -> str:
        if key.dotted in self.chosen:
            return self.chosen[key.dotted].place
        shrunk = self.value_of(key) != key.default
        return "process.memory_bytes_max" if shrunk else "default"


def load_config(
    file: Path | None, environ: Mapping[str, str], overrides: Iterable[Setting] = ()
) -> Config:
    """The whole configuration. Raises ConfigError, also if the file cannot be read."""
    return load(file, environ, overrides).config


def load(
    file: Path | None, environ: Mapping[str, str], overrides: Iterable[Setting] = ()
) -> Loaded:
    """As `load_config`, with the origins. The ConfigError names every fault that was found."""
    keys = all_keys()
    faults = _variable_faults(environ, keys)
    chosen: dict[str, Setting] = {}
    settings: list[Setting] = []
    if file is not None:
        with _collect_fault(faults):
            settings += _file_settings(file)
    settings += [*_environment_settings(environ, keys), *overrides]
    for setting in settings:
        with _collect_fault(faults):
            checked_setting = _checked_setting(setting, keys)
            chosen[checked_setting.key] = checked_setting
    config = None
    with _collect_fault(faults):
        config = _build(chosen, keys)
    # Relations between keys are checked only if each key is valid: otherwise they would mislead.
    if config is not None and not faults:
        faults += relation_faults(config, {key: setting.place for key, setting in chosen.items()})
        with _collect_fault(faults):
            config = within_ceiling(config, chosen)
    if config is None or faults:
        raise ConfigError(*faults)
    return Loaded(config, chosen)


@contextmanager
def _collect_fault(faults: list[str]) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        faults.extend(error.faults)


def _file_settings(file: Path) -> Iterator[Setting]:
    try:
        text = file.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also for text that is not UTF-8
        raise ConfigError(f"{file}: is not TOML: {error}") from error
    lines = _lines_of_keys(text)

    def at(key: str) -> str:
        return f"{file}:{lines[key]}" if key in lines else str(file)

    for section, content in tables.items():
        if not isinstance(content, dict):
            yield Setting(section, content, at(section))
            continue
        if not content and section not in Config.model_fields:
            yield Setting(section, content, at(section))
        for name, value in content.items():
            yield Setting(f"{section}.{name}", value, at(f"{section}.{name}"))


def _lines_of_keys(text: str) -> dict[str, int]:
    """Line numbers by key and by section, as tomllib gives none.

    Each line is matched by itself. A key in quotes or in an inline table has no line number.
    """
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if table := _TABLE.match(line):
            section = table["name"]
            lines.setdefault(section, number)
        elif entry := _ENTRY.match(line):
            lines.setdefault(f"{section}.{entry['name']}".lstrip("."), number)
    return lines


def _environment_settings(environ: Mapping[str, str], keys: Mapping[str, Key]) -> Iterator[Setting]:
    """An empty variable counts as absent, because compose files cannot leave a variable out."""
    by_variable = _by_variable(keys)
    for variable, value in sorted(environ.items()):
        if variable in by_variable and value != "":
            yield Setting(by_variable[variable], value, variable)


def _by_variable(keys: Mapping[str, Key]) -> dict[str, str]:
    """The key that each variable sets. Containers expect a variable for a secret's file, too."""
    names = {key.variable: key.dotted for key in keys.values()}
    files = {f"{k.variable}_FILE": f"{k.dotted}.file" for k in keys.values() if k.is_secret}
    return names | files


def _variable_faults(environ: Mapping[str, str], keys: Mapping[str, Key]) -> list[str]:
    known_names = [*_by_variable(keys), *OPTION_VARIABLES]
    faults = [
        f"{key.variable} and {key.variable}_FILE in the environment: only one of them may be set"
        for key in keys.values()
        if key.is_secret and environ.get(key.variable) and environ.get(f"{key.variable}_FILE")
    ]
    for variable in sorted(environ):
        if not variable.startswith(VARIABLE_PREFIX) or variable in known_names:
            continue
        if not (_SERVICE_VARIABLE.fullmatch(variable) or _LAB_VARIABLE.fullmatch(variable)):
            faults.append(
                f"unknown variable {variable} in the environment" + _nearest(variable, known_names)
            )
    return faults


def _checked_setting(setting: Setting, keys: Mapping[str, Key]) -> Setting:
    """The setting, with "" as None if the key may be unset. Raises ConfigError."""
    owner, _, last = setting.key.rpartition(".")
    if last == "file" and owner in keys and keys[owner].is_secret:
        return Setting(owner, {"file": setting.value} if setting.value else None, setting.place)
    key = keys.get(setting.key)
    if key is None and setting.key in Config.model_fields:
        raise ConfigError(
            f"{setting.key} ({setting.place}) is a section: expected {setting.key}.KEY"
        )
    if key is None:
        kind = "key" if "." in setting.key else "section"
        known_names = list(keys) if kind == "key" else list(Config.model_fields)
        raise ConfigError(
            f"unknown {kind} {setting.key} ({setting.place}){_nearest(setting.key, known_names)}"
        )
    if isinstance(setting.value, bool) and not key.takes(bool):
        raise ConfigError(_invalid(setting, key))  # pydantic would read true as 1
    if setting.value == "" and key.takes(NoneType):
        return Setting(setting.key, None, setting.place)
    return setting


def _build(settings: Mapping[str, Setting], keys: Mapping[str, Key]) -> Config:
    sections: dict[str, dict[str, object]] = {}
    for key_name, setting in settings.items():
        section, _, name = key_name.partition(".")
        sections.setdefault(section, {})[name] = setting.value
    try:
        return Config.model_validate(sections)
    except ValidationError as error:
        wrong = {f"{e['loc'][0]}.{e['loc'][1]}": None for e in error.errors()}
        raise ConfigError(
            *(_invalid(settings[key_name], keys[key_name]) for key_name in wrong)
        ) from error


def _invalid(setting: Setting, key: Key) -> str:
    value = MASK if is_secret_name(setting.key) else mask_text(repr(setting.value))
    return f"{setting.key} = {value} ({setting.place}): expected {key.expected}"


def _nearest(name: str, known_names: list[str]) -> str:
    """The nearest known name as a clause; compares last parts if no whole name is near."""
    close = difflib.get_close_matches(name, known_names, n=1, cutoff=0.6)
    if not close:
        tails = {full.rpartition(".")[2]: full for full in known_names}
        close = [
            tails[tail]
            for tail in difflib.get_close_matches(name.rpartition(".")[2], tails, n=1, cutoff=0.6)
        ]
    return f"; the nearest known one is {close[0]}" if close else "; no known key is similar"
