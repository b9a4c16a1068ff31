"""Python packages that only the lab needs (a Java runtime, a Go toolchain, a resolver of Maven
artifacts), each installed on its own into the cache: they are no dependency of the product and are
fetched only on machines where the tool of that name is not on PATH."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lab import cache
from lab.errors import PartMissing


def entry(requirement: str) -> str:
    """Its name in the cache."""
    name, _, version = requirement.partition("==")
    # Compiled packages differ per Python version; a cache may outlive the Python that filled it.
    return f"python-{name}-{version}-py{sys.version_info.major}{sys.version_info.minor}"


def install(requirement: str) -> Path:
    """The folder that `requirement` (`name==version`) is installed in, with its dependencies."""

    def build(folder: Path) -> None:
        cache.say(f"installing the Python package {requirement}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
        if requirement.startswith("pyspark=="):
            # From source: the wheel is unpacked at once, so to compress it is work for nothing.
            command.append("--config-settings=--build-option=--compression=stored")
        done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise PartMissing(
                requirement,
                f"pip could not install it ({reason})",
                "Give pip a way to its registry, or fill the cache on a machine that has one.",
            )

    return cache.build_once(entry(requirement), build)
