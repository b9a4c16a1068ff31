"""The list of configuration keys as values: name, variable, default, what is expected. Pure.

Derived from `fetchproxy.config.sections`, where each key is declared once; loading, documentation
and error messages all read this list, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from fetchproxy.config.forms import TextForm
from fetchproxy.config.sections import Config, Section

VARIABLE_PREFIX = "FETCHPROXY_"

_TYPE_WORDS = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
    SecretStr: "text, which is never shown",
}


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
        return f"{VARIABLE_PREFIX}{self.section}_{self.name}".upper()

    @property
    def default(self) -> object:
        return self.field.default

    @property
    def optional(self) -> bool:
        return NoneType in _alternatives(self.field.annotation)

    @property
    def is_bool(self) -> bool:
        return bool in _alternatives(self.field.annotation)

    @property
    def expected(self) -> str:
        """The type and the range in words, for example "an integer, at least 1"."""
        forms = [m.expected for m in self.field.metadata if isinstance(m, TextForm)]
        bounds = [_bound_words(m) for m in self.field.metadata]
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
    return {key.dotted: key for key in _walk()}


def _walk() -> Iterator[Key]:
    for section, field in Config.model_fields.items():
        model = field.annotation
        assert isinstance(model, type)
        assert issubclass(model, Section)
        for name, key_field in model.model_fields.items():
            yield Key(section, name, key_field)


def _alternatives(annotation: Any) -> tuple[Any, ...]:  # Any: typing offers no type of types
    if get_origin(annotation) in (Union, UnionType):
        return get_args(annotation)
    return (annotation,)


def _type_words(annotation: Any) -> str:  # Any: as above
    if annotation is NoneType:
        return ""
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(get_args(annotation))
    return _TYPE_WORDS.get(annotation, str(annotation))


def _bound_words(bound: object) -> str:
    match bound:
        case Ge(ge=limit):
            return f"at least {limit}"
        case Gt(gt=limit):
            return f"above {limit}"
        case Le(le=limit):
            return f"at most {limit}"
        case Lt(lt=limit):
            return f"below {limit}"
    return ""
