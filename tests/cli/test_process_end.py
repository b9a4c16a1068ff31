"""A command ends its process with its own exit code, whatever is still in memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Aborts while the interpreter is taken apart, as a thread of a native library can.
ABORTS_LATE = """
import os, sys
import fetchproxy.cli.main as cli

class AbortsLate:
    def __del__(self):
        os.abort()

cli.kept = AbortsLate()
sys.argv = ["fetchproxy", *sys.argv[1:]]
cli.main()
"""


@pytest.mark.parametrize(
    ("argument", "exit_code", "output"),
    [("--version", 0, "fetchproxy "), ("no-such-command", 2, "No such command")],
)
def test_the_exit_code_is_the_commands_own(argument: str, exit_code: int, output: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", ABORTS_LATE, argument], capture_output=True, text=True, check=False
    )
    assert result.returncode == exit_code, result.stderr
    assert output in result.stdout + result.stderr


def test_an_output_that_nobody_reads_is_an_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "fetchproxy", "--version"]
    result = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert (result.returncode, result.stderr) == (1, b"")
