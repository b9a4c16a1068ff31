"""Produce (v0–13): records for the live log, which pass untouched and are never decoded.

A request with acks=0 has no answer at all, so `acks` is read to know what to expect. From v10 on an
answer may name a partition's new leader (NodeEndpoints, KIP-951): its address becomes the proxy's.
The log start offset in an answer is the broker's own: no client uses it to read.
"""

from __future__ import annotations

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey, Truncated
from fetchproxy_protocol.headers import RequestHead
from fetchproxy_protocol.primitives import Buffer
from fetchproxy_protocol.produce import ADDRESSES, ENDPOINTS_FROM, acks_of

from fetchproxy.serving.relay.answers import Answer
from fetchproxy.serving.relay.apis.addresses_rewritten import expect_addresses
from fetchproxy.serving.relay.handling import Api, Behaviour, Passes, Session, Treatment


def _is_answered(head: RequestHead, view: Buffer, end: int) -> bool:
    acks = acks_of(view, head.body_position, head.api_version, end)
    if acks is None:
        raise Truncated("a Produce request ends before its acks")
    return acks != 0


def _expect_relayed(session: Session, head: RequestHead, view: Buffer, end: int) -> Answer | None:
    return Answer(head.correlation_id) if _is_answered(head, view, end) else None


def _expect_rewritten(session: Session, head: RequestHead, view: Buffer, end: int) -> Answer | None:
    return (
        expect_addresses(session.addresses, head, ADDRESSES)
        if _is_answered(head, view, end)
        else None
    )


_FIRST, _LAST = PROXIED_VERSIONS[ApiKey.PRODUCE]
API = Api(
    ApiKey.PRODUCE,
    (
        Behaviour(
            _FIRST,
            ENDPOINTS_FROM - 1,
            Treatment.RELAYED,
            Passes(_expect_relayed),
            "The proxy reads only `acks`, because acks=0 has no answer.",
        ),
        Behaviour(
            ENDPOINTS_FROM,
            _LAST,
            Treatment.REWRITTEN,
            Passes(_expect_rewritten),
            "Addresses in NodeEndpoints (KIP-951) become the proxy's.",
        ),
    ),
)
