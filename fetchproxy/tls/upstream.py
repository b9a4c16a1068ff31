"""What a connection to a broker needs to speak TLS: the context of now, and the broker's name."""

from __future__ import annotations

from typing import Any

from fetchproxy.tls.reloading import ReloadingContext


class UpstreamTls:
    """`source` None: the brokers' listener has no TLS."""

    def __init__(self, source: ReloadingContext | None) -> None:
        self._source = source

    # Any: keywords of `create_connection`, which its own signature checks.
    def for_host(self, host: str) -> dict[str, Any]:
        """Keywords for `loop.create_connection`.

        The certificate has to be for `host`, which is the name that the cluster advertises or the
        bootstrap list says; the same name is sent as server name, unless it is an IP address.
        """
        if self._source is None:
            return {}
        return {"ssl": self._source.context, "server_hostname": host.rstrip(".")}
