"""Wheels, built without a registry. Not a test."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from compose_file import ROOT, dockerfile

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def copied() -> list[str]:
    """What the image's build stage takes from the checkout."""
    sources = [rest.split()[:-1] for word, rest in dockerfile() if word == "COPY"]
    return [name for names in sources for name in names if not name.startswith(("--", "/"))]


def built_product(folder: Path) -> Path:
    """Built from what the Dockerfile copies and from nothing else."""
    source = folder / "source"
    for name in copied():
        place = source / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, place)
    return built(source, folder)


def built(source: Path, folder: Path) -> Path:
    """The wheel of the package in `source`, below `folder`."""
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir", str(folder)]
    if f"setuptools=={version('setuptools')}" in PYPROJECT["build-system"]["requires"]:
        options.append("--no-build-isolation")  # what builds is here: no registry is asked
    before = set(folder.glob("*.whl"))
    result = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    [made] = set(folder.glob("*.whl")) - before
    return made
