"""The bill of materials has what the image installs, and each package's own needs."""

from __future__ import annotations

import json
import subprocess
import sys

from built_wheels import PYPROJECT
from compose_file import ROOT, dockerfile
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lab.sbom import locked

LOCK = """\
aiohttp==3.1.0 \\
    --hash=sha256:aa
    # via
    #   aiobotocore
    #   fetchproxy (pyproject.toml)
cffi==2.1.1 ; platform_python_implementation != 'PyPy' \\
    --hash=sha256:bb
    # via cryptography
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:cc
    # via click
"""


def test_the_lock_is_read() -> None:
    aiohttp, cffi = locked(LOCK)
    assert aiohttp == ("aiohttp", "3.1.0", ("aiobotocore", "fetchproxy"))
    assert cffi == ("cffi", "2.1.1", ("cryptography",))


def test_the_bill_has_what_the_image_installs() -> None:
    installs = [rest for word, rest in dockerfile() if word == "RUN" and "base.txt" in rest]
    assert len(installs) == 1
    result = subprocess.run(
        [sys.executable, "-m", "lab.sbom"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    bill = json.loads(result.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    names = {each["name"] for each in bill["components"]}
    text = (ROOT / "requirements" / "base.txt").read_text("utf-8")
    assert len(names) == len(bill["components"]) == text.count("\n    # via") - 1  # colorama
    references = {each["bom-ref"] for each in bill["components"]}
    own_ref = bill["metadata"]["component"]["bom-ref"]
    needs = {each["ref"]: set(each["dependsOn"]) for each in bill["dependencies"]}
    assert set(needs) == references | {own_ref}
    assert references == set().union(*needs.values()), "nobody needs a package, or one is missing"
    direct = {
        canonicalize_name(Requirement(each).name) for each in PYPROJECT["project"]["dependencies"]
    }
    assert direct <= {each.partition("/")[2].partition("@")[0] for each in needs[own_ref]}
