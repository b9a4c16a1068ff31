"""The table of APIs: which module answers each. Also the APIs that are not about the archive's
content: versions, logins, and refused writes. A new API must be added here.

ApiVersions advertises exactly the APIs that are answered here (KIP-35, KIP-511). Requests that
change something are among them: their client learns why this node cannot, instead of "the broker
does not support this" (`apis.administration`). A client that means another cluster or node is told
to bootstrap again, as by a broker (KIP-1242).

SaslHandshake v0 is answered with error 35, as by the gateway: tokens without a header would follow.
Sessions do not expire (KIP-368): no client has to log in again on a connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey, ErrorCode
from fetchproxy_protocol.headers import RequestHead, unsupported_version_response
from fetchproxy_protocol.messages import I32, NULLABLE_TEXT, Field, Structure, elements
from fetchproxy_protocol.primitives import INT32, Buffer

from fetchproxy.serving.archive_only.apis import (
    administration,
    consumer_groups,
    consumer_offsets,
    kept_acls,
    log_offsets,
    lookups,
)
from fetchproxy.serving.archive_only.apis.fetch import FETCH_API
from fetchproxy.serving.archive_only.handling import (
    NODE_ID,
    READ_ONLY,
    ArchiveOnlyParts,
    Request,
    RequestRefused,
    ServedApi,
)
from fetchproxy.serving.archive_only.logins import Login
from fetchproxy.serving.archive_only.schemas import message

# The gateway's range, whose refusal of newer versions is used here too.
_LOWEST, _HIGHEST = PROXIED_VERSIONS[ApiKey.API_VERSIONS]
_ANY_NODE = -1
# kafka-python's schema ends with v4.
API_VERSIONS_REQUEST = Structure(
    *message("ApiVersionsRequest").fields,
    Field("cluster_id", NULLABLE_TEXT, since=5),
    Field("node_id", I32, since=5, default=_ANY_NODE),
)
# Both inclusive. The handshake's v0 is answered but not advertised.
LOGIN_VERSIONS: Mapping[ApiKey, tuple[int, int]] = {
    ApiKey.SASL_HANDSHAKE: (1, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
}
_FAILED = "Authentication failed: invalid credentials with SASL mechanism"


async def _api_versions(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    fields = await request.read(API_VERSIONS_REQUEST)
    name = fields.get("client_software_name", "")
    request.share.software_is(name, fields.get("client_software_version", ""))
    if fields["cluster_id"] not in (None, parts.cluster_id) or (
        fields["node_id"] not in (_ANY_NODE, NODE_ID)
    ):
        return await request.respond({"error_code": ErrorCode.REBOOTSTRAP_REQUIRED, "api_keys": ()})
    ranges = {api.key: (api.lowest, api.highest) for api in ADVERTISED.values()}
    if parts.logins is not None:
        ranges |= LOGIN_VERSIONS
    offered = [
        {"api_key": key, "min_version": low, "max_version": high}
        for key, (low, high) in sorted(ranges.items())
    ]
    return await request.respond({"api_keys": offered})


async def bootstrap_again(request: Request) -> Sequence[Buffer]:
    """The response to Metadata while the process ends (KIP-1102)."""
    values = {"error_code": ErrorCode.REBOOTSTRAP_REQUIRED, "brokers": (), "topics": ()}
    return await request.respond(values)


def too_new(head: RequestHead) -> Sequence[Buffer] | None:
    """For a newer ApiVersions: error 35 in the form of v0, after which the client asks again. None:
    the request is something else.
    """
    if head.api_key != ApiKey.API_VERSIONS or head.api_version <= _HIGHEST:
        return None
    payload = unsupported_version_response(head.correlation_id)
    return [INT32.pack(len(payload)), payload]


async def handshake(login: Login, request: Request) -> tuple[Sequence[Buffer], bool]:
    """The response, and whether the connection goes on."""
    if request.version == 0:
        values = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "mechanisms": ()}
        return await request.respond(values), False
    if request.version > LOGIN_VERSIONS[ApiKey.SASL_HANDSHAKE][1]:
        raise RequestRefused(request.head, "no such version")
    is_known = login.choose((await request.read())["mechanism"])
    error = ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
    values = {"error_code": error, "mechanisms": login.mechanisms}
    return await request.respond(values), is_known


async def authenticate(login: Login, request: Request) -> Sequence[Buffer]:
    """Raises LoginRefused, RequestRefused, WireError."""
    if request.version > LOGIN_VERSIONS[ApiKey.SASL_AUTHENTICATE][1]:
        raise RequestRefused(request.head, "no such version")
    token = await login.step((await request.read())["auth_bytes"], request.client_id)
    return await request.respond({"auth_bytes": token})


async def login_refusal(request: Request, mechanism: str | None) -> Sequence[Buffer]:
    """Says no more than a broker: not whether the user or the password is wrong."""
    values = {
        "error_code": ErrorCode.SASL_AUTHENTICATION_FAILED,
        "error_message": f"{_FAILED} {mechanism or 'none'}",
    }
    return await request.respond(values)


async def _refuse_handshake(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """For a client that has logged in or need not, as from a broker's plaintext listener."""
    values = {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}
    return await request.respond(values)


async def _refuse_produce(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Raises RequestRefused if acks=0: the connection closes, as on an error at a broker.

    Such a request has no response, and silence would mean success.
    """
    fields = await request.read()
    if fields["acks"] == 0:
        raise RequestRefused(request.head, f"{READ_ONLY}; acks=0 wants no answer")
    refusal = {
        "error_code": ErrorCode.POLICY_VIOLATION,
        "base_offset": -1,
        "error_message": READ_ONLY,
    }
    topics = [
        {
            "name": topic["name"],
            "partition_responses": [
                refusal | {"index": partition["index"]}
                for partition in elements(topic["partition_data"])
            ],
        }
        for topic in elements(fields["topic_data"])
    ]
    return await request.respond({"responses": topics})


ADVERTISED: Mapping[int, ServedApi] = {
    api.key: api
    for api in (
        FETCH_API,
        *log_offsets.APIS,
        *lookups.APIS,
        *consumer_groups.APIS,
        *consumer_offsets.APIS,
        *administration.APIS,
        *kept_acls.APIS,
        # Refused but advertised: librdkafka takes a broker without it for one too old for the
        # present record format, and then reads nothing.
        ServedApi(ApiKey.PRODUCE, 0, 12, _refuse_produce),
        ServedApi(ApiKey.API_VERSIONS, _LOWEST, _HIGHEST, _api_versions),
    )
}
_RESPONDED: Mapping[int, ServedApi] = {
    **ADVERTISED,
    ApiKey.SASL_HANDSHAKE: ServedApi(ApiKey.SASL_HANDSHAKE, 0, 1, _refuse_handshake),
}


def served_api(head: RequestHead) -> ServedApi | None:
    """The API that answers this version; None: there is none."""
    api = _RESPONDED.get(head.api_key)
    if api is None or not api.lowest <= head.api_version <= api.highest:
        return None
    return api
