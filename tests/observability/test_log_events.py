"""The table of log events names what the code logs, and nothing else."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from fetchproxy.observability import document, log_events
from fetchproxy.observability.document import main
from fetchproxy.observability.health import Kind, Level
from fetchproxy.observability.log_events import CLOSE_REASONS, EVENTS, LogEvent

ROOT = Path(__file__).parents[2]
# This is what logs; it knows no events of its own, but that of libraries.
MACHINERY = ROOT / "fetchproxy/observability"
LIBRARY = "library_message"
LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "warn": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}
# `listener` takes these from a table of limits.
REASONS_BY_LIMIT = {"connections_max", "connections_per_ip_max"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Logged:
    """A call that logs. `hint`: None if it has none, "" if it is not a constant."""

    event: str
    level: str
    place: str
    hint: str | None
    has_traceback: bool


@dataclass
class Module:
    """`helpers`: functions that log an event that their caller names, with its level, and where
    they do so.
    """

    path: Path
    tree: ast.Module = field(init=False)
    helpers: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.path.read_text(encoding="utf-8"))

    def logged(self) -> Iterator[Logged]:
        constants = assignments(self.tree.body)
        functions = [node for node in ast.walk(self.tree) if isinstance(node, Function)]
        for function in functions:
            names = assignments(ast.walk(function))
            for call in calls_in(function):
                levels = set(levels_of(call.func, names))
                if levels:
                    events = set(texts(call.args[0], names))
                    if not events:
                        assert isinstance(call.args[0], ast.Name), self.place(call)
                        assert call.args[0].id in {one.arg for one in function.args.args}
                        self.helpers[function.name] = levels.pop(), self.place(call)
                    for event in events:
                        yield from self.at(call, event, levels, constants)
        for call in calls_in(self.tree):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if name in self.helpers:
                (event,) = texts(call.args[0], {})
                yield from self.at(call, event, {self.helpers[name][0]}, constants)

    def at(
        self,
        call: ast.Call,
        event: str,
        levels: Iterable[str],
        constants: Mapping[str, list[ast.expr]],
    ) -> Iterator[Logged]:
        fields = {one.arg: one.value for one in call.keywords}
        written = fields.get("hint", fields.get("remedy"))
        hint = None if written is None else next(iter(texts(written, constants)), "")
        traceback = "exc_info" in fields or ast.unparse(call.func).endswith(".exception")
        for level in levels:
            yield Logged(event, level, self.place(call), hint, traceback)

    def place(self, node: ast.expr) -> str:
        return f"{self.path.relative_to(ROOT)}:{node.lineno}"


def calls_in(tree: ast.AST) -> Iterator[ast.Call]:
    """Of a function: without those of the functions in it."""
    nodes = list(ast.iter_child_nodes(tree))
    while nodes:
        node = nodes.pop()
        if isinstance(tree, ast.Module) or not isinstance(node, Function):
            nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call):
            yield node


def assignments(nodes: Iterable[ast.AST]) -> Mapping[str, list[ast.expr]]:
    values_by_name = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values_by_name[node.targets[0].id].append(node.value)
    return values_by_name


def possible(node: ast.expr, names: Mapping[str, list[ast.expr]]) -> Iterator[ast.expr]:
    """The expressions for which a name or a condition may stand."""
    if isinstance(node, ast.IfExp):
        yield from possible(node.body, names)
        yield from possible(node.orelse, names)
    elif isinstance(node, ast.Name):
        for value in names.get(node.id, []):
            yield from possible(value, {})
    else:
        yield node


def texts(node: ast.expr, names: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    """The constants that an expression may be."""
    for one in possible(node, names):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def levels_of(node: ast.expr, names: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    """At which levels a call of `node` logs; nothing if it does not log."""
    for one in possible(node, names):
        if not isinstance(one, ast.Attribute):
            continue
        owner = ast.unparse(one.value)
        if one.attr in LEVELS and (owner == "log" or owner.endswith("warnings")):
            yield LEVELS[one.attr]
        elif (owner, one.attr) == ("RECENT_EVENTS", "note"):
            yield "info"


@cache
def modules() -> tuple[Module, ...]:
    paths = [
        path
        for top in ("fetchproxy", "protocol", "pyspark_remotelog")
        for path in sorted((ROOT / top).rglob("*.py"))
    ]
    return tuple(Module(path) for path in paths if MACHINERY not in path.parents)


@cache
def logged() -> tuple[Logged, ...]:
    return tuple(one for module in modules() for one in module.logged())


def test_each_event_of_the_code_is_in_the_table_with_its_levels() -> None:
    levels: defaultdict[str, set[str]] = defaultdict(set)
    for one in logged():
        if one.level != "debug":  # for developers
            levels[one.event].add(one.level)
    assert LIBRARY not in levels
    levels[LIBRARY] = {"error", "warning"}
    assert {name: set(one.levels) for name, one in EVENTS.items()} == levels


def test_no_use_of_a_logger_is_missed() -> None:
    """Each is a call of which the test knows the event, or a level that is chosen for one."""
    places = {one.place for one in logged()}
    for module in modules():
        places |= {place for _, place in module.helpers.values()}
        nodes = list(ast.walk(module.tree))
        calls = [
            node for node in nodes if isinstance(node, ast.Call) and set(levels_of(node.func, {}))
        ]
        assert {module.place(call) for call in calls} <= places
        chosen = [
            choice for node in nodes if isinstance(node, ast.IfExp) for choice in ast.walk(node)
        ]
        known = [*(call.func for call in calls), *chosen]
        for node in nodes:
            if isinstance(node, ast.Attribute) and set(levels_of(node, {})):
                assert node in known, module.place(node)
        text = module.path.read_text(encoding="utf-8")
        assert text.count("get_logger(") == text.count("\nlog = structlog.get_logger(__name__)\n")


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_can_be_understood_alone(name: str) -> None:
    event = EVENTS[name]
    assert event.levels == tuple(level for level in log_events.LEVELS if level in event.levels)
    assert len(event.meaning.split()) >= 3
    assert event.meaning[-1] not in "."
    if name in set(Kind):
        assert event.action is {kind.value: kind for kind in Kind}[name], "one name, one meaning"


def test_the_page_shows_each_level_at_which_a_name_is_logged() -> None:
    """Also that of the condition: whoever looks up an error must not read that it is a warning."""
    page = document.events_document()
    for kind in Kind:
        if (row := re.search(rf"^\| `{kind}` \| ([a-z, ]+) \|", page, re.MULTILINE)) is None:
            continue
        level = kind.meaning.level
        logged_at = "info" if level is Level.ON_RECORD else level.value
        assert {logged_at, *EVENTS[kind].levels} == set(row[1].split(", ")), kind


@pytest.mark.parametrize("event", [name for name, one in EVENTS.items() if one.needs_operator])
def test_whoever_has_to_act_reads_in_the_line_what_to_do(event: str) -> None:
    """Or at the condition that is named in the table, or it is a defect with a traceback."""
    action = EVENTS[event].action
    for one in logged():
        if one.event != event or one.level not in ("warning", "error"):
            continue
        if action == log_events.DEFECT:
            assert one.has_traceback, one.place
        elif not isinstance(action, Kind):
            assert one.hint is not None, f"{one.place}: no hint"
            assert one.hint in action.replace("`", ""), f"{one.place}: not as in the table"


def test_a_line_with_a_traceback_is_a_defect() -> None:
    for one in logged():
        if one.has_traceback and one.level == "error":
            assert EVENTS[one.event].action in (log_events.DEFECT, Kind.PART_FAILED), one.place


def test_each_reason_to_close_a_connection_is_explained() -> None:
    reasons = {
        text
        for module in modules()
        if "serving" in module.path.parts
        for call in calls_in(module.tree)
        if ast.unparse(call.func).split(".")[-1]
        in ("close", "close_late", "close_sessions", "_say_closed")
        for argument in call.args
        for text in texts(argument, {})
    }
    assert set(CLOSE_REASONS) == reasons | REASONS_BY_LIMIT


def test_the_page_on_disk_is_the_generated_one(tmp_path: Path) -> None:
    main([str(tmp_path / "metrics.md")])
    generated = (tmp_path / "log-events.md").read_text(encoding="utf-8")
    on_disk = (ROOT / "docs/reference/log-events.md").read_text(encoding="utf-8")
    assert on_disk == generated, "run python -m fetchproxy.observability.document"
    for name, event in EVENTS.items():
        levels = ", ".join(document.levels_of(name))
        assert f"| `{name}` | {levels} | {event.meaning} |" in generated
    for kind in Kind:
        assert f"`{kind}`" in generated


def test_who_needs_nobody_says_so() -> None:
    assert not LogEvent(("info",), "all is well").needs_operator
    assert not LogEvent(("info",), "all is well", "none: it is tried again").needs_operator
    assert LogEvent(("error",), "the disk is full", "free space").needs_operator
