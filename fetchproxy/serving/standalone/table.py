"""The table of APIs: which module answers what. Whoever adds an API adds it here.

ApiVersions advertises exactly what is answered here, no more (KIP-35, KIP-511): so a client that
wants to change something learns at once that this node cannot, as its library says that the broker
does not support the request. A client that means another cluster or node is told to bootstrap
anew, as by a broker (KIP-1242).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey, ErrorCode
from fetchproxy_protocol.headers import RequestHead, unsupported_version_response
from fetchproxy_protocol.messages import I32, NULLABLE_TEXT, Field, Structure
from fetchproxy_protocol.primitives import INT32, Buffer

from fetchproxy.serving.standalone.apis import (
    consumer_groups,
    consumer_offsets,
    log_offsets,
    lookups,
)
from fetchproxy.serving.standalone.apis.fetch import FETCH
from fetchproxy.serving.standalone.apis.refused_writes import PRODUCE, REFUSED_WRITES
from fetchproxy.serving.standalone.apis.sasl import LOGIN_VERSIONS, SASL_HANDSHAKE_REFUSED
from fetchproxy.serving.standalone.handling import NODE_ID, ArchiveOnlyParts, Request, ServedApi
from fetchproxy.serving.standalone.schemas import message

# As the gateway's, whose refusal of newer ones is used here too.
_LOWEST, _HIGHEST = PROXIED_VERSIONS[ApiKey.API_VERSIONS]
_ANY_NODE = -1
# kafka-python's schema ends with v4.
API_VERSIONS_REQUEST = Structure(
    *message("ApiVersionsRequest").fields,
    Field("cluster_id", NULLABLE_TEXT, since=5),
    Field("node_id", I32, since=5, default=_ANY_NODE),
)


async def _api_versions(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    asked = request.read(API_VERSIONS_REQUEST)
    name = asked.get("client_software_name", "")
    request.share.software_is(name, asked.get("client_software_version", ""))
    if asked["cluster_id"] not in (None, parts.cluster_id) or (
        asked["node_id"] not in (_ANY_NODE, NODE_ID)
    ):
        return request.respond({"error_code": ErrorCode.REBOOTSTRAP_REQUIRED, "api_keys": ()})
    ranges = {api.key: (api.lowest, api.highest) for api in ADVERTISED.values()}
    if parts.logins is not None:
        ranges |= LOGIN_VERSIONS
    offered = [
        {"api_key": key, "min_version": low, "max_version": high}
        for key, (low, high) in sorted(ranges.items())
    ]
    return request.respond({"api_keys": offered})


def too_new(head: RequestHead) -> Sequence[Buffer] | None:
    """Of ApiVersions a version that does not exist yet: error 35 in the form of v0, and the client
    asks again. None: it is something else.
    """
    if head.api_key != ApiKey.API_VERSIONS or head.api_version <= _HIGHEST:
        return None
    payload = unsupported_version_response(head.correlation_id)
    return [INT32.pack(len(payload)), payload]


ADVERTISED: Mapping[int, ServedApi] = {
    api.key: api
    for api in (
        FETCH,
        *log_offsets.APIS,
        *lookups.APIS,
        *consumer_groups.APIS,
        *consumer_offsets.APIS,
        # Refused, and yet advertised: librdkafka takes a broker without it for one that is too old
        # to have records of today's format, and then reads nothing.
        PRODUCE,
        ServedApi(ApiKey.API_VERSIONS, _LOWEST, _HIGHEST, _api_versions),
    )
}
_ANSWERED: Mapping[int, ServedApi] = {
    **ADVERTISED,
    **{api.key: api for api in (*REFUSED_WRITES, SASL_HANDSHAKE_REFUSED)},
}


def served_api(head: RequestHead) -> ServedApi | None:
    """Who answers this API in this version; None for nobody."""
    api = _ANSWERED.get(head.api_key)
    if api is None or not api.lowest <= head.api_version <= api.highest:
        return None
    return api
