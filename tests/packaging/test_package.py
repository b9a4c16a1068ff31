"""What `pip install` and the image get: the wheel's content, and the Dockerfile's sources."""

from __future__ import annotations

import re
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from built_wheels import PYPROJECT, built_product, copied
from compose_file import ROOT, dockerfile, image_environment

from fetchproxy import __version__
from fetchproxy.config.schema import ArchiveConfig, GatewayConfig
from fetchproxy.config.values import parse_host_port

PROJECT = PYPROJECT["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(built_product(tmp_path_factory.mktemp("wheel")))


def test_the_wheel_has_its_packages_whole(wheel: zipfile.ZipFile) -> None:
    built = {name for name in wheel.namelist() if ".dist-info/" not in name}
    here = {
        str(path.relative_to(folder))
        for folder, package in (
            (ROOT / "protocol", "fetchproxy_protocol"),
            (ROOT, "fetchproxy"),
            (ROOT, "pyspark_remotelog"),
        )
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert built == here


def test_tests_build_with_what_users_build_with() -> None:
    assert set(PYPROJECT["build-system"]["requires"]) <= set(
        PROJECT["optional-dependencies"]["dev"]
    )


def hashes(lock: str, package: str) -> set[str]:
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    match = re.search(
        rf"^{re.escape(package)}[^\n]*\\\n((?:    --hash=\S+[ \\]*\n)+)", text, re.MULTILINE
    )
    return set(re.findall(r"sha256:[0-9a-f]{64}", match[1])) if match else set()


@pytest.mark.parametrize("package", PYPROJECT["build-system"]["requires"])
def test_what_builds_is_locked_with_its_hashes(package: str) -> None:
    assert hashes("build.txt", package) == hashes("dev.txt", package) != set()


def test_the_image_fetches_nothing_without_a_hash() -> None:
    commands = [part for word, rest in dockerfile() if word == "RUN" for part in rest.split("&&")]
    pips = [command for command in commands if "/pip " in command]
    fetching = [command for command in pips if "--no-deps" not in command]
    assert len(fetching) == 2
    assert all("--require-hashes" in command for command in fetching)
    build, install = (command for command in pips if "--no-deps" in command)
    assert "--no-build-isolation" in build
    assert "--no-index" in install


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    content = {Path(name).name: wheel.read(name).decode() for name in wheel.namelist()}
    about = Parser().parsestr(content["METADATA"])
    assert about["Name"] == "fetchproxy"
    assert about["Version"] == __version__ == PROJECT["version"]
    assert about["License-Expression"] == "Apache-2.0"
    assert about.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert about["Requires-Python"] == PROJECT["requires-python"]
    assert "fetchproxy = fetchproxy.cli.main:main" in content["entry_points.txt"]
    assert content["LICENSE"] == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_images_sources_are_there_and_let_through() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    admitted = {rule[1:].rstrip("/") for rule in rules if rule.startswith("!")}
    assert "*" in rules
    assert set(copied()) == admitted
    for name in admitted:
        assert (ROOT / name).exists(), name


def test_the_image_runs_the_command_without_rights() -> None:
    words = dict(dockerfile())  # of each instruction the last
    assert words["USER"] == "fetchproxy"
    assert words["ENTRYPOINT"] == '["fetchproxy"]'
    assert "fetchproxy" in PROJECT["scripts"]


def test_the_image_exposes_the_default_port_and_spools_where_its_user_may_write() -> None:
    words = dict(dockerfile())
    default = GatewayConfig.model_fields["listen"].default
    assert str(parse_host_port(default).port) in words["EXPOSE"].split()
    spool = image_environment()["FETCHPROXY_ARCHIVE_SPOOL_DIR"]
    assert f"install -d -o fetchproxy {spool}" in words["RUN"]
    assert "spool_dir" in ArchiveConfig.model_fields


def test_the_images_python_is_one_that_the_project_supports() -> None:
    bases = {rest.split()[0] for word, rest in dockerfile() if word == "FROM"}
    assert len(bases) == 1, "built and run by the same Python, or the environment is not portable"
    python = tuple(map(int, bases.pop().removeprefix("python:").split("-")[0].split(".")))
    assert python >= tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
