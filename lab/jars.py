"""Downloads Java artifacts with all their runtime dependencies into one folder.

It uses Maven if installed, because Maven knows the user's mirrors and credentials, and otherwise
jgo, a resolver in plain Python. Those two decide where artifacts come from: this module names no
registry.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lab import cache, python_packages
from lab.errors import PartMissing
from lab.java import find_system_java

JGO = "jgo==3.2.0"
_HOW = "Install Maven and a Java >= 17, or give pip and jgo a way to the Maven registry."


@dataclass(frozen=True, slots=True)
class Artifact:
    group: str
    name: str
    version: str
    classifier: str = ""
    alone: bool = False  # without its declared dependencies: the caller lists them itself

    @property
    def coordinate(self) -> str:
        """In jgo's format: `group:name:version` or `group:name:jar:classifier:version`."""
        middle = f"jar:{self.classifier}:" if self.classifier else ""
        return f"{self.group}:{self.name}:{middle}{self.version}"


def fetch(entry: str, artifacts: list[Artifact]) -> Path:
    """The cached folder `entry` with the jars of `artifacts` and of their dependencies."""

    def build(folder: Path) -> None:
        maven = shutil.which("mvn")
        if maven is not None and find_system_java() is not None:
            cache.say(f"{entry}: downloading jars by Maven (about half a minute)")
            failure = _by_maven(maven, artifacts, folder)
            if failure is None:
                return
            if any(artifact.alone for artifact in artifacts):
                raise PartMissing(entry, f"Maven could not fetch it ({failure[-300:]})", _HOW)
            cache.say(f"{entry}: Maven failed, trying jgo instead\n{failure}")
        if any(artifact.alone for artifact in artifacts):
            raise PartMissing(entry, "only Maven can leave out what an artifact needs", _HOW)
        cache.say(f"{entry}: downloading jars by {JGO} (about a minute)")
        _by_jgo(entry, artifacts, folder)

    return cache.build_once(entry, build)


def _by_maven(maven: str, artifacts: list[Artifact], folder: Path) -> str | None:
    """None if the jars are in `folder`, otherwise the end of Maven's output."""
    work = folder / "work"
    work.mkdir()
    (work / "pom.xml").write_text(_pom(artifacts))
    result = subprocess.run(
        [
            maven,
            "--batch-mode",
            "--quiet",
            "dependency:copy-dependencies",
            f"-DoutputDirectory={folder}",
            "-DincludeScope=runtime",
        ],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    shutil.rmtree(work)
    return None if result.returncode == 0 else (result.stdout + result.stderr)[-2000:]


_NOTHING_ELSE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


def _pom(artifacts: list[Artifact]) -> str:
    dependencies = "".join(
        "<dependency>"
        f"<groupId>{artifact.group}</groupId><artifactId>{artifact.name}</artifactId>"
        f"<version>{artifact.version}</version>"
        + (f"<classifier>{artifact.classifier}</classifier>" if artifact.classifier else "")
        + (_NOTHING_ELSE if artifact.alone else "")
        + "</dependency>"
        for artifact in artifacts
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>lab</groupId>"
        "<artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


# This script runs in a process of its own, with only jgo on its path: the lab never imports jgo.
_JGO_SCRIPT = """
import pathlib, shutil, sys
from jgo.maven import MavenContext

folder = pathlib.Path(sys.argv[1])
context = MavenContext(repo_cache=folder / "repository", timeout=60)
wanted = [context.create_dependency(coordinate) for coordinate in sys.argv[2:]]
for dependency in wanted:
    dependency.raw = True  # a plain artifact, not a list of managed versions
inputs, transitive = context.resolver.resolve(wanted)
for dependency in inputs + transitive:
    if dependency.scope in (None, "compile", "runtime"):
        jar = dependency.artifact.resolve()
        shutil.copy(jar, folder / jar.name)
shutil.rmtree(folder / "repository")
"""


def _by_jgo(entry: str, artifacts: list[Artifact], folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(python_packages.install(JGO))}
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            _JGO_SCRIPT,
            str(folder),
            *(artifact.coordinate for artifact in artifacts),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise PartMissing(entry, f"jgo could not fetch it ({result.stderr.strip()[-500:]})", _HOW)
