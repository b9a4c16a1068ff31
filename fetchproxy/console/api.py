"""The table of the HTTP API, from which come its routes, its OpenAPI description and its page.

`python -m fetchproxy.console.api [file]` writes the page, docs/reference/api.md; a test compares
the file on disk with `page()`.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from fetchproxy import __version__
from fetchproxy.console.process import LogLine, ProcessRow
from fetchproxy.console.rows import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    BadPage,
    GroupRow,
    Page,
    PageQuery,
    ReaderRow,
    Rows,
    SegmentRow,
    TopicRow,
)
from fetchproxy.console.status import PartitionStatus, Status
from fetchproxy.observability.health import Condition

_PARTITION_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`row`: the type of an item of a page. `rows(rows, path parameters, query)`. `guarded`: only
    for callers on this machine, or with the token.
    """

    path: str
    summary: str
    row: type
    rows: Callable[[Rows, Mapping[str, str], PageQuery], Awaitable[Page]]
    guarded: bool = False

    @property
    def parameters(self) -> list[str]:
        """Names in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _PARTITION_DIGITS_MAX):
        raise BadPage("a partition is a number")
    return int(text)


ENDPOINTS = (
    Endpoint(
        "/api/topics",
        "Topics by name, with sums over all their partitions",
        TopicRow,
        lambda rows, given, query: rows.topics(query),
    ),
    Endpoint(
        "/api/topics/{topic}/partitions",
        "Partitions of a topic by number",
        PartitionStatus,
        lambda rows, given, query: rows.partitions(given["topic"], query),
    ),
    Endpoint(
        "/api/topics/{topic}/partitions/{partition}/segments",
        "Archived segments of a partition by offset",
        SegmentRow,
        lambda rows, given, query: rows.segments(
            given["topic"], _number(given["partition"]), query
        ),
    ),
    Endpoint(
        "/api/readers",
        "Who reads history and what it costs, those with most bytes first",
        ReaderRow,
        lambda rows, given, query: rows.readers(query),
    ),
    Endpoint(
        "/api/groups",
        "Consumer groups of connected clients by name, with the cost of their clients",
        GroupRow,
        lambda rows, given, query: rows.groups(query),
    ),
    Endpoint(
        "/api/conditions",
        "Conditions, the worst first",
        Condition,
        lambda rows, given, query: rows.conditions(query),
    ),
    Endpoint(
        "/api/log",
        "The last minutes of the log, the newest first, with secrets masked",
        LogLine,
        lambda rows, given, query: rows.log(query),
        guarded=True,
    ),
    Endpoint(
        "/api/process",
        "One row: versions, settings with secrets masked, limits and clocks of the process",
        ProcessRow,
        lambda rows, given, query: rows.process(query),
        guarded=True,
    ),
)
# Paths that have no pages: path, summary, type of the answer.
OTHERS: tuple[tuple[str, str, type | str], ...] = (
    ("/api/status", "All figures of the page", Status),
    ("/api/openapi.json", "This description", "object"),
    ("/metrics", "Metrics in the text format of Prometheus", "text"),
    ("/healthz", "200: the process is alive; open without a token", "text"),
    ("/readyz", "200: the process is ready, 503: it is not; open without a token", "object"),
)


# -- OpenAPI --------------------------------------------------------------------------------------
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def openapi() -> dict[str, Any]:
    """The whole description (OpenAPI 3.1)."""
    schemas: dict[str, Any] = {}
    paths = {one.path: {"get": _operation(one, schemas)} for one in ENDPOINTS}
    for path, summary, answer in OTHERS:
        content = _content(answer, schemas)
        paths[path] = {"get": {"summary": summary, "responses": {"200": content}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "fetchproxy", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{}, {"token": []}, {"password": []}],
    }


def _operation(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    whole = {"type": "integer", "minimum": 0}
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": whole if name == "partition" else {"type": "string"},
        }
        for name in endpoint.parameters
    ]
    limit = {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT}
    parameters.append({"name": "limit", "in": "query", "schema": limit})
    parameters.append({"name": "after", "in": "query", "schema": {"type": "string"}})
    items = {"type": "array", "items": _schema(endpoint.row, schemas)}
    page = {
        "type": "object",
        "required": ["items", "next"],
        "properties": {"items": items, "next": {"type": ["string", "null"]}},
    }
    responses: dict[str, Any] = {
        "200": {"description": "A page", "content": {"application/json": {"schema": page}}},
        "400": {"description": "`limit` or `after` has a wrong form"},
        "401": {"description": "The token is missing or wrong (console.token_file)"},
    }
    if endpoint.guarded:
        responses["403"] = {"description": "Only from this machine, or with the token"}
    if endpoint.parameters:
        responses["404"] = {"description": "There is no such topic or partition"}
    return {"summary": endpoint.summary, "parameters": parameters, "responses": responses}


def _content(answer: type | str, schemas: dict[str, Any]) -> dict[str, Any]:
    if answer == "text":
        return {"description": "Text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    schema = {"type": "object"} if isinstance(answer, str) else _schema(answer, schemas)
    return {"description": "JSON", "content": {"application/json": {"schema": schema}}}


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a type; that of a dataclass goes to `schemas`."""
    if kind is type(None):
        return {"type": "null"}
    if kind in _JSON_TYPES:
        return {"type": _JSON_TYPES[kind]}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, schemas) for one in arguments]}
    if kind is Condition or origin in (dict, Mapping) or get_origin(kind) in _MAPPINGS:
        value = {} if kind is Condition else _schema(arguments[-1], schemas)
        return {"type": "object", "additionalProperties": value or True}
    if origin in (tuple, list):
        return {"type": "array", "items": _schema(arguments[0], schemas)}
    if is_dataclass(kind):
        name = kind.__name__  # type: ignore[union-attr]
        if name not in schemas:
            schemas[name] = {}  # it may refer to itself
            schemas[name] = _object(kind, schemas)
        return {"$ref": f"#/components/schemas/{name}"}
    raise TypeError(f"no JSON schema for {kind!r}")


_MAPPINGS = (dict, types.MappingProxyType, get_origin(Mapping[str, int]))


def _object(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    properties = {field.name: _schema(hints[field.name], schemas) for field in fields(kind)}
    found = {"type": "object", "required": list(properties), "properties": properties}
    if meaning := _meaning(kind):
        found["description"] = meaning
    return found


def _meaning(kind: Any) -> str:
    """The docstring; the one that dataclasses make is none."""
    text = " ".join((inspect.getdoc(kind) or "").split())
    return "" if text.startswith(f"{kind.__name__}(") else text


# -- the page -------------------------------------------------------------------------------------
_INTRODUCTION = f"""\
# HTTP API

<!-- Generated by `python -m fetchproxy.console.api`; do not edit. -->

The console (`--console HOST:PORT`) answers these paths. Every request is a GET without a body. The
same description is served as OpenAPI 3.1 at `/api/openapi.json`. How to use it:
[ask a running process](../operate/ask.md).

A page is `{{"items": […], "next": "…"}}`. It has at most `limit` rows (default {LIMIT_DEFAULT}, at
most {LIMIT_MAX:,}). Give `next` as `after` to get the next page; `null`: there are no more rows.

With `console.token_file`, each path but `/healthz` and `/readyz` needs the token: as
`Authorization: Bearer TOKEN`, or as the password of any user (Basic). Without it, *guarded* paths
answer callers on this machine only.

"""


def page() -> str:
    parts = [_INTRODUCTION, "| path | answers |\n|---|---|\n"]
    for one in ENDPOINTS:
        guarded = " (guarded)" if one.guarded else ""
        parts.append(f"| `{one.path}` | {one.summary}{guarded} |\n")
    parts += [f"| `{path}` | {summary} |\n" for path, summary, _ in OTHERS]
    schemas: dict[str, Any] = {}
    for one in ENDPOINTS:
        parts.append(f"\n## {one.path}\n\n{one.summary}. ")
        if not is_dataclass(one.row) or one.row is Condition:
            parts.append("See [conditions and remedies](conditions.md).\n")
            continue
        parts.append(f"{_meaning(one.row)}\n\n| field | type |\n|---|---|\n")
        hints = get_type_hints(one.row)
        for field in fields(one.row):
            parts.append(f"| `{field.name}` | {_words(_schema(hints[field.name], schemas))} |\n")
    return "".join(parts)


def _words(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_words(one) for one in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if schema["type"] == "array":
        return f"list of {_words(schema['items'])}"
    return str(schema["type"])


def main(arguments: list[str]) -> None:
    path = Path(arguments[0] if arguments else "docs/reference/api.md")
    path.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
