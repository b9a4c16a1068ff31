"""What contradicts archive-only mode is said, with the place where it was set."""

from __future__ import annotations

import pytest

from fetchproxy.config.load import Setting, load_config
from fetchproxy.errors import ConfigError

ENABLED = Setting("archive_only.enabled", "true", "--archive-only")


@pytest.mark.parametrize(
    ("key", "value"),
    [("cluster.bootstrap", "localhost:9092"), ("archive.topics", "orders"),
     ("gateway.node_map", "1=9301")],
)  # fmt: skip
def test_contradictions_are_errors(key: str, value: str) -> None:
    other = Setting(key, value, "--somewhere")
    with pytest.raises(ConfigError, match=r"--somewhere.*--archive-only"):
        load_config(None, {}, [ENABLED, other])
    load_config(None, {}, [other])


def test_it_needs_nothing_else() -> None:
    assert load_config(None, {}, [ENABLED]).archive_only.enabled
