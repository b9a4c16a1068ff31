"""Python packages that only the lab needs: a Java runtime, a Go toolchain, a Maven resolver.

Each is installed separately into the cache. They are not dependencies of the product, and they are
fetched only on machines whose PATH lacks the tool.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lab import cache
from lab.errors import PartMissing


def entry(requirement: str) -> str:
    """The name of its cache entry."""
    name, _, version = requirement.partition("==")
    # Compiled packages differ by Python version, and a cache may be older than the current Python.
    return f"python-{name}-{version}-py{sys.version_info.major}{sys.version_info.minor}"


def install(requirement: str) -> Path:
    """The folder where `requirement` (`name==version`) is installed, with its dependencies."""

    def build(folder: Path) -> None:
        cache.say(f"installing the Python package {requirement}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
        if requirement.startswith("pyspark=="):
            # It is built from source. The wheel is unpacked at once, so compressing it would be
            # wasted work.
            command.append("--config-settings=--build-option=--compression=stored")
        result = subprocess.run(
            [*command, requirement], capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            reason = (result.stderr.strip().splitlines() or ["no output"])[-1]
            raise PartMissing(
                requirement,
                f"pip could not install it ({reason})",
                "Give pip a way to its registry, or fill the cache on a machine that has one.",
            )

    return cache.build_once(entry(requirement), build)
