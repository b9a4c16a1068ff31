"""docs/deploy/run.md, systemd: what its commands install has all that the units start."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
from compose_file import ROOT
from page_commands import plain_commands

from lab.errors import PartMissing
from lab.mock_cluster import MockCluster
from lab.process import ServerProcess, free_port
from tests.conftest import FindPart

PAGE = (ROOT / "docs" / "deploy" / "run.md").read_text("utf-8")
NEED_ROOT = ("useradd ", "systemctl ")
REGISTRY_AWAY = re.compile(r"NewConnectionError|NameResolutionError|ProxyError|ConnectTimeout")
START_S = 120.0
FILES = {"fetchproxy": "proxy", "fetchproxy-archiver": "archiver", "fetchproxy@": "b"}


def typed(folder: Path) -> None:
    """The block's commands, with `folder` in place of `/`. Raises PartMissing: no registry."""
    (folder / "etc" / "systemd" / "system").mkdir(parents=True)
    commands = list(plain_commands(PAGE))
    begins = commands.index("python3 -m venv /opt/fetchproxy")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for command in commands[begins : commands.index("systemctl daemon-reload")]:
        if command.startswith(NEED_ROOT):
            continue
        result = subprocess.run(
            ["bash", "-c", moved(command, folder)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode and REGISTRY_AWAY.search(result.stderr):
            raise PartMissing("Python registry", "does not answer", "Connect the machine to one.")
        assert result.returncode == 0, (command, result.stdout, result.stderr)


def moved(text: str, folder: Path) -> str:
    return re.sub(r"/(opt|etc|var)/", rf"{folder}/\1/", text)


def is_ready(console: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{console}/readyz") as response:
            return bool(response.status == 200)
    except OSError:  # it does not listen yet, or says 503
        return False


@pytest.mark.slow
def test_the_units_start_what_the_page_installs(
    tmp_path: Path, find_part: FindPart[None], mock_cluster: MockCluster
) -> None:
    find_part("python registry", lambda: typed(tmp_path))
    units = sorted((tmp_path / "etc" / "systemd" / "system").glob("*.service"))
    assert {unit.stem for unit in units} == set(FILES)
    (tmp_path / "etc" / "fetchproxy").mkdir()
    for unit in units:
        file = FILES[unit.stem]
        console = f"127.0.0.1:{free_port()}"
        (tmp_path / "etc" / "fetchproxy" / f"{file}.toml").write_text(
            f'cluster.bootstrap = "{mock_cluster.bootstrap}"\n'
            f'store.url = "file://{tmp_path}/archive"\n'
            f'gateway.listen = "127.0.0.1:{free_port()}"\n'
            f'archive.topics = "{"orders" if file == "archiver" else ""}"\n'
            f'console.listen = "{console}"\n'
        )
        unit_file = configparser.ConfigParser(strict=False, interpolation=None)
        unit_file.read_string(moved(unit.read_text("utf-8").replace("%i", file), tmp_path))
        name, _, value = unit_file["Service"]["Environment"].partition("=")
        command = unit_file["Service"]["ExecStart"].split()
        process = ServerProcess(unit.stem, command, tmp_path / "log", {name: value}, tmp_path)
        process.start()
        try:
            process.wait_until(lambda console=console: is_ready(console), START_S)
        finally:
            process.stop()
