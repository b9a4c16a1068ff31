"""The Helm chart and its variants, rendered by the real Helm.

`python tests/packaging/helm_chart.py` writes the manifests in deploy/kubernetes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]

from lab.helm import KUBERNETES_VERSION, helm  # noqa: E402

CHART = ROOT / "deploy" / "helm" / "fetchproxy"
VARIANTS = sorted(file.name.removesuffix("-values.yaml") for file in (CHART / "ci").glob("*.yaml"))
MANIFESTS = ROOT / "deploy" / "kubernetes"
# By variant: the manifests that are in the repository.
WRITTEN = {"default": MANIFESTS / "fetchproxy.yaml", "strimzi": MANIFESTS / "strimzi.yaml"}


def values_of(variant: str) -> Path:
    return CHART / "ci" / f"{variant}-values.yaml"


def render(*arguments: str) -> str:
    """Raises CalledProcessError, with Helm's reason in `stderr`."""
    command = [str(helm()), "template", "fetchproxy", str(CHART), "--namespace", "kafka"]
    command += ["--kube-version", KUBERNETES_VERSION, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def manifests(variant: str) -> str:
    text = render("-f", str(values_of(variant)))
    note = f"# Made of deploy/helm/fetchproxy with ci/{variant}-values.yaml; do not edit.\n"
    lines_kept = [line for line in text.splitlines(keepends=True) if "managed-by: Helm" not in line]
    return note + "".join(line for line in lines_kept if not line.startswith("# Source: "))


if __name__ == "__main__":
    for name, written in WRITTEN.items():
        written.parent.mkdir(exist_ok=True)
        written.write_text(manifests(name), encoding="utf-8")
