"""What each request needs from the gateway, by API key and version. Pure: one table."""

from __future__ import annotations

from enum import Enum

from protocol.apis import PROXIED_VERSIONS, ApiKey
from protocol.headers import RequestHead


class Treatment(Enum):
    # these pass to the broker as they arrive
    RELAY = "relay"
    PRODUCE = "produce"  # the answer may name brokers; acks=0 has none
    ADDRESSES = "addresses"  # the answer names brokers
    API_VERSIONS = "api versions"
    # these are held until whole
    FETCH = "fetch"
    LIST_OFFSETS = "list offsets"
    API_VERSIONS_TOO_NEW = "api versions too new"  # KIP-511
    SASL_HANDSHAKE_V0 = "sasl handshake v0"  # raw tokens would follow
    REFUSED = "refused"

    @property
    def passes(self) -> bool:
        return self in _PASSING


_PASSING = frozenset(
    (Treatment.RELAY, Treatment.PRODUCE, Treatment.ADDRESSES, Treatment.API_VERSIONS)
)

_SPECIAL = {
    ApiKey.PRODUCE: Treatment.PRODUCE,
    ApiKey.FETCH: Treatment.FETCH,
    ApiKey.LIST_OFFSETS: Treatment.LIST_OFFSETS,
    ApiKey.METADATA: Treatment.ADDRESSES,
    ApiKey.FIND_COORDINATOR: Treatment.ADDRESSES,
    ApiKey.DESCRIBE_CLUSTER: Treatment.ADDRESSES,
    ApiKey.SHARE_FETCH: Treatment.ADDRESSES,
    ApiKey.SHARE_ACKNOWLEDGE: Treatment.ADDRESSES,
    ApiKey.API_VERSIONS: Treatment.API_VERSIONS,
}
_NODE_ENDPOINTS_FROM_PRODUCE = 10
_KNOWN = frozenset(int(key) for key in ApiKey)


def treatment_of(head: RequestHead) -> Treatment:
    """Unknown keys, and versions we cannot read, are refused: the answer may name brokers."""
    key, version = head.api_key, head.api_version
    if key not in _KNOWN:
        return Treatment.REFUSED
    proxied = PROXIED_VERSIONS.get(key)
    if proxied is not None and not proxied[0] <= version <= proxied[1]:
        if key == ApiKey.API_VERSIONS and version > proxied[1]:
            return Treatment.API_VERSIONS_TOO_NEW
        if key == ApiKey.SASL_HANDSHAKE and version == 0:
            return Treatment.SASL_HANDSHAKE_V0
        return Treatment.REFUSED
    return _SPECIAL.get(ApiKey(key), Treatment.RELAY)


def produce_answer_is_relayed(version: int) -> bool:
    """Before v10 a Produce answer has no NodeEndpoints (KIP-951)."""
    return version < _NODE_ENDPOINTS_FROM_PRODUCE
