"""`fetchproxy sizing` as a user types it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from fetchproxy_command import fetchproxy, output_of

from fetchproxy.sizing.coefficients import EXAMPLE_PRICES
from fetchproxy.sizing.document import EXAMPLE, EXAMPLE_COMMAND
from fetchproxy.sizing.estimate import estimate
from fetchproxy.sizing.table import rows

WORDS = EXAMPLE_COMMAND.split()[1:]


def test_the_pages_command_prints_the_pages_rows() -> None:
    lines = output_of(*WORDS).splitlines()
    for (name, value), line in zip(
        rows(estimate(EXAMPLE, EXAMPLE_PRICES)), lines[:-1], strict=True
    ):
        assert line.split() == f"{name} {value}".split()
    assert lines[-1] == f"Prices: {EXAMPLE_PRICES.name}."


def test_json_has_load_prices_and_every_figure() -> None:
    figures = json.loads(output_of(*WORDS, "--json"))
    assert figures.pop("load") == asdict(EXAMPLE)
    assert figures.pop("prices") == asdict(EXAMPLE_PRICES)
    assert figures == asdict(estimate(EXAMPLE, EXAMPLE_PRICES))


def test_segments_metadata_and_retention_are_those_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "fetchproxy.toml"
    file.write_text('[archive]\nsegment_bytes_max = "256MiB"\nremote_log_retention_ms = "30d"\n')
    command = ("sizing", "--mb-per-s", "1", "--partitions", "2", "--config", str(file), "--json")
    load = json.loads(output_of(*command, "--set", "metadata.manager=topic"))["load"]
    assert (load["segment_bytes"], load["manager"]) == (256 * 1024 * 1024, "topic")
    assert load["retention_days"] == 30
    assert json.loads(output_of(*command, "--days", "7"))["load"]["retention_days"] == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "prices.put_usd_per_1000=-1"], "prices.put_usd_per_1000"),
        (["--set", "prices.put_usd_per_1000=inf"], "prices.put_usd_per_1000"),
        (["--partitions", "0"], "greater than or equal to 1"),
        (["--mb-per-s", "nan"], "greater than or equal to 0"),
        (["--days", "inf"], "retention_days = inf: expected a number"),
    ],
)
def test_what_cannot_be_used_is_named(arguments: list[str], words: str) -> None:
    result = fetchproxy("sizing", "--mb-per-s", "1", "--partitions", "1", *arguments)
    assert result.returncode == 2
    assert words in " ".join(result.stderr.split())
