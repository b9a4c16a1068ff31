"""A store's prices: an example in the code, the reader's own in a TOML file. No currency is known.

name = "our vendor, 2027"
per_1000_writes = 0.005      # PUT, POST and LIST
per_1000_reads = 0.0004      # GET
gb_month = 0.023             # stored
egress_gb = 0.0              # what proxies read from the store
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fetchproxy.errors import ConfigError


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


class _PriceFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = "your prices"
    per_1000_writes: float = Field(ge=0, allow_inf_nan=False)
    per_1000_reads: float = Field(ge=0, allow_inf_nan=False)
    gb_month: float = Field(ge=0, allow_inf_nan=False)
    egress_gb: float = Field(0.0, ge=0, allow_inf_nan=False)


def parse_prices(text: str, place: str) -> Prices:
    """Raises ConfigError that names `place`, the key and what was expected."""
    try:
        given: dict[str, Any] = tomllib.loads(text)
        return Prices(**_PriceFile.model_validate(given).model_dump())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{place}: not a TOML file: {error}") from error
    except ValidationError as error:
        faults = [
            f"{place}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigError(*faults) from error


def read_prices(file: Path) -> Prices:
    """Raises ConfigError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    return parse_prices(text, str(file))
