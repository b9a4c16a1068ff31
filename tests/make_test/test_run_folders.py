"""What `make test` calls green, red and flaky, on small projects that real pytest runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import run_folders
from run_folders import FLAKY_MAX, Result, pieces, read_result

FAILS_ONCE = """
from pathlib import Path

def fail_once(name):
    there = Path(f"{name}.ran").exists()
    Path(f"{name}.ran").touch()
    assert there
"""
PASSES = "def test_passes():\n    pass\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    Path("pytest.ini").write_text("[pytest]\nmarkers = slow\naddopts = -ra\n")
    write("good", PASSES)
    return tmp_path


def write(folder: str, text: str) -> None:
    Path("tests", folder).mkdir(parents=True, exist_ok=True)
    Path("tests", folder, f"test_{folder}.py").write_text(text)


def make_test(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, run_folders.__file__, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not ended.stderr
    return ended.returncode, ended.stdout


def test_green() -> None:
    write("skips", "import pytest\n\ndef test_skips():\n    pytest.skip('no such part')\n")
    code, output = make_test()
    assert code == 0
    assert "1 x Skipped: no such part" in output
    assert "flaky" not in output
    assert re.fullmatch(r"=+ 1 skipped, 1 passed in [0-9.]+s =+", output.splitlines()[-1])


def test_a_folder_whose_tests_are_all_slow_is_left_out_with_them() -> None:
    slow = "import pytest\n\npytestmark = [\n    pytest.mark.slow,\n]\n\n"
    write("slowly", slow + PASSES)
    assert make_test("-m", "not slow")[0] == 0
    code, output = make_test()
    assert code == 0
    assert " 2 passed in " in output


def test_what_passes_alone_is_green_and_printed_last_as_flaky() -> None:
    in_fixtures = """
import pytest

@pytest.fixture
def in_setup():
    fail_once("setup")

@pytest.fixture
def in_teardown():
    yield
    fail_once("teardown")

def test_setup(in_setup):
    pass

def test_teardown(in_teardown):
    pass
"""
    write("fixtures", FAILS_ONCE + in_fixtures)
    names = ("a", "b", "c")
    write("calls", FAILS_ONCE + "".join(f"def test_{n}():\n    fail_once('{n}')\n" for n in names))
    Path("tests/flaky.txt").write_text("# known\ntests/calls/test_calls.py::test_a\n")
    code, output = make_test()
    assert code == 0
    report, _, last = output.partition("\nflaky ")[2].rpartition("\n\n")
    all_five, _, to_add = report.partition("add to tests/flaky.txt")
    tests = [f"tests/calls/test_calls.py::test_{name}" for name in names]
    tests += [f"tests/fixtures/test_fixtures.py::test_{name}" for name in ("setup", "teardown")]
    assert sorted(all_five.split()[-5:]) == tests
    assert sorted(to_add.splitlines()[1:]) == tests[1:]
    assert " 5 flaky, 1 passed in " in last


def test_more_than_five_are_red() -> None:
    tests = "".join(f"def test_{number}():\n    fail_once({number})\n" for number in range(6))
    write("once", FAILS_ONCE + tests)
    assert FLAKY_MAX == 5
    code, output = make_test()
    assert code == 1
    assert "6 tests failed" in output
    assert "FAILED tests/once/test_once.py::test_5" in output
    assert "flaky (" not in output


def test_what_does_not_pass_alone_is_red() -> None:
    skips = "def test_skips():\n    fail_once('skips')\n    pytest.skip()\n"
    write("once", f"import pytest\n{FAILS_ONCE}\ndef test_once():\n    fail_once('once')\n" + skips)
    write("bad", "def test_bad():\n    assert 1 == 2\n")
    code, output = make_test()
    assert code == 1
    assert "FAILED tests/bad/test_bad.py::test_bad - also alone" in output
    assert "FAILED tests/once/test_once.py::test_skips - also alone" in output
    assert "test_once - also alone" not in output
    assert "assert 1 == 2" in output
    assert re.fullmatch(r"=+ 3 failed, 1 passed in [0-9.]+s =+", output.splitlines()[-1])


BROKEN = {
    "import no_such_module\n": "cannot collect tests/broken0/test_broken0.py",
    "def test(:\n": "cannot collect tests/broken1/test_broken1.py",
    "def test():\n    import os\n    os.kill(os.getpid(), 9)\n": (
        "ended with exit code -9 before it was done"
    ),
    "def test():\n    import os\n    os._exit(0)\n": ("ended with exit code 0 before it was done"),
    "def test():\n    raise KeyboardInterrupt\n": "ended with exit code 2, 0 tests failed",
    "import atexit, os\natexit.register(os._exit, 3)\ndef test():\n    pass\n": (
        "ended with exit code 3, 0 tests failed"
    ),
    "X = 1\n": "no test ran",
    "import pytest\n@pytest.mark.slow\ndef test():\n    pass\n": "no test ran",
}


def test_a_pytest_that_breaks_is_red() -> None:
    for number, text in enumerate(BROKEN):
        write(f"broken{number}", text)
    code, output = make_test("-m", "not slow")
    assert code == 1
    for number, reason in enumerate(BROKEN.values()):
        assert f"ERROR tests/broken{number}: {reason}" in output
    assert " 2 passed in " in output  # of `good` and of the one whose process ended wrong


def test_each_of_the_short_folders_must_have_a_test_that_ran() -> None:
    write("demo", PASSES)
    write("lab", PASSES)
    assert make_test()[0] == 0
    write("lab", f"import pytest\n\n@pytest.mark.slow\n{PASSES}")
    code, output = make_test("-m", "not slow")
    assert code == 1
    assert "ERROR short folders: no test ran in tests/lab" in output


def test_no_test_at_all_is_red() -> None:
    Path("tests/good/test_good.py").unlink()
    assert make_test()[0] == 1


def test_a_pytest_that_is_killed_is_red_whatever_else_it_left() -> None:
    fails = "def test_fails():\n    fail_once('a')\n"
    write("hangs", FAILS_ONCE + fails + "def test_hangs():\n    while True:\n        pass\n")
    command = [sys.executable, run_folders.__file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        while not Path("a.ran").exists():
            time.sleep(0.01)
        os.kill(pid_of("hangs", running.pid), signal.SIGKILL)
        assert running.stdout is not None
        output = running.stdout.read()
    assert running.returncode == 1
    assert "ERROR tests/hangs: ended with exit code -9" in output


def pid_of(folder: str, parent: int) -> int:
    for stat in Path("/proc").glob("[0-9]*/cmdline"):
        if f"tests/{folder}/" in stat.read_text() and f"PPid:\t{parent}\n" in (
            stat.with_name("status").read_text()
        ):
            return int(stat.parent.name)
    raise AssertionError(f"no pytest of {folder}")


def test_what_is_checked_and_set_up_counts_too() -> None:
    """A failed check ends the run soon; what had begun is not thrown away."""
    Path("pytest.ini").write_text("[pytest]\nmarkers = kafka\n")
    test = "def test_real():\n    assert Path('there').read_text() == 'ready'\n"
    write(
        "real", f"import pytest\nfrom pathlib import Path\npytestmark = pytest.mark.kafka\n\n{test}"
    )
    set_up = "sleep 0.1; echo -n ready > there"
    code, output = make_test("--setup", set_up, "--check", "echo it is well")
    assert code == 0
    assert "it is well" in output
    assert " 2 passed in " in output.splitlines()[-1]
    for name, arguments in (("check", ["--check", "exit 2"]), ("set up", ["--setup", "exit 2"])):
        code, output = make_test(*arguments)
        assert code == 1
        assert f"ERROR {name}: ended with exit code 2" in output


def test_every_module_is_in_one_piece() -> None:
    write("e2e", PASSES)
    real = PASSES + "\n\npytestmark = pytest.mark.kafka\n"
    for number in range(5):
        Path(f"tests/e2e/test_{number}.py").write_text(real)
    Path("tests/good/below").mkdir()
    Path("tests/good/below/test_below.py").write_text(PASSES)
    Path("tests/test_tidy.py").write_text(PASSES)
    with_parts, without = pieces(Path("tests"))
    assert [p.name for p in with_parts] == [f"tests/e2e {n}/4, real parts" for n in (1, 2, 3, 4)]
    apart = ["tests/e2e", "tests/good/below", "tests/good"]
    assert [p.name for p in without] == [*apart, "short folders"]
    modules = [module for piece in with_parts + without for module in piece.modules]
    assert sorted(modules) == sorted(map(str, Path("tests").rglob("test_*.py")))


def test_the_worst_outcome_of_a_test_counts() -> None:
    line = '{"test": "a", "outcome": "%s", "reason": ""}'
    lines = [line % outcome for outcome in ("failed", "passed", "skipped")]
    result = read_result("x", 1, [*lines, '{"exit_status": 1}'])
    assert result == Result("x", 1, 1, {"a": "failed"})
    assert result.failed == ["a"]
    assert result.broken is None
