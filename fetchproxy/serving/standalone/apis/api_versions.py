"""ApiVersions: exactly what is answered here is advertised, no more (KIP-35, KIP-511).

So a client that wants to change something learns at once that this node cannot: its library says
that the broker does not support the request. Produce is advertised, and answered with a refusal.
A client that means another cluster or node is told to bootstrap anew, as by a broker (KIP-1242).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey, ErrorCode
from fetchproxy_protocol.headers import RequestHead, unsupported_version_response
from fetchproxy_protocol.messages import I32, NULLABLE_TEXT, Field, Structure
from fetchproxy_protocol.primitives import INT32, Buffer

from fetchproxy.serving.standalone.apis import sasl
from fetchproxy.serving.standalone.handling import NODE_ID, ArchiveOnlyParts, Request, ServedApi
from fetchproxy.serving.standalone.schemas import message

# As the gateway's, whose refusal of newer ones is used here too.
LOWEST, HIGHEST = PROXIED_VERSIONS[ApiKey.API_VERSIONS]
_ANY_NODE = -1
# kafka-python's schema ends with v4.
REQUEST = Structure(
    *message("ApiVersionsRequest").fields,
    Field("cluster_id", NULLABLE_TEXT, since=5),
    Field("node_id", I32, since=5, default=_ANY_NODE),
)


def api_versions(others: Iterable[ServedApi]) -> ServedApi:
    """The API that names all `others` and itself."""
    named = {api.key: (api.lowest, api.highest) for api in others}
    named[ApiKey.API_VERSIONS] = (LOWEST, HIGHEST)
    ranges, with_sasl = _ranges(named), _ranges({**named, **sasl.VERSIONS})

    async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
        asked = request.read(REQUEST)
        name = asked.get("client_software_name", "")
        request.share.software_is(name, asked.get("client_software_version", ""))
        if asked["cluster_id"] not in (None, parts.cluster_id) or (
            asked["node_id"] not in (_ANY_NODE, NODE_ID)
        ):
            refusal = {"error_code": ErrorCode.REBOOTSTRAP_REQUIRED, "api_keys": ()}
            return request.respond(refusal)
        offered = with_sasl if parts.logins else ranges
        return request.respond({"api_keys": offered})

    return ServedApi(ApiKey.API_VERSIONS, LOWEST, HIGHEST, answer)


def _ranges(named: Mapping[ApiKey, tuple[int, int]]) -> list[dict[str, int]]:
    return [
        {"api_key": key, "min_version": low, "max_version": high}
        for key, (low, high) in sorted(named.items())
    ]


def too_new(head: RequestHead) -> Sequence[Buffer]:
    """A version that does not exist yet: error 35 in the form of v0, and the client asks again."""
    payload = unsupported_version_response(head.correlation_id)
    return [INT32.pack(len(payload)), payload]
