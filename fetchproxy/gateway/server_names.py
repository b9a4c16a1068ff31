"""One port for all brokers: which server name (SNI) stands for which of them. Pure."""

from __future__ import annotations

import re

from fetchproxy.config.sections import GatewayConfig


class ServerNames:
    """Names are compared without regard to case (RFC 6066, 3)."""

    def __init__(self, bootstrap: str, node_pattern: str) -> None:
        self._bootstrap = bootstrap.lower()
        self._node_pattern = node_pattern
        before, _, after = node_pattern.lower().partition("{node_id}")
        self._node = re.compile(rf"{re.escape(before)}(0|[1-9][0-9]{{0,9}}){re.escape(after)}")

    @classmethod
    def of(cls, config: GatewayConfig) -> ServerNames | None:
        """None: every broker has a port of its own."""
        if config.sni_bootstrap_host is None or config.sni_node_pattern is None:
            return None
        return cls(config.sni_bootstrap_host, config.sni_node_pattern)

    def host_of(self, node_id: int) -> str:
        """What clients are told to dial."""
        return self._node_pattern.format(node_id=node_id)

    def node_of(self, name: str | None) -> int | None:
        """None: the bootstrap, by its name, or by no name at all."""
        if name is None or name.lower() == self._bootstrap:
            return None
        found = self._node.fullmatch(name.lower())
        return None if found is None else int(found[1])

    def knows(self, name: str | None) -> bool:
        return (
            name is None
            or name.lower() == self._bootstrap
            or self._node.fullmatch(name.lower()) is not None
        )
