"""ShareAcknowledge (v0–2, KIP-932): what a share group has done with its records.

The broker answers; the addresses in NodeEndpoints become the proxy's. The archive has no part in
share groups (see `share_fetch`).
"""

from __future__ import annotations

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey
from fetchproxy_protocol.share_acknowledge import ADDRESSES

from fetchproxy.serving.relay.apis.addresses_rewritten import addresses_rewritten
from fetchproxy.serving.relay.handling import Api

API = Api(
    ApiKey.SHARE_ACKNOWLEDGE,
    (
        addresses_rewritten(
            ADDRESSES,
            *PROXIED_VERSIONS[ApiKey.SHARE_ACKNOWLEDGE],
            "Addresses in NodeEndpoints become ours.",
        ),
    ),
)
