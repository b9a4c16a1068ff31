"""NOTICE names every package that runs with fetchproxy, and the licence that it states itself."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata

import pytest
from compose_file import ROOT

LOCK = "".join(
    (ROOT / "requirements" / name).read_text(encoding="utf-8")
    for name in ("base.txt", "kerberos.txt")
)
NOTICE = (ROOT / "NOTICE").read_text(encoding="utf-8")
LOCKED = re.findall(r"^([a-z0-9._-]+)==", LOCK, re.MULTILINE)
NAMED = dict(re.findall(r"^    ([a-z0-9._-]+) +(\S.*)$", NOTICE, re.MULTILINE))

# What packages say that state no SPDX expression.
IN_SPDX = {
    "Apache 2.0": "Apache-2.0",
    "Dual License": "Apache-2.0 OR BSD-3-Clause",
    "ISC License": "ISC",
    "License :: OSI Approved :: MIT License": "MIT",
}
# What an image may contain. Another licence is a decision first, and a line here then.
PERMISSIVE = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0"}


def stated(package: str) -> str:
    about = metadata(package)
    classifiers = [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    licence = about["License-Expression"] or about["License"] or classifiers[0]
    return IN_SPDX.get(licence, licence)


def test_all_that_is_locked_is_named_and_nothing_else() -> None:
    assert set(NAMED) == set(LOCKED)


@pytest.mark.parametrize("package", LOCKED)
def test_the_licence_is_the_one_that_the_package_states(package: str) -> None:
    try:
        licence = stated(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed on this system")
    assert NAMED[package] == licence


def test_each_licence_is_permissive() -> None:
    others = {
        package
        for package, licence in NAMED.items()
        if not set(re.split(r" AND | OR ", licence)) <= PERMISSIVE
    }
    assert not others
