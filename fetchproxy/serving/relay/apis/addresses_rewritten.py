"""APIs that the broker answers with brokers' addresses: clients are told the proxy's ports.

A client would otherwise go to the brokers past the proxy with its next connection. An answer is
held until it is whole, and where it names a node that has no listener yet, until that one listens.
An answer with an error has no address and stays as it is.

Metadata (v0–13): node ids, racks, leaders, epochs and topic ids stay as they are, since clients
send them back. Topics are not looked at: the broker says which a principal may see.

FindCoordinator (v0–6): the broker that coordinates a group, a transaction or a share group.

DescribeCluster (v0–2): what admin clients ask for in place of Metadata (KIP-700). A client that
asks for controllers (v1, KIP-919) gets that answer from controllers only, to which no proxy's
connection leads.

ShareFetch (v0–2) and ShareAcknowledge (v0–2), KIP-932: the archive is not read. A share group's
offsets are acquired and acknowledged on the broker, which never hands out one below its log start.
"""

from __future__ import annotations

from fetchproxy_protocol.addresses import ADDRESSES, AnswerAddresses
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.headers import RequestHead
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.relay.addresses import ToldAddresses
from fetchproxy.serving.relay.broker_link import Answer, HeldAnswer
from fetchproxy.serving.relay.session import Api, Passes, RelaySession, rewritten


def expect_addresses(
    addresses: ToldAddresses, head: RequestHead, places: AnswerAddresses
) -> Answer:
    version = head.api_version
    return HeldAnswer(
        head.correlation_id, lambda payload: addresses.rewrite(payload, version, places)
    )


def _api(key: ApiKey, why: str) -> Api:
    def expect(session: RelaySession, head: RequestHead, view: Buffer, end: int) -> Answer:
        return expect_addresses(session.addresses, head, ADDRESSES[key])

    return rewritten(key, Passes(expect), why)


_SHARED = "Addresses in NodeEndpoints become the proxy's"
APIS = (
    _api(ApiKey.METADATA, "Brokers' addresses become the proxy's."),
    _api(ApiKey.FIND_COORDINATOR, "Coordinators' addresses become the proxy's."),
    _api(ApiKey.DESCRIBE_CLUSTER, "Brokers' addresses become the proxy's."),
    _api(ApiKey.SHARE_FETCH, f"{_SHARED}; the records are the broker's alone."),
    _api(ApiKey.SHARE_ACKNOWLEDGE, f"{_SHARED}."),
)
