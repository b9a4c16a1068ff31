"""A command that is forked is in every respect the child that `subprocess` would have started."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "fetchproxy"]
HELPER = "lab.forked_start"


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ")


def test_output_exit_code_folder_and_usage(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [*COMMAND, "segments", "--store", "file:///nowhere", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert "/nowhere" in result.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime > before.ru_utime
    (tmp_path / "own.toml").write_text("[store]\nurl = 'file:///from-the-file'\n")
    command = [*COMMAND, "config", "--config", "own.toml"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "file:///from-the-file" in result.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize("session", [True, False])
def test_a_signal_ends_the_process_itself(tmp_path: Path, session: bool) -> None:
    store = tmp_path / "store"
    command = [*COMMAND, "serve", "--archive-only", "--store", store.as_uri()]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, start_new_session=session
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline(), "it runs"
        assert HELPER in command_line(process.pid)
        assert (os.getsid(process.pid) == process.pid) is session
        process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
def test_a_script_is_forked_with_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "further.py").write_text("WORD = 'further'")
    script = tmp_path / "some_process.py"
    script.write_text(
        "import beside, further, os, sys\n"
        "from pathlib import Path\n"
        "if __name__ == '__main__':\n"
        "    print(beside.WORD, further.WORD, *sys.argv[1:])\n"
        "    print(Path('/proc/self/cmdline').read_text())\n"
        "    sys.exit(3)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "more")}
    command = [sys.executable, str(script), "an argument"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (3, "")
    words, started_by = result.stdout.splitlines()
    assert words == "beside further an argument"
    assert HELPER in started_by


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
def test_another_environment_of_python_is_another_start() -> None:
    """It may change what is imported, and from where."""
    env = {**os.environ, "PYTHONPATH": "/somewhere/else:" + os.environ.get("PYTHONPATH", "")}
    command = [*COMMAND, "config", "--help"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
        assert HELPER not in command_line(process.pid)
        process.communicate()
    assert process.returncode == 0
