"""`python -m demo` as a user runs it: the whole story, a check that fails, and an interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import __main__ as command
from demo.archive_store import FolderStore

ROOT = Path(__file__).parents[2]


def start_demo(temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "demo", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_about(text: str) -> list[str]:
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if text in line:
            lines.append(line)
    return lines


@pytest.fixture
def handlers_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("upstream", "store"),
    [
        ("mock", "file"),
        pytest.param("kafka", "s3", marks=[pytest.mark.kafka, pytest.mark.s3]),
        pytest.param("mock", "gcs", marks=pytest.mark.gcs),
        pytest.param("mock", "azure", marks=pytest.mark.azure),
        pytest.param("mock", "hdfs", marks=pytest.mark.hdfs),
    ],
)
def test_the_whole_story(
    tmp_path: Path, upstream: str, store: str, request: pytest.FixtureRequest
) -> None:
    for part in {upstream, store} - {"mock", "file"}:
        request.getfixturevalue(f"{part}_server")  # or a skip that names what is missing
    demo = start_demo(tmp_path, "--upstream", upstream, "--store", store)
    output, _ = demo.communicate()
    assert demo.returncode == 0, output
    assert "Every check held" in output
    assert list(tmp_path.iterdir()) == []
    assert processes_about(str(tmp_path)) == []


@pytest.mark.slow
def test_a_check_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    handlers_restored: None,
) -> None:
    """A store that only claims to be away holds nobody back."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(FolderStore, "take_away", lambda self: "Nothing was done.")
    assert command.main([]) == 1
    output = capfd.readouterr().out
    assert "FAILED: the reader of old records is held back while the store is away" in output
    assert "fetchproxy's log" in output
    assert "Every check held" not in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_an_interruption_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    demo = start_demo(tmp_path)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "2. Produce" in line:
            break
    assert processes_about(f"{tmp_path}/fetchproxy-demo-") != []
    time.sleep(0.5)  # well into the act
    demo.send_signal(number)
    output, _ = demo.communicate()
    assert demo.returncode == status, output
    assert list(tmp_path.iterdir()) == []
    assert processes_about(str(tmp_path)) == []
