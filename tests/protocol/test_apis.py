"""The API table against the schemas that kafka-python bundles from Kafka."""

from __future__ import annotations

from importlib import resources

import pytest
from fetchproxy_protocol.apis import (
    FLEXIBLE_FROM,
    NEVER_FLEXIBLE,
    PROXIED_VERSIONS,
    ApiKey,
    is_flexible,
    is_known,
    offered_versions,
)
from message_schema import schema

REQUESTS = sorted(
    path.name.removesuffix(".json")
    for path in resources.files("kafka.protocol.schemas.resources").iterdir()
    if path.name.endswith("Request.json")
)


def test_there_are_schemas_to_compare_with() -> None:
    assert len(REQUESTS) > 45


@pytest.mark.parametrize("name", REQUESTS)
def test_flexible_versions(name: str) -> None:
    message = schema(name)
    key = ApiKey(message["apiKey"])
    assert key.name.replace("_", "").lower() == name.removesuffix("Request").lower()
    flexible = message["flexibleVersions"]
    first = NEVER_FLEXIBLE if flexible == "none" else int(flexible.removesuffix("+"))
    assert FLEXIBLE_FROM[key] == first


@pytest.mark.parametrize("name", REQUESTS)
def test_proxied_versions_end_where_a_schema_does(name: str) -> None:
    message = schema(name)
    if message["apiKey"] in PROXIED_VERSIONS:
        newest = int(message["validVersions"].rpartition("-")[2])
        # Kafka 4.4 has a later one, of which kafka-python knows nothing: its body was compared.
        known = newest + 1 if message["apiKey"] == ApiKey.API_VERSIONS else newest
        assert PROXIED_VERSIONS[message["apiKey"]][1] == known


def test_every_key_has_a_first_flexible_version() -> None:
    assert [int(key) for key in ApiKey] == list(range(len(ApiKey))) == list(FLEXIBLE_FROM)


def test_flexible_of_unknown_keys_and_borders() -> None:
    assert not is_flexible(ApiKey.FETCH, 11)
    assert is_flexible(ApiKey.FETCH, 12)
    assert not is_flexible(ApiKey.SASL_HANDSHAKE, 1)
    assert not is_flexible(10_000, 5)
    assert not is_flexible(-1, 5)
    assert not is_known(95)


@pytest.mark.parametrize(
    ("key", "low", "high", "offered"),
    [
        (ApiKey.FETCH, 0, 17, (4, 17)),
        (ApiKey.FETCH, 4, 19, (4, 18)),
        (ApiKey.FETCH, 19, 20, None),
        (ApiKey.FETCH, 0, 3, None),
        (ApiKey.PRODUCE, 0, 13, (0, 13)),
        (ApiKey.SASL_HANDSHAKE, 0, 1, (1, 1)),
        (ApiKey.DESCRIBE_LOG_DIRS, 1, 5, (1, 5)),
        (ApiKey.UNREGISTER_CONTROLLER, 0, 1, (0, 1)),
        (ApiKey.API_VERSIONS, 0, 6, (0, 5)),
        (95, 0, 1, None),
        (10_000, 0, 1, None),
        (-1, 0, 1, None),
    ],
)
def test_offered_versions(key: int, low: int, high: int, offered: tuple[int, int] | None) -> None:
    assert offered_versions(key, low, high) == offered
