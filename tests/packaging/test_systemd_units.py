"""The units in deploy/systemd: systemd takes them, they are closed, and they run what there is."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from compose_file import ROOT

from fetchproxy.config.load import load_config

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
PROGRAM = "/opt/fetchproxy/bin/fetchproxy"
EXPOSURE_MAX = 2.0  # systemd calls that "OK"; a unit without settings has 9.6


def settings_of(unit: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit, "utf-8")
    return parser


@pytest.fixture
def analyze(tmp_path: Path) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not on PATH (Debian's package systemd)")
    return program


def installed(unit: Path, folder: Path) -> Path:
    """The unit with a program that is on this machine."""
    text = unit.read_text("utf-8")
    assert PROGRAM in text
    there = folder / unit.name
    there.write_text(text.replace(PROGRAM, "/bin/true"), "utf-8")
    return there


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_nothing_wrong(unit: Path, analyze: str, tmp_path: Path) -> None:
    command = [analyze, "verify", "--man=no", str(installed(unit, tmp_path))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
    broken = tmp_path / "broken.service"
    broken.write_text(unit.read_text("utf-8").replace("Restart=on-failure", "Restart=perhaps"))
    command[-1] = str(broken)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "perhaps" in result.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_is_closed(unit: Path, analyze: str, tmp_path: Path) -> None:
    command = [analyze, "security", "--offline=true", "--no-pager", str(installed(unit, tmp_path))]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    match = re.search(r"Overall exposure level for \S+: ([\d.]+)", result.stdout)
    assert match is not None
    assert float(match[1]) <= EXPOSURE_MAX


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_spool_is_in_the_state_directory(unit: Path) -> None:
    service = settings_of(unit)["Service"]
    name, _, value = service["Environment"].partition("=")
    config = load_config(None, {name: value}, [])
    assert str(config.archive.spool_dir) == f"/var/lib/{service['StateDirectory']}"
    file = {"fetchproxy": "proxy", "fetchproxy-archiver": "archiver", "fetchproxy@": "%i"}[
        unit.stem
    ]
    assert service["StateDirectory"] == f"fetchproxy/{file}"
    command = service["ExecStart"].split()
    assert command[0] == PROGRAM
    assert command[1] == ("archive" if unit.stem == "fetchproxy-archiver" else "serve")
    assert command[2:] == ["--config", f"/etc/fetchproxy/{file}.toml"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_reload_reads_the_settings_again(unit: Path) -> None:
    """`systemctl reload`, as docs/deploy/run.md says. The commands handle SIGHUP."""
    assert settings_of(unit)["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"
