"""Helm, and kubeconform with the schemas of what the chart makes.

kubeconform would download schemas. Here those of Kubernetes come from a Python package, and those
of custom resources are made of the definitions (CRDs) in the Go modules of their projects.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from lab import cache, go, python_packages

HELM_VERSION = "3.19.0"
HELM_ENTRY = f"helm-{HELM_VERSION}"
KUBECONFORM_VERSION = "0.7.0"
KUBERNETES_VERSION = "1.37.0"
_KUBERNETES = f"kubernetes-validate=={KUBERNETES_VERSION}"
_KINDS = (
    *("deployment-apps-v1", "statefulset-apps-v1", "service-v1", "serviceaccount-v1"),
    *("poddisruptionbudget-policy-v1", "networkpolicy-networking-v1"),
)
# A module of Go, and the definitions in it that the chart needs.
_DEFINITIONS = {
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    "github.com/cert-manager/cert-manager@v1.21.2": (
        "deploy/crds/cert-manager.io_certificates.yaml",
    ),
}
_SCHEMAS_ENTRY = f"schemas-{KUBERNETES_VERSION}-prometheus-0.85.0-cert-manager-1.21.2"
_REFERENCE = re.compile(r'"(?:/api/_definitions.json)?#/\$defs/([^"]+)"')


def helm() -> Path:
    """The executable. Raises PartMissing."""
    return go.install_module(HELM_ENTRY, f"helm.sh/helm/v3/cmd/helm@v{HELM_VERSION}")


def kubeconform_command() -> list[str]:
    """Checks the manifests on its standard input, strictly. Raises PartMissing."""
    entry = f"kubeconform-{KUBECONFORM_VERSION}"
    program = go.install_module(
        entry, f"github.com/yannh/kubeconform/cmd/kubeconform@v{KUBECONFORM_VERSION}"
    )
    folder = schemas()
    return [
        *(str(program), "-strict", "-summary", "-output", "json"),
        *("-schema-location", f"{folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"),
        *("-schema-location", f"{folder}/{{{{.Group}}}}-{{{{.ResourceKind}}}}-"
          "{{.ResourceAPIVersion}}.json"),
    ]  # fmt: skip


def schemas() -> Path:
    """A folder with a JSON schema for each kind. Raises PartMissing."""

    def build(folder: Path) -> None:
        package = python_packages.install(_KUBERNETES) / "kubernetes_validate"
        source = package / "kubernetes-json-schema" / f"v{KUBERNETES_VERSION}-local-strict"
        for kind in _KINDS:
            (folder / f"{kind}.json").write_text(_standalone(source, kind), encoding="utf-8")
        for module, definitions in _DEFINITIONS.items():
            source = go.download_module(_SCHEMAS_ENTRY, module, folder / "modules")
            for definition in definitions:
                text = (source / definition).read_text("utf-8")
                _write_schemas(yaml.safe_load(text), folder)
        shutil.rmtree(folder / "modules")

    return cache.build_once(_SCHEMAS_ENTRY, build)


def _standalone(source: Path, kind: str) -> str:
    """The schema with the definitions that it needs: the package has them in another file."""
    shared = json.loads((source / "_definitions.json").read_text("utf-8"))["$defs"]
    schema = json.loads((source / f"{kind}.json").read_text("utf-8"))
    needed: dict[str, object] = {}
    missing = set(_REFERENCE.findall(json.dumps(schema)))
    while missing:
        name = missing.pop()
        needed[name] = shared[name]
        missing |= set(_REFERENCE.findall(json.dumps(shared[name]))) - needed.keys()
    return _REFERENCE.sub(r'"#/$defs/\1"', json.dumps({**schema, "$defs": needed}))


def _write_schemas(definition: dict[str, Any], folder: Path) -> None:
    spec = definition["spec"]
    for version in spec["versions"]:
        name = f"{spec['group']}-{spec['names']['kind'].lower()}-{version['name']}.json"
        schema = _strict(version["schema"]["openAPIV3Schema"])
        (folder / name).write_text(json.dumps(schema), encoding="utf-8")


def _strict(schema: Any) -> Any:
    """The schema, with objects that have no other properties than those it names."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    stripped = {key: _strict(value) for key, value in schema.items()}
    if isinstance(stripped.get("properties"), dict) and not stripped.get(
        "x-kubernetes-preserve-unknown-fields"
    ):
        stripped.setdefault("additionalProperties", False)
    return stripped
