"""The template of a store plug-in as a third party has it: built, installed, tested outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from built_wheels import built, built_product
from compose_file import ROOT

TEMPLATE = ROOT / "examples" / "sqlite_store"


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment that has both wheels. What they need besides is that of the
    environment of this test, so that no registry is asked."""
    folder = tmp_path_factory.mktemp("outside")
    package = Path(shutil.copytree(TEMPLATE, folder / "package"))
    wheels = [built_product(folder), built(package, folder)]
    venv.create(folder / "venv", with_pip=False)
    [site] = (folder / "venv").glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ["install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", *install, *map(str, wheels)], check=True)
    shutil.copytree(TEMPLATE / "tests", folder / "tests")
    shutil.copy(TEMPLATE / "pyproject.toml", folder / "pyproject.toml")
    return folder


def run(outside: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(outside / "venv" / "bin" / "python"), *arguments],
        cwd=outside,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_both_are_those_that_were_installed(outside: Path) -> None:
    outcome = run(outside, "-c", "import fetchproxy, sqlite_store as s; print(fetchproxy, s)")
    assert outcome.stdout.count(str(outside / "venv")) == 2, outcome.stderr


def test_the_template_passes_the_contract_outside_the_repository(outside: Path) -> None:
    outcome = run(outside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert outcome.returncode == 0, outcome.stdout[-3000:] + outcome.stderr
    passed = outcome.stdout.rpartition(" passed")[0].split()[-1]
    assert int(passed) > 60, outcome.stdout


def test_commands_open_it_by_its_scheme(outside: Path) -> None:
    command = ("-m", "fetchproxy", "segments", "--store", "sqlite:///nowhere/archive.db")
    outcome = run(outside, *command)
    assert outcome.returncode == 2
    assert "unable to open database file" in outcome.stderr


def test_a_backend_fits_into_150_lines() -> None:
    assert len((TEMPLATE / "sqlite_store.py").read_text(encoding="utf-8").splitlines()) <= 150
