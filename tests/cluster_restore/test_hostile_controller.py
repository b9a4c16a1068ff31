"""A controller whose responses are no responses is an error that names the request."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.messages import write_response
from hostile_broker import HostileBroker, serving

from fetchproxy.cluster_restore import controller_requests as requests
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.config.schema import Config
from fetchproxy.config.values import parse_host_port
from fetchproxy.errors import ClusterError
from fetchproxy.runtime.cooperative import at_once
from fetchproxy.serving.archive_only.schemas import response_of


def offered(version: int, correlation: int) -> bytes:
    rows = [{"api_key": int(key), "min_version": 0, "max_version": 9} for key in ApiKey]
    values = {"api_keys": rows}
    key = ApiKey.API_VERSIONS
    return bytes(at_once(write_response(response_of(key), values, key, version, correlation)))


@pytest.mark.parametrize("seed", range(20))
async def test_what_is_no_response_is_its_error(seed: int) -> None:
    rng = random.Random(seed)

    def script(key: int, version: int, correlation: int, frame: bytes) -> bytes:
        if key == ApiKey.API_VERSIONS and version < 4:
            return offered(version, correlation)
        body = struct.pack(">i", correlation) + rng.randbytes(rng.choice((0, 1, 7, 40)))
        return struct.pack(">i", len(body)) + body

    broker = HostileBroker()
    broker.to_proxy = script
    async with serving(broker) as address:
        controllers = [parse_host_port(address)]
        async with ActiveController(Config(), controllers) as controller:
            for ask in (
                requests.heartbeat(controller, 7, 1, leave=True),
                requests.unregister_broker(controller, 7),
                requests.supported_features(controller),
            ):
                with suppress(ClusterError):
                    await ask
