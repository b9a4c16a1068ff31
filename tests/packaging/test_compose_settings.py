"""docker-compose.yml against the real configuration, the real options and itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from urllib.parse import urlsplit

import pytest
from compose_file import ROOT, SERVICES, command, environment, image_environment, own_services

from fetchproxy.cli import main
from fetchproxy.config.load import load_config
from fetchproxy.config.schema import Config
from fetchproxy.config.values import parse_host_port
from fetchproxy.storage.stores.registry import S3Location, parse_store_url

COMMANDS = {name: main.loaded(name) for name in main.COMMANDS}


def proxy_config() -> Config:
    return load_config(None, {**image_environment(), **environment("fetchproxy")})


@pytest.mark.parametrize("service", own_services())
def test_every_setting_is_a_real_key_with_a_legal_value(service: str) -> None:
    load_config(None, {**image_environment(), **environment(service)})


def test_the_proxys_settings_reach_the_configuration() -> None:
    config = proxy_config()
    assert config.cluster.bootstrap == "kafka:9092"
    assert config.archive.topics == "orders"
    assert config.archive.segment_bytes_max == 1024 * 1024
    assert str(config.archive.spool_dir) == "/var/lib/fetchproxy/spool"


def test_the_proxys_command_is_one_that_the_command_line_has() -> None:
    name, *arguments = command("fetchproxy")
    COMMANDS[name].make_context(name, arguments)


def test_the_proxy_reaches_kafka_as_kafka_advertises_itself() -> None:
    advertised = environment("kafka")["KAFKA_ADVERTISED_LISTENERS"]
    assert f"PLAINTEXT://{proxy_config().cluster.bootstrap}" in advertised.split(",")
    assert urlsplit(advertised).hostname in SERVICES


def test_the_store_is_the_bucket_that_is_made_on_the_server_that_runs() -> None:
    url = proxy_config().store.url
    assert url is not None
    location = parse_store_url(url)
    assert isinstance(location, S3Location)
    assert location.endpoint_url == environment("create-bucket")["AWS_ENDPOINT_URL"]
    assert f'create_bucket(Bucket="{location.bucket}")' in "".join(command("create-bucket"))
    endpoint = urlsplit(location.endpoint_url)
    words = command(endpoint.hostname or "")
    assert words[words.index("--port") + 1] == f":{endpoint.port}"
    assert location.region == environment("s3")["VGW_REGION"]


@pytest.mark.parametrize("service", own_services())
def test_the_credentials_are_the_servers(service: str) -> None:
    server, client = environment("s3"), environment(service)
    assert client["AWS_ACCESS_KEY_ID"] == server["ROOT_ACCESS_KEY"]
    assert client["AWS_SECRET_ACCESS_KEY"] == server["ROOT_SECRET_KEY"]


def test_clients_find_every_port_that_they_are_told() -> None:
    """Clients dial advertised ports, so a port must be the same inside and outside."""
    config = proxy_config()
    console = config.console.listen
    assert console is not None
    node_port = config.gateway.node_port_base + int(environment("kafka")["KAFKA_NODE_ID"])
    expected = {
        parse_host_port(config.gateway.listen).port,
        node_port,
        parse_host_port(console).port,
    }
    published = [text.split(":") for text in SERVICES["fetchproxy"]["ports"]]
    assert {int(inside) for _, _, inside in published} == expected
    assert all(outside == inside for _, outside, inside in published)


def test_nothing_is_published_beyond_this_machine() -> None:
    for name, service in SERVICES.items():
        for text in service.get("ports", []):
            assert text.startswith("127.0.0.1:"), name


def test_the_consumer_reaches_the_proxy_by_the_name_that_it_advertises() -> None:
    config = proxy_config()
    proxy = parse_host_port(environment("consumer")["PROXY"])
    assert SERVICES["consumer"]["network_mode"] == "service:fetchproxy"
    assert proxy.host == config.gateway.advertise_host
    assert proxy.port == parse_host_port(config.gateway.listen).port


def test_health_checks_ask_ports_that_listen() -> None:
    console = proxy_config().console.listen
    assert console is not None
    check = " ".join(SERVICES["fetchproxy"]["healthcheck"]["test"])
    assert f"http://127.0.0.1:{parse_host_port(console).port}/readyz" in check

    s3 = command("s3")
    url = urlsplit(SERVICES["s3"]["healthcheck"]["test"][-1])
    assert s3[s3.index("--port") + 1] == f":{url.port}"
    assert s3[s3.index("--health") + 1] == url.path

    port = re.search(r"/dev/tcp/localhost/(\d+)", SERVICES["kafka"]["healthcheck"]["test"][-1])
    assert port is not None
    assert f"PLAINTEXT://:{port[1]}" in environment("kafka")["KAFKA_LISTENERS"].split(",")


def test_who_waits_for_health_waits_for_a_service_that_says_it() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES, name
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], f"{name} waits for {other}"
            else:
                assert how["condition"] == "service_completed_successfully"
                assert "restart" not in SERVICES[other], f"{other} would never be completed"


def test_the_container_tool_accepts_the_file() -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker: not installed")
    version = subprocess.run(
        ["docker", "compose", "version"], capture_output=True, text=True, check=False
    )
    if version.returncode != 0:
        pytest.skip("docker compose: this docker has no such command")
    result = subprocess.run(
        ["docker", "compose", "--file", str(ROOT / "docker-compose.yml"), "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
