"""The manifests in deploy/kubernetes, as they are: settings that load, ports that fit each other.

`test_helm_chart` says that they are those of the chart; it needs Helm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_file import ROOT

from fetchproxy.config.load import load_config
from fetchproxy.config.values import parse_node_map

TEXT = (ROOT / "deploy" / "kubernetes" / "fetchproxy.yaml").read_text("utf-8")
MANIFESTS = {
    (each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(TEXT) if each
}
DEPLOYMENT = MANIFESTS["Deployment", "fetchproxy"]
SERVICE = MANIFESTS["Service", "fetchproxy"]
ARCHIVER = MANIFESTS["StatefulSet", "fetchproxy-archiver"]


def test_the_page_shows_the_values_that_they_are_made_of() -> None:
    page = (ROOT / "docs" / "deploy" / "kubernetes.md").read_text("utf-8")
    values = ROOT / "deploy" / "helm" / "fetchproxy" / "ci" / "default-values.yaml"
    assert f"```yaml\n{values.read_text('utf-8')}```\n" in page


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def settings(workload: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(workload)["env"] if "value" in each}


@pytest.mark.parametrize("workload", [DEPLOYMENT, ARCHIVER], ids=["proxies", "archivers"])
def test_the_settings_load(workload: dict[str, Any], tmp_path: Path) -> None:
    config = load_config(None, settings(workload), [])
    assert config.store.url is not None
    assert (config.console.listen or "").endswith(f":{ports(workload)['console']}")


def ports(workload: dict[str, Any]) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in container(workload)["ports"]}


def test_each_port_that_clients_learn_is_forwarded() -> None:
    config = load_config(None, settings(DEPLOYMENT), [])
    listened = {int(config.gateway.listen.rpartition(":")[2])}
    listened |= {
        place.listen_port for place in parse_node_map(config.gateway.node_map or "").values()
    }
    forwarded = {each["name"]: each["port"] for each in SERVICE["spec"]["ports"]}
    assert set(forwarded.values()) == listened
    assert ports(DEPLOYMENT) == forwarded | {"console": 8080}
    host, namespace = (config.gateway.advertise_host or "").split(".")[:2]
    assert (host, namespace) == (SERVICE["metadata"]["name"], SERVICE["metadata"]["namespace"])


def test_the_spool_is_where_the_image_has_it() -> None:
    mounts = container(ARCHIVER)["volumeMounts"]
    (mount,) = (each for each in mounts if each["name"] == "spool")
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    assert f"FETCHPROXY_ARCHIVE_SPOOL_DIR={mount['mountPath']}" in dockerfile
    user = ARCHIVER["spec"]["template"]["spec"]["securityContext"]["fsGroup"]
    assert f"--uid {user}" in dockerfile
