"""The behaviour that the APIs share whose answers name brokers: clients are told the proxy's ports.

A client would otherwise go to the brokers past the proxy with its next connection. An answer is
held until it is whole, and where it names a node that has no listener yet, until that one listens.
"""

from __future__ import annotations

from collections.abc import Awaitable

from fetchproxy_protocol.addresses import AnswerAddresses
from fetchproxy_protocol.headers import RequestHead
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.relay.addresses import ToldAddresses
from fetchproxy.serving.relay.answers import Answer, HeldAnswer, Payload
from fetchproxy.serving.relay.handling import Behaviour, Passes, Session, Treatment


def addresses_rewritten(
    places: AnswerAddresses, first: int, last: int, why: str = "Brokers' addresses become ours."
) -> Behaviour:
    def expect(session: Session, head: RequestHead, view: Buffer, end: int) -> Answer:
        return expect_addresses(session.addresses, head, places)

    return Behaviour(first, last, Treatment.REWRITTEN, Passes(expect), why)


def expect_addresses(
    addresses: ToldAddresses, head: RequestHead, places: AnswerAddresses
) -> Answer:
    version = head.api_version

    def rewrite(payload: bytes) -> Payload | Awaitable[Payload]:
        spliced = addresses.rewrite(payload, version, places)
        return _as_payload(spliced) if isinstance(spliced, Awaitable) else [spliced]

    return HeldAnswer(head.correlation_id, rewrite)


async def _as_payload(spliced: Awaitable[Buffer]) -> Payload:
    return [await spliced]
