"""README and docs against the project: links, commands, options, keys, metrics and events exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from compose_file import ROOT

from fetchproxy.cli import main
from fetchproxy.config.load import VARIABLE_PREFIX, all_keys, load_config, parse_assignment
from fetchproxy.config.schema import Config
from fetchproxy.observability import metrics
from fetchproxy.observability.health import Kind

COMMANDS = {name: main.loaded(name) for name in main.COMMANDS}
GENERATED = {"api.md", "commands.md", "configuration.md", "metrics.md", "log-events.md"}
DOCUMENTS = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")],
    key=lambda path: path.relative_to(ROOT).as_posix(),
)
WRITTEN = [path for path in DOCUMENTS if path.name not in GENERATED]
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
SOURCE = "\n".join(path.read_text() for path in (ROOT / "fetchproxy").rglob("*.py"))

# Words with dots or underscores in the documents that look like a key, metric or event.
KEY = re.compile(r"`([a-z_]+\.[a-z_]+)`")
METRIC = re.compile(r"`((?:fetchproxy|kafka)_[a-z_]+)`")
NOT_METRICS = {"fetchproxy_protocol", "kafka_file_left_out"}  # a package; an event of the log
EVENT = re.compile(r"`([a-z]+(?:_[a-z]+)+)`")
WORDS_OF_OTHERS = {"at_least_once", "error_cb", "max_wait_ms"}  # Kafka's and librdkafka's


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    """Without code blocks, fenced or indented."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.sub(r"^(?: {4}.*\n)+", "\n", text, flags=re.M)


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.replace(" ", "-") for title in plain}


def command_lines(path: Path) -> Iterator[list[str]]:
    """Every `fetchproxy …` and `make …` in indented blocks and in backticks, as words."""
    text = path.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^ {4}(.*)$", text, re.MULTILINE))
    lines = re.sub(r"\\\n\s*", " ", blocks).splitlines()
    for line in [*lines, *re.findall(r"`([^`\n]+)`", prose(path))]:
        words = line.strip().removeprefix("$ ")
        if re.match(r"(\.venv/bin/)?(fetchproxy|make)( |$)", words):
            yield shlex.split(words, comments=True)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), f"{target}: no such file"
        assert linked.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(linked), f"{target}: no such heading"


def test_the_pages_name_each_command() -> None:
    lines = [words for path in WRITTEN for words in command_lines(path)]
    named = {words[1] for words in lines if words[0] != "make" and len(words) > 1}
    assert set(COMMANDS) <= named, "each command is shown"


def test_the_readme_is_short_and_says_what_to_type() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text(encoding="utf-8").splitlines()) <= 120
    lines = list(command_lines(readme))
    named = {words[1] for words in lines if words[0] != "make" and len(words) > 1}
    assert {"serve", "segments", "verify"} <= named
    assert {"demo", "venv"} <= {words[1] for words in lines if words[0] == "make" and words[1:]}


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_commands_are_real(path: Path) -> None:
    for program, *arguments in command_lines(path):
        if program == "make":
            targets = [word for word in arguments if "=" not in word]
            assert set(targets) <= MAKE_TARGETS, arguments
        elif arguments:
            check_fetchproxy(arguments)


def check_fetchproxy(arguments: list[str]) -> None:
    """The command exists and its own parser takes the arguments; nothing is run.

    In prose an option may stand without its value: then only its name is checked.
    """
    if arguments == ["--version"]:
        return
    command = COMMANDS[arguments[0]]
    if isinstance(command, typer.core.TyperGroup):  # the next word is the command
        command, arguments = command.commands[arguments[1]], arguments[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    options = [word for word in arguments[1:] if word.startswith("--")]
    assert set(options) <= known, arguments
    for option, value in pairwise(arguments):
        if option == "--set":
            assert parse_assignment(value).key in all_keys(), value


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_configuration_keys_are_real(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    sections = set(Config.model_fields)
    for key in KEY.findall(text):
        if key.partition(".")[0] in sections and not key.endswith((".py", ".md")):
            assert key in all_keys(), key
    known = {key.variable for key in all_keys().values()}
    for variable in re.findall(rf"\b{VARIABLE_PREFIX}[A-Z_]*[A-Z]\b", text):
        assert variable in known | {"FETCHPROXY_CONFIG", "FETCHPROXY_REQUIRE_PARTS"}, variable
    for assignment in re.findall(r"--set ([a-z_.]+=\S+?)[`\s]", text):
        assert parse_assignment(assignment).key in all_keys(), assignment


def configurations(path: Path) -> list[str]:
    """Blocks of TOML, fenced or indented, that begin with a section of the configuration."""
    text = path.read_text(encoding="utf-8")
    fenced = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    indented = [
        re.sub("^ {4}", "", block, flags=re.MULTILINE)
        for block in re.findall(r"(?:^(?: {4}.*)?\n)+", text, re.MULTILINE)
    ]
    first = re.compile(rf"\s*\[({'|'.join(Config.model_fields)})\]")
    return [block for block in [*fenced, *indented] if first.match(block)]


CONFIGURATIONS = [(path, block) for path in WRITTEN for block in configurations(path)]


@pytest.mark.parametrize(("path", "block"), CONFIGURATIONS, ids=lambda part: str(part)[-30:])
def test_a_configuration_on_a_page_loads(path: Path, block: str, tmp_path: Path) -> None:
    file = tmp_path / "fetchproxy.toml"
    file.write_text(block, encoding="utf-8")
    needs = [] if "[archive]" not in block else [parse_assignment("store.url=file:///nowhere")]
    load_config(file, {}, needs)


def test_pages_have_configurations() -> None:
    assert len(CONFIGURATIONS) > 4


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_metrics_are_real(path: Path) -> None:
    table = metrics.table()
    for name in METRIC.findall(path.read_text(encoding="utf-8")):
        assert name in NOT_METRICS or f"`{name}`" in table, name


def test_events_in_the_operators_pages_are_logged() -> None:
    folders = ("deploy", "operate", "recover", "reference", "security", "troubleshoot")
    pages = [path for folder in folders for path in (ROOT / "docs" / folder).glob("*.md")]
    named = {
        word
        for path in pages
        if path.name not in GENERATED
        for word in EVENT.findall(path.read_text(encoding="utf-8"))
        if not word.startswith(("fetchproxy_", "kafka_", "process_"))
    }
    assert "store_failing" in named
    for event in sorted(named - WORDS_OF_OTHERS):
        kind = event.removesuffix("_no_more")  # logged when a condition is over
        assert f'"{event}"' in SOURCE or kind in set(Kind), event


def test_every_decision_is_in_the_list() -> None:
    folder = ROOT / "docs" / "adr"
    records = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert records
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\((\d{4}-[^)]+)\)", index) == records
    numbers = [name[:4] for name in records]
    assert len(set(numbers)) == len(numbers)
    for number, name in zip(numbers, records, strict=True):
        text = (folder / name).read_text(encoding="utf-8")
        title = text.splitlines()[0]
        assert title.startswith(f"# {number} ")
        assert title.removeprefix(f"# {number} ") in index, name
        assert re.fullmatch(
            r"\*(Accepted|Accepted, in part replaced), \d{4}-\d\d-\d\d\.\*", text.splitlines()[2]
        )
        for part in ("**Situation.**", "**Decision.**", "**Rejected.**"):
            assert part in text, f"{name}: {part}"


RELATIONS = {
    "Replaces in part": "Replaced in part by",
    "Limits": "Limited by",
    "Adds to": "Added to by",
    "Builds on": "Basis of",
}


def test_a_decision_that_changes_another_is_linked_both_ways() -> None:
    either = "|".join([*RELATIONS, *RELATIONS.values()])
    links = {
        (path.name, relation, other)
        for path in (ROOT / "docs" / "adr").glob("[0-9]*.md")
        for relation, other in re.findall(
            rf"^({either}) \[\d{{4}}\]\(([^)]+)\)", path.read_text(encoding="utf-8"), re.M
        )
    }
    back = RELATIONS | {passive: active for active, passive in RELATIONS.items()}
    assert len(links) >= 16
    assert links == {(other, back[relation], name) for name, relation, other in links}


def test_every_package_is_on_the_map_of_the_code() -> None:
    text = (ROOT / "docs/contribute/architecture.md").read_text(encoding="utf-8")
    packages = [
        path.parent.relative_to(ROOT).as_posix()
        for top in ("protocol", "fetchproxy")
        for path in (ROOT / top).rglob("__init__.py")
    ]
    for package in packages:
        assert package == "fetchproxy" or f"(../../{package}" in text, package
