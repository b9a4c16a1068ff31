"""What readers felt, from looks at the metrics."""

from __future__ import annotations

from pathlib import Path

from fetchproxy_command import fetchproxy
from proxy_process import ProxyProcess

from fetchproxy.cli.drill import DrillEffects, MetricSums, drill_effects, figures_in
from lab.mock_cluster import MockCluster

COMPLETED = "fetchproxy_purgatory_completed_total"
SCRAPE = """\
# HELP fetchproxy_purgatory_completed_total Waiting fetches that ended
# TYPE fetchproxy_purgatory_completed_total counter
fetchproxy_purgatory_completed_total{reason="data"} 3.0
fetchproxy_purgatory_completed_total{reason="deadline"} 2.0
# HELP fetchproxy_store_request_errors_total Failed
# TYPE fetchproxy_store_request_errors_total counter
fetchproxy_store_request_errors_total{operation="get",error="A"} 1.0
fetchproxy_store_request_errors_total{operation="get",error="B"} 4.0
"""


def test_series_are_summed_up_and_known_by_their_label() -> None:
    figures = figures_in(SCRAPE)
    assert figures[COMPLETED] == 5
    assert figures[COMPLETED + "{data}"] == 3
    assert figures["fetchproxy_store_request_errors_total"] == 5


def test_figures_of_workers_are_summed_up() -> None:
    of_workers = SCRAPE.replace("{", '{worker="0",') + SCRAPE.replace("{", '{worker="1",')
    figures = figures_in(of_workers)
    assert figures[COMPLETED] == 10
    assert figures[COMPLETED + "{data}"] == 6
    assert figures["fetchproxy_store_request_errors_total"] == 10


def look(at: float, data: int, deadline: int = 0, waiting: int = 0) -> tuple[float, MetricSums]:
    return at, {
        COMPLETED + "{data}": data,
        COMPLETED + "{deadline}": deadline,
        "fetchproxy_purgatory_entries": waiting,
    }


def test_the_longest_wait_is_the_longest_time_without_records_while_readers_waited() -> None:
    looks = [
        look(0, 10),
        look(1, 10),  # nobody reads
        look(2, 10, waiting=1),
        look(3, 10, deadline=1),
        look(4, 11, deadline=1),  # it got some
        look(5, 11, deadline=2),
        look(6, 11, deadline=2, waiting=2),
        look(7, 11, deadline=4),
        look(8, 13, deadline=4),
    ]
    summary = drill_effects(looks)
    assert (summary.longest_wait_s, summary.empty_responses) == (3, 4)


def test_without_readers_nothing_was_felt() -> None:
    assert drill_effects([look(0, 5), look(10, 5)]) == DrillEffects(0, 0, 0, 0, 0, 0, 0, 0)


def test_a_console_with_a_token_gets_it(tmp_path: Path) -> None:
    token, store = tmp_path / "token", tmp_path / "store"
    token.write_text("token-of-this-console")
    store.mkdir()
    settings = {"drills.enabled": "true", "console.token_file": token}
    with (
        MockCluster() as cluster,
        ProxyProcess(cluster.bootstrap, store.as_uri(), tmp_path, settings=settings) as proxy,
    ):
        command = ("drill", "store-slow", "--for", "1s")
        console = ("--console", f"127.0.0.1:{proxy.console_port}")
        refused = fetchproxy(*command, *console)
        assert refused.returncode == 2
        assert "give --token-file" in refused.stderr
        for token_options in (
            ("--token-file", str(token)),
            ("--set", f"console.token_file={token}"),
        ):
            result = fetchproxy(*command, *console, *token_options)
            assert result.returncode == 0, result.stderr
            assert "store-slow is over" in result.stdout
        assert len(proxy.logged("drill_began")) == 2
