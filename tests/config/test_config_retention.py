"""`archive.retention_overrides`: a table in the file, JSON elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from fetchproxy.config.load import load_config, parse_assignment
from fetchproxy.config.values import RetentionOverride, parse_retention_overrides
from fetchproxy.errors import ConfigError

EXPECTED = (
    RetentionOverride("orders[.].*", remote_log_retention_ms=86_400_000),
    RetentionOverride(".*=x", remote_log_retention_bytes=-1, local_retention_ms=5),
)
JSON = (
    '{"orders[.].*": {"remote_log_retention_ms": 86400000},'
    ' ".*=x": {"remote_log_retention_bytes": -1, "local_retention_ms": 5}}'
)


def test_the_same_from_file_variable_and_command_line(tmp_path: Path) -> None:
    file = tmp_path / "fetchproxy.toml"
    file.write_text(
        "[archive.retention_overrides]\n"
        '"orders[.].*" = { remote_log_retention_ms = 86400000 }\n'
        '".*=x" = { remote_log_retention_bytes = -1, local_retention_ms = 5 }\n'
    )
    for config in (
        load_config(file, {}),
        load_config(None, {"FETCHPROXY_ARCHIVE_RETENTION_OVERRIDES": JSON}),
        load_config(None, {}, [parse_assignment(f"archive.retention_overrides={JSON}")]),
    ):
        text = config.archive.retention_overrides
        assert text is not None
        assert parse_retention_overrides(text) == EXPECTED


def test_an_empty_text_is_none() -> None:
    config = load_config(None, {}, [parse_assignment("archive.retention_overrides=")])
    assert config.archive.retention_overrides is None


@pytest.mark.parametrize(
    "text",
    [
        "orders=5",
        "[]",
        '{"orders": 5}',
        '{"orders": {}}',
        '{"or[ders": {"local_retention_ms": 5}}',
        '{"orders": {"retention_ms": 5}}',
        '{"orders": {"local_retention_ms": -2}}',
        '{"orders": {"local_retention_ms": "5"}}',
        '{"orders": {"local_retention_ms": true}}',
    ],
)
def test_overrides_that_are_no_table_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"archive.retention_overrides = .*expected a table"):
        load_config(None, {}, [parse_assignment(f"archive.retention_overrides={text}")])
