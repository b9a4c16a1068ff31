"""Sizes and durations: with a unit or as a number, in all places of the configuration alike."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.config.document import document
from fetchproxy.config.load import all_keys, load_config, parse_assignment
from fetchproxy.config.values import DURATION, SIZE, UnitForm, parse_retention_overrides
from fetchproxy.errors import ConfigError

MiB = 1024 * 1024
# What its number counts is last in a name, but for the bound behind it.
COUNTS_BYTES = re.compile(r"_bytes(_per_s)?(_max|_min)?$")
BOTH = pytest.mark.parametrize("form", [SIZE, DURATION])


def idle_max_ms(text: str) -> int:
    return load_config(
        None, {}, [parse_assignment(f"gateway.idle_max_ms={text}")]
    ).gateway.idle_max_ms


@pytest.mark.parametrize(
    ("text", "value"),
    [("500ms", 500), ("5s", 5_000), ("10m", 600_000), ("2h", 7_200_000), ("7d", 604_800_000),
     ("5 s", 5_000), (" 5s ", 5_000), ("1234", 1234)],
)  # fmt: skip
def test_durations(text: str, value: int) -> None:
    assert idle_max_ms(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024B", 1024), ("512KiB", 512 * 1024), ("64MiB", 64 * MiB), ("8GiB", 8 * 1024 * MiB),
     ("2TiB", 2 * 1024 * 1024 * MiB), ("65536", 65_536)],
)  # fmt: skip
def test_sizes_are_read_with_and_without_units(text: str, value: int) -> None:
    setting = parse_assignment(f"archive.remote_log_retention_bytes={text}")
    assert load_config(None, {}, [setting]).archive.remote_log_retention_bytes == value


def test_the_same_from_file_variable_and_command_line(tmp_path: Path) -> None:
    file = tmp_path / "fetchproxy.toml"
    file.write_text('[archive]\nsegment_bytes_max = "16MiB"\nsegment_age_max_ms = "1h"\n')
    environ = {
        "FETCHPROXY_ARCHIVE_SEGMENT_BYTES_MAX": "16MiB",
        "FETCHPROXY_ARCHIVE_SEGMENT_AGE_MAX_MS": "1h",
    }
    sets = ["archive.segment_bytes_max=16MiB", "archive.segment_age_max_ms=1h"]
    for config in (
        load_config(file, {}),
        load_config(None, environ),
        load_config(None, {}, [parse_assignment(text) for text in sets]),
    ):
        assert config.archive.segment_bytes_max == 16 * MiB
        assert config.archive.segment_age_max_ms == 3_600_000


@pytest.mark.parametrize("text", ["-1", "1d"])
def test_limits_of_retention_that_are_off_or_have_a_unit(text: str) -> None:
    setting = parse_assignment(f"archive.remote_log_retention_ms={text}")
    retention_ms = load_config(None, {}, [setting]).archive.remote_log_retention_ms
    assert retention_ms == {"-1": -1, "1d": 86_400_000}[text]


def test_overrides_take_units() -> None:
    (override,) = parse_retention_overrides(
        '{"t": {"local_retention_ms": "7d", "remote_log_retention_bytes": "64GiB"}}'
    )
    assert (override.local_retention_ms, override.remote_log_retention_bytes) == (
        7 * 86_400_000,
        64 * 1024 * MiB,
    )
    with pytest.raises(ValueError, match="a duration: 7d, 2h"):
        parse_retention_overrides('{"t": {"local_retention_ms": "7w"}}')


@pytest.mark.parametrize(
    "text", ["64MB", "64M", "64mib", "1.5GiB", "MiB", "-1MiB", "1e3KiB", "64MiB5"]
)
def test_other_sizes_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(None, {"FETCHPROXY_ARCHIVE_SPOOL_BYTES_MAX": text})
    assert str(error.value) == (
        f"archive.spool_bytes_max = '{text}' (FETCHPROXY_ARCHIVE_SPOOL_BYTES_MAX): "
        "expected a size: 8GiB, 64MiB, 512KiB or a number of bytes, at least 1MiB"
    )


def test_a_bound_is_said_with_its_unit(tmp_path: Path) -> None:
    file = tmp_path / "fetchproxy.toml"
    file.write_text('[archive]\nsegment_bytes_max = "9GiB"\n')
    with pytest.raises(ConfigError, match="at least 1KiB, at most 8GiB"):
        load_config(file, {})


@pytest.mark.parametrize("text", ["5", "5 weeks", "5S", "5min", "٥s"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a duration: 7d, 2h, 10m, 5s, 500ms or a number"):
        idle_max_ms(text)  # 5 ms is below its bound


def test_each_key_that_counts_bytes_or_milliseconds_takes_units() -> None:
    for key in all_keys().values():
        forms = [form for form in key.field.metadata if isinstance(form, UnitForm)]
        if COUNTS_BYTES.search(key.name):
            assert forms == [SIZE], key.dotted
        elif key.name.endswith("_ms"):
            assert forms == [DURATION], key.dotted
        else:
            assert not forms, key.dotted


def test_the_page_shows_defaults_in_units() -> None:
    page = document()
    assert "| `archive.segment_bytes_max` | `64MiB` |" in page
    assert "| `gateway.idle_max_ms` | `10m` |" in page
    assert "| `archive.remote_log_retention_ms` | `-1` |" in page


@BOTH
@given(value=st.integers(min_value=1, max_value=10**17))
def test_what_is_shown_is_read_again(form: UnitForm, value: int) -> None:
    assert form.read(form.show(value)) == value


@BOTH
@given(number=st.integers(min_value=0, max_value=10**12), data=st.data())
def test_each_unit_counts_what_it_says(form: UnitForm, number: int, data: st.DataObject) -> None:
    unit, size = data.draw(st.sampled_from(form.units))
    assert form.read(f"{number}{unit}") == number * size


@BOTH
@given(text=st.text(max_size=12))
def test_nonsense_is_refused(form: UnitForm, text: str) -> None:
    units = "|".join(unit for unit, _ in form.units)
    if re.fullmatch(rf"[0-9]+ ?({units})", text):
        return
    with suppress(ValueError):
        assert form.read(text) == text, "left to whoever judges numbers"
