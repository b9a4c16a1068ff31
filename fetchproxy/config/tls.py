"""The section `tls` of the configuration. Declares keys and nothing else."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fetchproxy.config.section import Section


class TlsConfig(Section):
    """What TLS towards clients and towards brokers have in common."""

    protocol_min: Literal["TLSv1.2", "TLSv1.3"] = Field(
        "TLSv1.2", description="older versions are broken (RFC 8996)"
    )
    reload_interval_ms: int = Field(
        10_000,
        description="between two looks at the files of certificates, keys and authorities; changed "
        "ones are used for new connections",
        ge=100,
    )
    expiry_warning_ms: int = Field(
        14 * 24 * 3_600_000,
        description="a certificate with less time left is warned of once a day, and once it has "
        "expired",
        ge=0,
    )
