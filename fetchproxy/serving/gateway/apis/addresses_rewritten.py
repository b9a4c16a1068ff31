"""APIs whose responses have brokers' addresses: clients get the proxy's ports instead.

Otherwise a client's next connection would bypass the proxy. A response is held until it is whole,
and until each node that it names has a listener. A response with an error has no address and stays
as it is.

Metadata (v0–13): node ids, racks, leaders, epochs and topic ids stay as they are, because clients
send them back. Topics are not read: the broker decides which topics a principal may see. While the
process drains, v13 tells the client to bootstrap again (KIP-1102).

FindCoordinator (v0–6): the broker that coordinates a group, a transaction or a share group.

DescribeCluster (v0–2): admin clients ask for it instead of Metadata (KIP-700). Only controllers
answer a client that asks for controllers (v1, KIP-919), and no proxy connection leads to them.

ShareFetch (v0–2) and ShareAcknowledge (v0–2), KIP-932: the archive is not read. A share group's
offsets are acquired and acknowledged on the broker, which never hands out one below its log start.

Produce (v0–13): records for the live log, which pass untouched and are never decoded. A request
with acks=0 has no response, so the proxy reads `acks`. From v10 on a response may name a
partition's new leader (NodeEndpoints, KIP-951). The log start offset in a response is the broker's
own: no client uses it to read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from fetchproxy_protocol.addresses import (
    PRODUCE_ENDPOINTS_FROM,
    REBOOTSTRAP_FROM,
    acks_of,
    rebootstrap_response,
)
from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey, Truncated
from fetchproxy_protocol.headers import RequestHead
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.gateway.broker_link import BufferedResponse
from fetchproxy.serving.gateway.session import (
    Api,
    Behaviour,
    GatewaySession,
    Passes,
    Treatment,
    rewritten,
)
from fetchproxy.serving.upstream import ExpectedResponse

_FIRST, _LAST = PROXIED_VERSIONS[ApiKey.PRODUCE]
_SHARED = "Addresses in NodeEndpoints become the proxy's"


def _expect(session: GatewaySession, head: RequestHead, view: Buffer, end: int) -> ExpectedResponse:
    api_key, version, addresses = head.api_key, head.api_version, session.addresses
    return BufferedResponse(
        head.correlation_id, lambda payload: addresses.rewrite(payload, api_key, version)
    )


def _expect_metadata(
    session: GatewaySession, head: RequestHead, view: Buffer, end: int
) -> ExpectedResponse:
    session.supports_rebootstrap = head.api_version >= REBOOTSTRAP_FROM

    def rewrite(payload: bytes) -> Sequence[Buffer] | Awaitable[Sequence[Buffer]]:
        if session.draining and head.api_version >= REBOOTSTRAP_FROM:
            session.take_no_more()
            return [rebootstrap_response(head.correlation_id)]
        return session.addresses.rewrite(payload, head.api_key, head.api_version)

    return BufferedResponse(head.correlation_id, rewrite)


def _expect_produced(
    session: GatewaySession, head: RequestHead, view: Buffer, end: int
) -> ExpectedResponse | None:
    acks = acks_of(view, head.body_position, head.api_version, end)
    if acks is None:
        raise Truncated("a Produce request ends before its acks")
    if acks == 0:
        return None
    if head.api_version >= PRODUCE_ENDPOINTS_FROM:
        return _expect(session, head, view, end)
    return ExpectedResponse(head.correlation_id)


_REWRITTEN = Passes(_expect)
_METADATA = Passes(_expect_metadata)
_PRODUCED = Passes(_expect_produced)
_PRODUCE = Api(
    ApiKey.PRODUCE,
    (
        Behaviour(
            _FIRST,
            PRODUCE_ENDPOINTS_FROM - 1,
            Treatment.RELAYED,
            _PRODUCED,
            "The proxy reads only `acks`, because acks=0 has no response.",
        ),
        Behaviour(
            PRODUCE_ENDPOINTS_FROM,
            _LAST,
            Treatment.REWRITTEN,
            _PRODUCED,
            "Addresses in NodeEndpoints (KIP-951) become the proxy's.",
        ),
    ),
)
APIS = (
    rewritten(ApiKey.METADATA, _METADATA, "Brokers' addresses become the proxy's."),
    rewritten(ApiKey.FIND_COORDINATOR, _REWRITTEN, "Coordinators' addresses become the proxy's."),
    rewritten(ApiKey.DESCRIBE_CLUSTER, _REWRITTEN, "Brokers' addresses become the proxy's."),
    rewritten(ApiKey.SHARE_FETCH, _REWRITTEN, f"{_SHARED}; all records come from the broker."),
    rewritten(ApiKey.SHARE_ACKNOWLEDGE, _REWRITTEN, f"{_SHARED}."),
    _PRODUCE,
)
