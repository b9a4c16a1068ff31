"""Metadata (v0–13): which brokers there are, and which of them leads each partition.

The broker answers; the brokers' addresses become the proxy's. Node ids, racks, leaders, epochs and
topic ids stay as they are, since clients send them back. Topics are not looked at: the broker says
which a principal may see.
"""

from __future__ import annotations

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey
from fetchproxy_protocol.metadata import ADDRESSES

from fetchproxy.serving.relay.apis.addresses_rewritten import addresses_rewritten
from fetchproxy.serving.relay.handling import Api

API = Api(ApiKey.METADATA, (addresses_rewritten(ADDRESSES, *PROXIED_VERSIONS[ApiKey.METADATA]),))
