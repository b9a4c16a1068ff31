"""Each variant of the chart: Helm renders it, Kubernetes' schemas accept it, its settings load."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_file import ROOT, image_environment
from helm_chart import CHART, VARIANTS, WRITTEN, manifests, render, values_of

from fetchproxy.config.load import load_config
from fetchproxy.config.schema import Config
from fetchproxy.config.values import parse_node_map
from lab.helm import helm, kubeconform_command

Manifest = dict[str, Any]
RULES = ROOT / "deploy" / "monitoring" / "prometheus-rules.yaml"


@pytest.fixture(scope="module", autouse=True)
def helm_is_there(find_part: Callable[..., Path]) -> None:
    find_part("helm", helm)


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    return {variant: render("-f", str(values_of(variant))) for variant in VARIANTS}


def kinds(text: str) -> dict[tuple[str, str], Manifest]:
    documents = [each for each in yaml.safe_load_all(text) if each]
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert len(by_name) == len(documents)
    return by_name


def pods(text: str) -> list[Manifest]:
    workloads = [each for (kind, _), each in kinds(text).items() if kind.endswith("Set")]
    workloads += [each for (kind, _), each in kinds(text).items() if kind == "Deployment"]
    specs: list[Manifest] = [each["spec"]["template"]["spec"] for each in workloads]
    return specs


def config_of(pod: Manifest) -> Config:
    (container,) = pod["containers"]
    environment = {each["name"]: each.get("value", "from elsewhere") for each in container["env"]}
    return load_config(
        None, {k: v for k, v in environment.items() if k.startswith("FETCHPROXY_")}, []
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_helm_finds_nothing_to_say(variant: str) -> None:
    command = [str(helm()), "lint", "--strict", str(CHART), "-f", str(values_of(variant))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_kubernetes_accepts_every_variant(
    rendered: dict[str, str], find_part: Callable[..., list[str]]
) -> None:
    command = find_part("helm", kubeconform_command)
    text = "\n---\n".join(rendered.values())
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    report = json.loads(result.stdout)
    assert not report.get("resources"), report["resources"]
    count = sum(len(kinds(each)) for each in rendered.values())
    assert report["summary"] == {"valid": count, "invalid": 0, "errors": 0, "skipped": 0}
    # And it would have seen a fault.
    wrong = text.replace("maxUnavailable: 1", "maxUnavailble: 1").replace("issuerRef", "issuer")
    result = subprocess.run(command, input=wrong, capture_output=True, text=True, check=False)
    refused = {each["kind"] for each in json.loads(result.stdout)["resources"]}
    assert refused == {"PodDisruptionBudget", "Certificate"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_settings_load_and_paths_are_mounted(variant: str, rendered: dict[str, str]) -> None:
    for pod in pods(rendered[variant]):
        config = config_of(pod)
        assert config.store.url
        (container,) = pod["containers"]
        limit = container["resources"]["limits"]["memory"]
        assert config.process.memory_bytes_max * 4 == int(limit.removesuffix("Mi")) * 3 << 20
        mounted = {each["mountPath"] for each in container["volumeMounts"]}
        assert image_environment()["FETCHPROXY_ARCHIVE_SPOOL_DIR"] in mounted
        names = {each["name"] for each in pod["volumes"]}
        if "archive" in container["args"] and variant != "playground":
            names.add("spool")  # a claim
            assert config.archive.group_id
        assert {each["name"] for each in container["volumeMounts"]} == names
        files = (config.gateway.tls_certificate_file, config.gateway.tls_key_file,
                 config.cluster.tls_ca_file)  # fmt: skip
        assert all(str(file.parent) in mounted for file in files if file is not None)


@pytest.mark.parametrize("variant", VARIANTS)
def test_proxies_serve_and_archivers_archive(variant: str, rendered: dict[str, str]) -> None:
    for pod in pods(rendered[variant]):
        (container,) = pod["containers"]
        archives = container["args"] == ["archive"]
        assert archives == (config_of(pod).archive.topics is not None)
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_ports_are_open_forwarded_and_allowed(variant: str, rendered: dict[str, str]) -> None:
    by_kind = kinds(rendered[variant])
    pod = by_kind["Deployment", "fetchproxy"]["spec"]["template"]["spec"]
    config = config_of(pod)
    listened = {int(config.gateway.listen.rpartition(":")[2])}
    places = parse_node_map(config.gateway.node_map or "").values()
    listened |= {place.listen_port for place in places}
    (container,) = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    console = int((config.console.listen or "").rpartition(":")[2])
    assert ports.pop("console") == console
    assert set(ports.values()) == listened
    service = by_kind["Service", "fetchproxy"]["spec"]
    assert {each["port"]: each["targetPort"] for each in service["ports"]} == {
        port: name for name, port in ports.items()
    }
    policy = by_kind.get(("NetworkPolicy", "fetchproxy"))
    if policy is not None:
        clients, _ = policy["spec"]["ingress"]
        assert {each["port"] for each in clients["ports"]} == set(ports)


def test_production_is_the_default(rendered: dict[str, str]) -> None:
    by_kind = kinds(rendered["default"])
    for kind, name in (("Deployment", "fetchproxy"), ("StatefulSet", "fetchproxy-archiver")):
        assert by_kind[kind, name]["spec"]["replicas"] > 1
        selector = by_kind["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"]
        labels = by_kind[kind, name]["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()
        spread = by_kind[kind, name]["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert {each["topologyKey"].rpartition("/")[2] for each in spread} == {"hostname", "zone"}
    playground = kinds(rendered["playground"])
    assert playground["Deployment", "fetchproxy"]["spec"]["replicas"] == 1
    assert not [name for kind, name in playground if kind == "PodDisruptionBudget"]


def test_large_numbers_stay_numbers(rendered: dict[str, str]) -> None:
    (pod,) = pods(rendered["proxies-only"])
    assert config_of(pod).remote_fetch.client_bytes_per_s_max == 100 << 20


@pytest.mark.parametrize(
    ("says", "values"),
    [
        ("config.cluster.bootstrap", ["config.store.url=file:///a"]),
        ("config.store.url", ["config.cluster.bootstrap=kafka:9092"]),
        ("config.archive.topics", ["config.store.url=s3://b/p", "config.cluster.bootstrap=k:1"]),
    ],
)
def test_what_is_missing_is_named(says: str, values: list[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        render(*(word for value in values for word in ("--set", value)))
    assert says in refusal.value.stderr


@pytest.mark.parametrize("variant", WRITTEN)
def test_the_manifests_are_those_of_the_chart(variant: str) -> None:
    """If not: `python tests/packaging/helm_chart.py`."""
    assert WRITTEN[variant].read_text("utf-8") == manifests(variant)


def test_the_rules_of_alerts_are_in_the_chart(find_part: Callable[..., list[str]]) -> None:
    """If deploy/monitoring has them: `ln -s ../../monitoring deploy/helm/fetchproxy/monitoring`."""
    values = ("-f", str(values_of("monitoring")), "--set", "prometheusRule.enabled=true")
    if not RULES.exists():
        with pytest.raises(subprocess.CalledProcessError) as refusal:
            render(*values)
        assert "packed without monitoring/prometheus-rules.yaml" in refusal.value.stderr
        return
    assert (CHART / "monitoring").resolve() == RULES.parent
    text = render(*values)
    rule = kinds(text)["PrometheusRule", "fetchproxy"]
    assert rule["spec"] == yaml.safe_load(RULES.read_text("utf-8"))
    command = find_part("helm", kubeconform_command)
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
