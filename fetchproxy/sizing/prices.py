"""A store's prices in US dollars: those of the configuration (`[prices]`), or an example."""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.config.schema import PricesConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    name: str
    per_1000_writes: float
    per_1000_reads: float
    gb_month: float
    egress_gb: float


EXAMPLE_PRICES = Prices(
    name="an example: Amazon S3 Standard, US East, public list of April 2024, in dollars",
    per_1000_writes=0.005,
    per_1000_reads=0.0004,
    gb_month=0.023,
    egress_gb=0.0,  # within a region
)


def prices_of(config: PricesConfig) -> Prices:
    """The example if the configuration has no price."""
    if config == PricesConfig():
        return EXAMPLE_PRICES
    return Prices(
        name="those of the configuration, in dollars",
        per_1000_writes=config.put_usd_per_1000,
        per_1000_reads=config.get_usd_per_1000,
        gb_month=config.storage_usd_per_gb_month,
        egress_gb=config.egress_usd_per_gb,
    )
