"""Requests that name the consumer group of a client. They pass unchanged: the name is for the
figures of who reads history (`reader_accounts`).
"""

from __future__ import annotations

from fetchproxy_protocol.apis import ApiKey, WireError, is_flexible
from fetchproxy_protocol.headers import RequestHead, client_id
from fetchproxy_protocol.primitives import Buffer, Cursor

from fetchproxy.serving.gateway.session import GatewaySession, Passes
from fetchproxy.serving.upstream import ExpectedResponse

KEYS = frozenset((ApiKey.JOIN_GROUP, ApiKey.OFFSET_FETCH, ApiKey.CONSUMER_GROUP_HEARTBEAT))
_MANY_GROUPS_FROM = 8  # OffsetFetch


def group_of(buf: Buffer, head: RequestHead, end: int) -> str:
    """The first group that a request of `KEYS` names; "" if it names none, or came in part only."""
    flexible = is_flexible(head.api_key, head.api_version)
    cursor = Cursor(buf, head.body_position, end)
    try:
        of_many = head.api_key == ApiKey.OFFSET_FETCH and head.api_version >= _MANY_GROUPS_FROM
        if of_many and cursor.count(flexible) != 1:
            return ""  # a tool's question about several groups
        return cursor.string(flexible)
    except WireError:
        return ""


def _expect(session: GatewaySession, head: RequestHead, view: Buffer, end: int) -> ExpectedResponse:
    group = group_of(view, head, end)
    if group:
        session.share.group_is(session.client_host, client_id(view, head), group)
    return ExpectedResponse(head.correlation_id)


HANDLING = Passes(_expect)
