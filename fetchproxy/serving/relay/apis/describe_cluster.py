"""DescribeCluster (v0–2): what admin clients ask for in place of Metadata (KIP-700).

The broker answers; the brokers' addresses become the proxy's. A client that asks for controllers
(v1, KIP-919) gets that answer from controllers only, to which no proxy's connection leads.
"""

from __future__ import annotations

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey
from fetchproxy_protocol.describe_cluster import ADDRESSES

from fetchproxy.serving.relay.apis.addresses_rewritten import addresses_rewritten
from fetchproxy.serving.relay.handling import Api

API = Api(
    ApiKey.DESCRIBE_CLUSTER,
    (addresses_rewritten(ADDRESSES, *PROXIED_VERSIONS[ApiKey.DESCRIBE_CLUSTER]),),
)
