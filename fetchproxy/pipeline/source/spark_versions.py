"""What the installed PySpark lets a Python source do; it is asked, its version is not compared.

4.0 and 4.1 ask a stream only for its latest offset; from 4.2 on they say from where and how much.
"""

from __future__ import annotations

from typing import Any

import pyspark
from pyspark.sql.datasource import DataSourceReader

from fetchproxy.errors import ConfigError
from fetchproxy.pipeline.source.options import SourceOptions

try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:
    limits = None

ADMITS = limits is not None
PUSHES_FILTERS = hasattr(DataSourceReader, "pushFilters")


class _NoTrigger:
    """In place of the interface that this PySpark has not."""


# The base of a stream that ends with what was there when it began.
EndsWithWhatIsThere: Any = limits.SupportsTriggerAvailableNow if ADMITS else _NoTrigger


def check_stream(options: SourceOptions) -> None:
    """Raises ConfigError for limits that this PySpark would have a query end below of."""
    if options.trigger.given and not ADMITS:
        raise ConfigError(
            f"remotelog: {options.trigger.given[0]}: needs PySpark 4.2 or newer, this is "
            f"{pyspark.__version__}, which does not say that a query is to end with what is there "
            "(availableNow): with a limit it would end too early, and say nothing"
        )


def check_batch(options: SourceOptions) -> None:
    """Raises ConfigError."""
    if options.push_filters and not PUSHES_FILTERS:
        raise ConfigError(
            f"remotelog: pushFilters: needs PySpark 4.1 or newer, this is {pyspark.__version__}"
        )


def default_limit(options: SourceOptions) -> Any:
    """What Spark shows, and gives back where the query's trigger does not say "all"."""
    trigger = options.trigger
    if trigger.offsets_max:
        return limits.ReadMaxRows(trigger.offsets_max)
    if trigger.bytes_max:
        return limits.ReadMaxBytes(trigger.bytes_max)
    if trigger.offsets_min:
        return limits.ReadMinRows(trigger.offsets_min)
    return limits.ReadAllAvailable()


def is_limited(limit: Any) -> bool:
    """Whether Spark leaves it to the options how much a batch has."""
    return ADMITS and limit is not None and not isinstance(limit, limits.ReadAllAvailable)
