from __future__ import annotations

from pathlib import Path

from prometheus_client import generate_latest

from fetchproxy.observability import metrics
from fetchproxy.observability.document import main, with_conditions
from fetchproxy.observability.health import MEANINGS, Kind

DOCS = Path(__file__).parents[2] / "docs/reference"


def test_the_table_on_disk_is_the_generated_one(tmp_path: Path) -> None:
    main([str(tmp_path / "metrics.md")])
    generated = (tmp_path / "metrics.md").read_text(encoding="utf-8")
    on_disk = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert on_disk == generated, "run python -m fetchproxy.observability.document"


def test_every_kind_of_condition_is_in_the_page_of_conditions() -> None:
    page = (DOCS / "conditions.md").read_text(encoding="utf-8")
    assert page == with_conditions(page), "run python -m fetchproxy.observability.document"
    for kind in Kind:
        assert f"| `{kind}` |" in page
        assert MEANINGS[kind].means
        assert MEANINGS[kind].remedy


def test_every_registered_metric_is_in_the_table() -> None:
    table = metrics.table()
    for family in metrics.REGISTRY.collect():
        assert f"`{family.name}" in table or family.name.startswith("process_")
        assert family.documentation


def test_kafkas_own_names_are_scraped_unchanged() -> None:
    metrics.REMOTE_FETCH_BYTES.labels("some-topic").inc(5)
    text = generate_latest(metrics.REGISTRY).decode()
    assert 'kafka_server_brokertopicmetrics_remotefetchbytes_total{topic="some-topic"} 5.0' in text
    assert "_created" not in text


def test_the_series_of_a_metric_are_those_of_its_samples() -> None:
    metrics.ARCHIVE_GAPS.labels("some-topic", "3")
    families = metrics.ARCHIVE_GAPS.collect()
    sampled = {tuple(one.labels.values()) for family in families for one in family.samples}
    assert ("some-topic", "3") in sampled
    assert set(metrics.series_of(metrics.ARCHIVE_GAPS)) == sampled
