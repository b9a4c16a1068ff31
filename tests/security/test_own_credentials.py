"""The proxy's own requests under every mechanism, against a real broker: sessions that end,
passwords that are wrong, tokens that expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from secured_clients import USERS, as_user
from token_endpoint import TokenEndpointServer

from fetchproxy.brokers import connections as broker_connections
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.config.values import SecretFile
from fetchproxy.errors import AuthenticationRefused, ClusterUnavailable, ConfigError
from fetchproxy.observability.metrics import REGISTRY
from lab.secured_kafka import MECHANISMS, SESSION_MS, SecuredKafka, unsecured_token

pytestmark = pytest.mark.kafka

TOPIC = "own-credentials"
REFUSALS = "fetchproxy_cluster_authentication_refusals_total"


@pytest.fixture(scope="module", autouse=True)
def topic(secured: SecuredKafka) -> str:
    secured.allow("proxy", TOPIC, "DESCRIBE")
    return secured.create_topic(TOPIC)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[[str, str], ClusterConfig]:
    def make(bootstrap: str, mechanism: str, **more: object) -> ClusterConfig:
        token = tmp_path / "token"
        token.write_text(unsecured_token("proxy") + "\n")
        login = {
            key.removeprefix("cluster."): value
            for key, value in as_user("proxy", mechanism).items()
        }
        if mechanism == "OAUTHBEARER":
            login.pop("sasl_username")
            login.pop("sasl_password")
            login["sasl_oauthbearer_token_file"] = token
        return ClusterConfig(bootstrap=bootstrap, **{**login, **more})  # type: ignore[arg-type]

    return make


async def names(cluster: Cluster) -> list[str]:
    return [topic.name for topic in await cluster.topics(max_age_ms=0)]


def connections(cluster: Cluster) -> list[object]:
    return list(cluster._connections._shared.values())


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_authenticates(mechanism: str, secured: SecuredKafka, settings) -> None:
    async with Cluster(settings(secured.sasl, mechanism)) as cluster:
        assert TOPIC in await names(cluster)
        assert cluster.refusal is None


async def test_sessions_are_renewed_under_requests_in_flight(
    secured: SecuredKafka, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All mechanisms side by side, each with requests pipelined on one connection, for more than
    two sessions: no request fails and no connection is replaced."""
    # A busy broker may look at a request seconds after it was sent, and the session must last then.
    monkeypatch.setattr(broker_connections, "_RENEW_AFTER_SHARE", 0.3)
    loop = asyncio.get_running_loop()

    async def keep_asking(cluster: Cluster, until: float) -> int:
        requests_made = 0
        while loop.time() < until:
            assert TOPIC in [t.name for t in (await cluster._fetch_metadata(None)).topics]
            requests_made += 1
        return requests_made

    async def for_some_sessions(mechanism: str) -> None:
        async with Cluster(settings(secured.short_sessions, mechanism)) as cluster:
            await names(cluster)  # at the bootstrap address
            before = connections(cluster)
            until = loop.time() + 2.5 * SESSION_MS / 1000
            async with asyncio.TaskGroup() as group:
                asking = [group.create_task(keep_asking(cluster, until)) for _ in range(3)]
            assert min(task.result() for task in asking) > 10
            assert connections(cluster) == before
            assert len(before) == 1

    async with asyncio.TaskGroup() as group:
        for mechanism in MECHANISMS:
            group.create_task(for_some_sessions(mechanism))


async def test_an_idle_connection_is_renewed_after_its_session_has_ended(
    secured: SecuredKafka, settings
) -> None:
    async with Cluster(settings(secured.short_sessions, "SCRAM-SHA-256")) as cluster:
        await names(cluster)
        before = connections(cluster)
        await asyncio.sleep(1.2 * SESSION_MS / 1000)
        assert TOPIC in await names(cluster)
        assert connections(cluster) == before


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_one_clear_error_and_no_storm(
    mechanism: str, secured: SecuredKafka, settings
) -> None:
    before = REGISTRY.get_sample_value(REFUSALS) or 0
    config = settings(secured.sasl, mechanism, sasl_password="wr0ng-5ecret")
    with structlog.testing.capture_logs() as logged:
        async with Cluster(config) as cluster:
            for _ in range(20):
                with pytest.raises(AuthenticationRefused) as refused:
                    await names(cluster)
            assert not refused.value.retriable
            assert refused.value.error_code == 58  # SASL_AUTHENTICATION_FAILED
            assert f"user 'proxy' by {mechanism}" in str(refused.value)
            assert cluster.refusal == str(refused.value)
    assert [entry["event"] for entry in logged] == ["cluster_authentication_refused"]
    assert "5ecret" not in repr(logged) + repr(refused.value)
    # Each try at a broker takes 100 ms (connection.failed.authentication.delay.ms) at least.
    assert REGISTRY.get_sample_value(REFUSALS) - before <= 3


@pytest.mark.remedy("cluster_authentication_refused")
async def test_a_mended_password_file_is_taken_up(
    tmp_path: Path, secured: SecuredKafka, settings
) -> None:
    file = tmp_path / "password"
    file.write_text("wrong\n")
    config = settings(secured.sasl, "SCRAM-SHA-512", sasl_password=SecretFile(file=file))
    async with Cluster(config) as cluster:
        with pytest.raises(AuthenticationRefused):
            await names(cluster)
        file.unlink()  # as while a secret is being replaced
        await asyncio.sleep(1.1)
        with pytest.raises(ClusterUnavailable, match=r"cluster\.sasl_password"):
            await names(cluster)
        file.write_text(USERS["proxy"] + "\n")
        assert TOPIC in await names(cluster)
        assert cluster.refusal is None


def test_a_missing_file_is_an_error_at_the_start(tmp_path: Path, settings) -> None:
    missing = tmp_path / "missing"
    for mechanism, key, value in (
        ("PLAIN", "sasl_password", SecretFile(file=missing)),
        ("OAUTHBEARER", "sasl_oauthbearer_token_file", missing),
    ):
        config = settings("127.0.0.1:1", mechanism, **{"sasl_password": None, key: value})
        with pytest.raises(ConfigError, match=f"cluster.{key}"):
            Cluster(config)


async def test_a_mechanism_that_the_broker_has_not(secured: SecuredKafka, settings) -> None:
    """At the listener without SASL the mechanism is not even looked at."""
    async with Cluster(settings(secured.bootstrap, "PLAIN")) as cluster:
        with pytest.raises(AuthenticationRefused, match="has no SASL"):
            await names(cluster)


async def test_tokens_that_expire_are_renewed_from_file(
    secured: SecuredKafka, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends with the token, and the file is read again for the next one."""
    # A busy machine may log in seconds after the token was written. The renewals come soon anyway.
    lifetime_s, renew_after = 10.0, 0.2
    monkeypatch.setattr(broker_connections, "_RENEW_AFTER_SHARE", renew_after)
    config = settings(secured.sasl, "OAUTHBEARER")  # only tokens end a session there
    file = config.sasl_oauthbearer_token_file
    assert file is not None
    file.write_text(unsecured_token("proxy", lifetime_s))
    async with Cluster(config) as cluster:
        await names(cluster)
        before = connections(cluster)
        await asyncio.sleep(renew_after * lifetime_s + 0.2)
        file.write_text(unsecured_token("proxy", lifetime_s))
        assert TOPIC in await names(cluster)
        assert connections(cluster) == before
        file.write_text(unsecured_token("proxy", lifetime_s=-60))
        await asyncio.sleep(renew_after * lifetime_s + 0.2)
        with pytest.raises(AuthenticationRefused, match="OAUTHBEARER"):
            await names(cluster)


def with_endpoint(settings, bootstrap: str, server: TokenEndpointServer) -> ClusterConfig:
    config: ClusterConfig = settings(
        bootstrap,
        "OAUTHBEARER",
        sasl_oauthbearer_token_file=None,
        sasl_oauthbearer_token_endpoint_url=server.url,
        sasl_oauthbearer_client_id="fetch:proxy",
        sasl_oauthbearer_client_secret="cl1ent/5ecret+",
        sasl_oauthbearer_scope="kafka",
    )
    return config


async def test_a_token_endpoint_is_asked_once_per_token(secured: SecuredKafka, settings) -> None:
    async with TokenEndpointServer("fetch:proxy", "cl1ent/5ecret+") as server:
        server.lifetime_s = 3600
        async with Cluster(with_endpoint(settings, secured.sasl, server)) as cluster:
            for _ in range(3):
                assert TOPIC in await names(cluster)
                cluster._connections.retain(())  # the next request opens a connection anew
        assert server.requests == 1
        assert server.scopes == ["kafka"]


async def test_an_expiring_token_is_fetched_again_and_an_outage_only_hurts_at_its_end(
    secured: SecuredKafka, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    real, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + passed[0])
    async with TokenEndpointServer("fetch:proxy", "cl1ent/5ecret+") as server:
        server.lifetime_s = 3600
        async with Cluster(with_endpoint(settings, secured.sasl, server)) as cluster:

            async def names_after(passed_s: float) -> list[str]:
                passed[0] = passed_s
                cluster._connections.retain(())
                return await names(cluster)

            await names_after(0)
            await names_after(2800)
            assert server.requests == 1
            server.status = 503
            assert TOPIC in await names_after(3000)  # after 0.8 of the token's life it is asked
            assert server.requests == 2
            with pytest.raises(ClusterUnavailable, match="status 503"):
                await names_after(3700)
            server.status = 200
            assert TOPIC in await names_after(3700)


@pytest.mark.parametrize("status", [400, 401, 302, 500])
async def test_what_a_token_endpoint_may_say_instead(
    status: int, secured: SecuredKafka, settings
) -> None:
    async with TokenEndpointServer("fetch:proxy", "cl1ent/5ecret+") as server:
        server.status = status
        async with Cluster(with_endpoint(settings, secured.sasl, server)) as cluster:
            error_expected = ClusterUnavailable if status == 500 else AuthenticationRefused
            with pytest.raises(error_expected, match=f"status {status} .invalid_client") as raised:
                await names(cluster)
        assert server.url in str(raised.value)
        assert "5ecret" not in str(raised.value)
        assert server.elsewhere == 0  # a redirection is not followed


async def test_a_token_endpoint_that_is_away(secured: SecuredKafka, settings) -> None:
    async with TokenEndpointServer("x", "y") as server:
        config = with_endpoint(settings, secured.sasl, server)
    async with Cluster(config) as cluster:
        with pytest.raises(ClusterUnavailable, match="token endpoint"):
            await names(cluster)
