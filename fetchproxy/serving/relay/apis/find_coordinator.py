"""FindCoordinator (v0–6): the broker that coordinates a group, a transaction or a share group.

The broker answers; the coordinator's address becomes the proxy's, one up to v3 and one for each
key from v4 on (KIP-699). An answer with an error has no address and stays as it is.
"""

from __future__ import annotations

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey
from fetchproxy_protocol.find_coordinator import ADDRESSES

from fetchproxy.serving.relay.apis.addresses_rewritten import addresses_rewritten
from fetchproxy.serving.relay.handling import Api

API = Api(
    ApiKey.FIND_COORDINATOR,
    (
        addresses_rewritten(
            ADDRESSES, *PROXIED_VERSIONS[ApiKey.FIND_COORDINATOR], "Coordinators' addresses too."
        ),
    ),
)
