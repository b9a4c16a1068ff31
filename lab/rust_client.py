"""The lab's client written in Rust: rust-rdkafka, with the librdkafka in its crate.

Its source is lab/clients/rust_rdkafka. Building it takes one to four minutes.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

from lab import cache, sources
from lab.errors import PartMissing

_SOURCES = sources.CLIENTS / "rust_rdkafka"
_HOW = "Install Rust (1.74 or newer), make and a C++ compiler; give cargo a way to its registry."


def rust_rdkafka_entry() -> str:
    return sources.entry_of("rust-rdkafka", _SOURCES)


def rust_rdkafka() -> Path:
    """The built executable. main.rs lists its arguments. Raises PartMissing."""
    return cache.build_once(rust_rdkafka_entry(), _build) / "rust_rdkafka"


def rust_rdkafka_versions() -> tuple[str, str]:
    """The versions of the crate and of its librdkafka."""
    locked = tomllib.loads((_SOURCES / "Cargo.lock").read_text())["package"]
    versions = {package["name"]: package["version"] for package in locked}
    return versions["rdkafka"], versions["rdkafka-sys"].partition("+")[2]


def _build(folder: Path) -> None:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise PartMissing("rust-rdkafka", "there is no cargo on PATH", _HOW)
    cache.say("building rust-rdkafka and its librdkafka (1 to 4 minutes)")
    target = folder / "target"
    # --locked: the versions are those of Cargo.lock, even if the registry has newer ones.
    command = [cargo, "build", "--release", "--locked", "--target-dir", str(target)]
    result = subprocess.run(command, cwd=_SOURCES, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise PartMissing("rust-rdkafka", f"cargo failed ({result.stderr.strip()[-500:]})", _HOW)
    shutil.copy(target / "release/rust_rdkafka", folder)
    shutil.rmtree(target)
