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

from fetchproxy.serving.relay.apis.addresses_rewritten import expect_addresses
from fetchproxy.serving.relay.broker_link import Answer
from fetchproxy.serving.relay.session import Api, Behaviour, Passes, RelaySession, Treatment


def _passes(rewritten: bool) -> Passes:
    def expect(session: RelaySession, head: RequestHead, view: Buffer, end: int) -> Answer | None:
        acks = acks_of(view, head.body_position, head.api_version, end)
        if acks is None:
            raise Truncated("a Produce request ends before its acks")
        if acks == 0:
            return None
        if rewritten:
            return expect_addresses(session.addresses, head, ADDRESSES)
        return Answer(head.correlation_id)

    return Passes(expect)


_FIRST, _LAST = PROXIED_VERSIONS[ApiKey.PRODUCE]
API = Api(
    ApiKey.PRODUCE,
    (
        Behaviour(
            _FIRST,
            ENDPOINTS_FROM - 1,
            Treatment.RELAYED,
            _passes(rewritten=False),
            "The proxy reads only `acks`, because acks=0 has no answer.",
        ),
        Behaviour(
            ENDPOINTS_FROM,
            _LAST,
            Treatment.REWRITTEN,
            _passes(rewritten=True),
            "Addresses in NodeEndpoints (KIP-951) become the proxy's.",
        ),
    ),
)
