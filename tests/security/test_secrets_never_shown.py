"""Unique secrets in every place that takes one; nothing that the processes emit has any of them.

Everything is at debug level: logs, exit messages, tracebacks, the console's answers.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_readers import read_confluent
from fetchproxy_command import fetchproxy
from proxy_process import ProxyProcess, wait_for
from secured_clients import USERS, SaslConnection, as_user, confluent_login
from token_endpoint import TokenEndpointServer
from topic_data import TopicData
from typer.testing import CliRunner

from fetchproxy.cli.main import app
from fetchproxy.config.load import all_keys
from fetchproxy.config.values import is_secret_name
from lab.process import free_port
from lab.secured_kafka import SecuredKafka, unsecured_token

PLANTED = "pl4nted"
CONSOLE = ("/", "/healthz", "/readyz", "/metrics", "/api/status")

# Every key whose value is a secret, not where to find one.
SECRET_KEYS = sorted(
    key.dotted
    for key in all_keys().values()
    if is_secret_name(key.name) and not key.name.endswith(("_file", "_url"))
)


def forms(secret: str) -> list[str]:
    """A secret as it is, and as SASL PLAIN or HTTP Basic may carry it."""
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    return [secret, encoded[:-2], repr(secret.encode())[2:-1], secret.encode().hex()]


def assert_clean(text: str, *secrets: str) -> None:
    for secret in secrets:
        for form in forms(secret):
            at = text.find(form)
            assert at < 0, f"{form!r} in …{text[max(0, at - 200) : at + 100]}"


def run(arguments: list[str], environ: dict[str, str] | None = None) -> tuple[int, str]:
    """A start that must fail: its status and all that it wrote."""
    result = fetchproxy(*arguments, environment=environ)
    return result.returncode, result.stdout + result.stderr


def test_the_keys_that_are_planted() -> None:
    """A new secret key has to get its name right, or it would be logged and not be tested here."""
    assert "cluster.sasl_password" in SECRET_KEYS
    assert "cluster.sasl_oauthbearer_client_secret" in SECRET_KEYS
    secret_keys = {key.dotted for key in all_keys().values() if key.is_secret}
    assert secret_keys == set(SECRET_KEYS)


def _as_text(value: str) -> list[tuple[list[str], dict[str, str], str]]:
    places: list[tuple[list[str], dict[str, str], str]] = []
    for key in SECRET_KEYS:
        variable = "FETCHPROXY_" + key.replace(".", "_").upper()
        places += [
            (["--set", f"{key}={value}"], {}, ""),
            ([], {variable: value}, ""),
            ([], {"FETCHPROXY_SET": f"{key}={value}"}, ""),
            ([], {}, '[{}]\n{} = "{}"\n'.format(*key.split("."), value)),
            ([], {}, '[{}]\n{} = [["{}"]]\n'.format(*key.split("."), value)),
        ]
    return places


def _other_places(value: str) -> list[tuple[list[str], dict[str, str], str]]:
    url, s3 = f"https://u:{value}@idp/", f"s3://key:{value}@bucket/prefix"
    return [
        (["--store", s3], {}, ""),
        ([], {"FETCHPROXY_STORE_URL": s3}, ""),
        (["--set", f"store.url=s3://b/p?secret_access_key={value}"], {}, ""),
        (["--set", f"store.url=s3://b/p?endpoint_url=http://a:{value}@h:1/"], {}, ""),
        (["--set", f"cluster.sasl_oauthbearer_token_endpoint_url={url}"], {}, ""),
        (["--set", f"cluster.sasl_pasword={value}"], {}, ""),
        (["--set", f"sasl_password={value}"], {}, ""),
        ([], {}, f'sasl_password = "{value}"\n'),
        ([], {}, f'[cluster]\nsasl_password = "{value}\n'),
        ([], {}, f'[cluster]\nsasl_pasword = "{value}"\n'),
    ]


def _sasl(mechanism: str) -> list[str]:
    keys = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": "u",
    }
    return [word for key, v in keys.items() for word in ("--set", f"cluster.{key}={v}")]


PLACES = [*_as_text(PLANTED), *_other_places(PLANTED)]


@pytest.mark.parametrize("number", range(len(PLACES)))
def test_starts_that_fail_do_not_say_it(number: int, tmp_path: Path) -> None:
    """Each is refused, by a relation between keys at least (a secret alone fits nothing)."""
    arguments, environ, text = PLACES[number]
    file = tmp_path / "fetchproxy.toml"
    file.write_text(text)
    start = ["segments", "--config", str(file)]
    if "store" not in " ".join([*arguments, *environ]).lower():
        start += ["--store", (tmp_path / "missing").as_uri()]
    result = CliRunner().invoke(
        app, [*start, *arguments], env={"FETCHPROXY_LOG_LEVEL": "debug", **environ}
    )
    assert result.exit_code == 2, result.output
    assert "missing" not in result.output  # the configuration was refused, not the store
    assert result.output
    assert_clean(result.output, PLANTED)
    assert result.exc_info is not None
    chain = "".join(traceback.format_exception(*result.exc_info))  # all that it was raised from
    assert "ConfigError" in chain
    assert_clean(chain, PLANTED)


def test_a_secret_where_its_files_path_belongs(tmp_path: Path) -> None:
    start = ["archive", "--once", "--topics", "x", "--store", tmp_path.as_uri()]
    keys = [*_sasl("PLAIN"), "--set", f"cluster.sasl_password.file={PLANTED}"]
    status, output = run([*start, *keys])
    assert status == 2
    assert "the file of cluster.sasl_password cannot be read" in output
    assert_clean(output, PLANTED)


def everything(proxy: ProxyProcess) -> str:
    return proxy.log_text() + "".join(proxy.get(path) for path in CONSOLE)


@pytest.fixture
def debug_proxy(
    secured: SecuredKafka, secured_store: str, tmp_path: Path
) -> Iterator[ProxyProcess]:
    settings = {**as_user("proxy", "SCRAM-SHA-256"), "log.level": "debug"}
    with ProxyProcess(secured.sasl, secured_store, tmp_path, settings=settings) as process:
        yield process


@pytest.mark.kafka
def test_a_proxy_that_works_says_neither_its_own_nor_a_clients_password(
    debug_proxy: ProxyProcess, open_topic: TopicData
) -> None:
    ends = {0: len(open_topic.written[0])}
    for mechanism in ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"):
        login = confluent_login("alice", mechanism)
        assert read_confluent(debug_proxy.bootstrap, open_topic.topic, ends, **login)
    with SaslConnection(debug_proxy.bootstrap, "mallory") as mallory:
        assert mallory.fetch(11, open_topic.topic, None, 0).error == 29
    all_output = everything(debug_proxy)
    assert "gateway_listening" in all_output
    assert_clean(all_output, *USERS.values())
    assert_clean(all_output, unsecured_token("alice").split(".")[0])


@pytest.mark.kafka
@pytest.mark.parametrize(
    "mechanism",
    [pytest.param("PLAIN", marks=pytest.mark.slow), "SCRAM-SHA-512", "OAUTHBEARER"],
)
def test_a_proxy_that_is_refused_says_who_and_how_and_nothing_more(
    mechanism: str, secured: SecuredKafka, secured_store: str, tmp_path: Path
) -> None:
    settings: dict[str, object] = {**as_user("proxy", mechanism), "log.level": "debug"}
    settings["cluster.sasl_password"] = PLANTED
    settings["limits.console.refresh_interval_ms"] = 100
    if mechanism == "OAUTHBEARER":
        del settings["cluster.sasl_username"], settings["cluster.sasl_password"]
        (tmp_path / "token").write_text(unsecured_token(PLANTED, lifetime_s=-60))
        settings["cluster.sasl_oauthbearer_token_file"] = tmp_path / "token"
    proxy = ProxyProcess(
        secured.sasl, secured_store, tmp_path, archive="sec-never", settings=settings
    )
    with proxy:
        event = "cluster_authentication_refused"
        wait_for("the refusal", lambda: proxy.logged(event))
        wait_for("readyz", lambda: "cluster_refusal" in proxy.get("/readyz"))
        time.sleep(2.5)  # some more tries
        all_output = everything(proxy)
        assert len(proxy.logged(event)) == 1
        error = proxy.logged(event)[0]["error"]
        assert f"by {mechanism}" in error
        assert secured.sasl in error
        assert mechanism == "OAUTHBEARER" or "'proxy'" in error
        assert json.loads(proxy.get("/readyz"))["cluster_refusal"] == error
        assert 0 < proxy.metric("fetchproxy_cluster_authentication_refusals_total") < 30
        # clients are relayed all the same: they have credentials of their own
        with SaslConnection(proxy.bootstrap, "alice"):
            pass
    assert_clean(all_output + proxy.log_text(), PLANTED)
    token = unsecured_token(PLANTED).split(".")[0]
    assert token not in all_output


@pytest.mark.kafka
async def test_a_token_endpoint_that_refuses(
    secured: SecuredKafka, secured_store: str, tmp_path: Path
) -> None:
    """The server of this test answers with the Authorization header that it got."""
    async with TokenEndpointServer("other", "other") as server:
        keys = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_endpoint_url": server.url,
            "sasl_oauthbearer_client_id": "proxy",
            "sasl_oauthbearer_client_secret": PLANTED,
            "sasl_oauthbearer_scope": "kafka",
        }
        sets = [word for key, v in keys.items() for word in ("--set", f"cluster.{key}={v}")]
        status, output = await asyncio.to_thread(
            run,
            [
                *("archive", "--once", "--bootstrap", secured.sasl, "--store", secured_store),
                *("--topics", "sec-never", "--set", "log.level=debug", *sets),
            ],
        )
    assert server.requests > 0
    assert status == 2
    assert "status 401 (invalid_client) for client 'proxy'" in output
    assert_clean(output, PLANTED, f"proxy:{PLANTED}")


@pytest.mark.kafka
def test_s3_credentials(tmp_path: Path) -> None:
    """In the environment, where boto looks, against an endpoint where nobody is."""
    environ = {"AWS_ACCESS_KEY_ID": "AK1A-planted", "AWS_SECRET_ACCESS_KEY": PLANTED}
    environ["AWS_SESSION_TOKEN"] = f"{PLANTED}-session"
    endpoint = f"http://127.0.0.1:{free_port()}"
    status, output = run(
        [
            *("segments", "--store", f"s3://bucket/prefix?endpoint_url={endpoint}&region=eu"),
            *("--set", "store.timeout_ms=500", "--set", "log.level=debug"),
        ],
        environ,
    )
    assert status == 2, output
    assert_clean(output, PLANTED)
