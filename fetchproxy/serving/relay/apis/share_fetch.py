"""ShareFetch (v0–2, KIP-932): the fetch of share groups, whose position the broker keeps.

The broker answers; the addresses in NodeEndpoints become the proxy's. The archive is not read: a
share group's offsets are acquired and acknowledged on the broker, which never hands out one below
its log start.
"""

from __future__ import annotations

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey
from fetchproxy_protocol.share_fetch import ADDRESSES

from fetchproxy.serving.relay.apis.addresses_rewritten import addresses_rewritten
from fetchproxy.serving.relay.handling import Api

API = Api(
    ApiKey.SHARE_FETCH,
    (
        addresses_rewritten(
            ADDRESSES,
            *PROXIED_VERSIONS[ApiKey.SHARE_FETCH],
            "Addresses in NodeEndpoints become ours; the records are the broker's alone.",
        ),
    ),
)
