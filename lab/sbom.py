"""`make sbom`: what the image has of Python packages, as a CycloneDX bill of materials.

It is made of requirements/base.txt, from which the image installs with hashes. Debian's packages
of the base image are not in it: a scanner of images lists those.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packaging.markers import Marker

_PROJECT = Path(__file__).parents[1]
_LINE = re.compile(r"^(?P<name>[a-z0-9._-]+)==(?P<version>[^\s;\\]+)\s*(?:;(?P<marker>[^\\]+))?")
# The image's system.
_ENVIRONMENT = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}


class Locked(NamedTuple):
    """A package of the lock. `needed_by`: the names of others."""

    name: str
    version: str
    needed_by: tuple[str, ...]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def locked(text: str) -> Iterator[Locked]:
    """The packages of a lock that are for the image's system."""
    for block in re.split(r"\n(?=[a-z0-9])", text):
        match = _LINE.match(block)
        if match is None:
            continue
        marker = match["marker"]
        if marker is not None and not Marker(marker.strip()).evaluate(_ENVIRONMENT):
            continue
        comments = [line.strip() for line in block.splitlines() if line.strip().startswith("#")]
        words = [line.lstrip("# ").removeprefix("via").strip() for line in comments]
        needed_by = tuple(word.split()[0] for word in words if word and not word.startswith("-"))
        yield Locked(match["name"], match["version"], needed_by)


def bill_of_materials(lock: str, project: dict[str, Any]) -> dict[str, Any]:
    packages = list(locked(lock))
    product_purl = f"pkg:pypi/{project['name']}@{project['version']}"
    by_name = {package.name: package.purl for package in packages} | {project["name"]: product_purl}
    needs: dict[str, list[str]] = {purl: [] for purl in by_name.values()}
    for package in packages:
        for name in package.needed_by:
            if name in by_name:
                needs[by_name[name]].append(package.purl)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                **{"type": "application", "bom-ref": product_purl, "purl": product_purl},
                **{"name": project["name"], "version": project["version"]},
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [_component(package) for package in packages],
        "dependencies": [
            {"ref": purl, "dependsOn": sorted(set(requirements))}
            for purl, requirements in sorted(needs.items())
        ],
    }


def _component(package: Locked) -> dict[str, Any]:
    return {
        **{"type": "library", "bom-ref": package.purl, "purl": package.purl},
        **{"name": package.name, "version": package.version},
    }


def main() -> None:
    project = tomllib.loads((_PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    lock = (_PROJECT / "requirements" / "base.txt").read_text("utf-8")
    print(json.dumps(bill_of_materials(lock, project), indent=1))


if __name__ == "__main__":
    main()
