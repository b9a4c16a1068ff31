"""The table of APIs: which module answers what. Whoever adds an API adds it here."""

from __future__ import annotations

from collections.abc import Mapping

from fetchproxy_protocol.headers import RequestHead

from fetchproxy.serving.standalone.apis import consumer_groups, consumer_offsets, lookups
from fetchproxy.serving.standalone.apis.api_versions import api_versions
from fetchproxy.serving.standalone.apis.fetch import FETCH
from fetchproxy.serving.standalone.apis.list_offsets import LIST_OFFSETS
from fetchproxy.serving.standalone.apis.offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from fetchproxy.serving.standalone.apis.refused_writes import PRODUCE, REFUSED_WRITES
from fetchproxy.serving.standalone.apis.sasl import SASL_HANDSHAKE_REFUSED
from fetchproxy.serving.standalone.handling import ServedApi

_APIS = (
    FETCH,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    *lookups.APIS,
    *consumer_groups.APIS,
    *consumer_offsets.APIS,
    # Refused, and yet advertised: librdkafka takes a broker without it for one that is too old to
    # have records of today's format, and then reads nothing.
    PRODUCE,
)

ADVERTISED: Mapping[int, ServedApi] = {api.key: api for api in (*_APIS, api_versions(_APIS))}
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
