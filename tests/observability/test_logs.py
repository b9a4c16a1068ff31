from __future__ import annotations

import io
import json
import logging
import re
import warnings
from pathlib import Path
from typing import Literal

import pytest
import structlog

from fetchproxy.cli.running import safe_one_line
from fetchproxy.config.schema import LogConfig
from fetchproxy.observability.health import Condition
from fetchproxy.observability.log_events import EVENTS
from fetchproxy.observability.logs import configure_logging
from fetchproxy.observability.metrics import LOG_MESSAGES


def lines(
    config: LogConfig | None = None,
) -> tuple[io.StringIO, structlog.typing.FilteringBoundLogger]:
    stream = io.StringIO()
    configure_logging(config or LogConfig(), stream)
    return stream, structlog.get_logger("fetchproxy.somewhere")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_lines_when_no_terminal() -> None:
    stream, log = lines()
    log.info("segment_copied", topic="t", partition=0, base_offset=7)
    entry = json.loads(stream.getvalue())
    assert list(entry)[:4] == ["timestamp", "level", "event", "logger"]
    assert entry.pop("timestamp").endswith("Z")
    assert entry == {
        "level": "info",
        "event": "segment_copied",
        "logger": "fetchproxy.somewhere",
        "topic": "t",
        "partition": 0,
        "base_offset": 7,
    }


def test_people_get_coloured_lines_on_a_terminal() -> None:
    stream = Terminal()
    configure_logging(LogConfig(), stream)
    structlog.get_logger("x").info("segment_copied", topic="t")
    assert "\x1b[" in stream.getvalue()
    assert "segment_copied" in stream.getvalue()


def test_the_format_can_be_forced() -> None:
    stream = Terminal()
    configure_logging(LogConfig(format="json"), stream)
    structlog.get_logger("x").info("segment_copied")
    assert json.loads(stream.getvalue())["event"] == "segment_copied"
    stream, log = lines(LogConfig(format="console"))
    log.info("segment_copied", topic="t")
    assert "\x1b[" not in stream.getvalue()
    assert "topic=t" in stream.getvalue()


def test_the_page_shows_a_line_in_both_formats() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/log-events.md").read_text(encoding="utf-8")
    samples = re.findall(r"^    (.*offsets_in_memory_only.*)$", page, re.MULTILINE)
    hint = EVENTS["offsets_in_memory_only"].action
    for format, line in zip(("console", "json"), samples, strict=True):
        stream = io.StringIO()
        configure_logging(LogConfig(format=format), stream)  # type: ignore[arg-type]
        log = structlog.get_logger("fetchproxy.serving.archive_only.committed_offsets")
        log.warning("offsets_in_memory_only", hint=str(hint).replace("`", ""))
        logged = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", stream.getvalue().strip())
        assert re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", line) == logged


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\nclean\u202e\udc80\x9b\x00"
HARMLESS = r"\x1b]0;owned\x07\x1b[2J\r\nclean\u202e\udc80\x9b\x00"


@pytest.mark.parametrize("form", ["json", "console"])
def test_texts_from_outside_do_no_harm(form: Literal["json", "console"]) -> None:
    stream = io.StringIO()
    configure_logging(LogConfig(format=form), stream)
    structlog.get_logger().info(
        "login_refused", user=HOSTILE, names=[HOSTILE], error=OSError(HOSTILE)
    )
    written = stream.getvalue().removesuffix("\n")
    written.encode()  # no lone surrogate
    assert written.isprintable()
    assert written.count("2J") == 3
    assert HARMLESS in json.loads(written)["user"] if form == "json" else HARMLESS in written
    assert str(Condition("kind", HOSTILE)) == f"kind: {HARMLESS}"
    assert safe_one_line(HOSTILE) == HARMLESS


def test_levels_below_the_configured_one_are_silent() -> None:
    stream, log = lines(LogConfig(level="warning"))
    log.info("quiet")
    log.warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_never_leave(form: str) -> None:
    stream, log = lines(LogConfig.model_validate({"format": form}))
    try:
        raise RuntimeError("no access to s3://me:hunter2@bucket")
    except RuntimeError as error:
        log.exception(
            "store_refused",
            password="hunter2",
            headers={"Authorization": "hunter2", "deep": [{"api_token": "hunter2"}]},
            url="s3://bucket?secret_key=hunter2",
            error=error,
            api_key=1,
        )
    assert "hunter2" not in stream.getvalue()
    assert "RuntimeError" in stream.getvalue()
    if form == "json":
        entry = json.loads(stream.getvalue())
        assert entry["api_key"] == 1
        assert "Traceback" in entry["exception"]
        assert entry["error"] == "no access to s3://•••@bucket"


def test_libraries_are_heard_from_warning_on() -> None:
    stream, _ = lines(LogConfig(level="debug"))
    library = logging.getLogger("some.library")
    library.info("not ours to tell")
    library.warning("pool is full: %d", 10)
    library.log(35, "between levels")
    try:
        raise ValueError("boom")
    except ValueError:
        library.exception("failed with token=abc")
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [entry["event"] for entry in entries] == ["library_message"] * 3
    assert entries[0]["message"] == "pool is full: 10"
    assert entries[0]["logger"] == "some.library"
    assert entries[0]["level"] == "warning"
    assert "exception" not in entries[1]
    assert "boom" in entries[2]["exception"]
    assert entries[2]["message"] == "failed with token=•••"


def test_warnings_of_python_are_logged() -> None:
    stream, _ = lines()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old api", stacklevel=1)
    assert "old api" in json.loads(stream.getvalue().splitlines()[0])["message"]


def test_a_second_call_replaces_the_first() -> None:
    first, log = lines()
    second, _ = lines()
    log.info("here")
    assert first.getvalue() == ""
    assert "here" in second.getvalue()


def test_lines_are_counted_by_events_of_the_page_and_by_no_other_text() -> None:
    def count(event: str, level: str) -> float:
        samples = [one for family in LOG_MESSAGES.collect() for one in family.samples]
        return sum(s.value for s in samples if s.labels == {"event": event, "level": level})

    before = count("partition_assigned", "info"), count("other", "warning")
    _, log = lines(LogConfig(level="info"))
    log.info("partition_assigned")
    log.debug("partition_assigned")
    log.warning("what a client wrote")
    log.info("store_failing_no_more")
    assert (count("partition_assigned", "info"), count("other", "warning")) == (
        before[0] + 1,
        before[1] + 1,
    )
    assert count("store_failing_no_more", "info") >= 1
    assert count("what a client wrote", "warning") == 0
