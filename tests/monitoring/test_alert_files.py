"""Rules, Grafana's alerts and the page are made of one file, and each alert has a test."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from alert_play import Timeline, run_promtool

from fetchproxy.observability import metrics
from fetchproxy.observability.health import Kind
from lab import monitoring
from lab.dashboards import DASHBOARDS, Dashboard, as_json
from lab.monitoring import Alert, alerts

ALERTS = {one.name: one for one in alerts()}
# Of the Prometheus client and of Prometheus itself.
OTHERS = {"up", "process_start_time_seconds", "process_max_fds", "process_open_fds"}
OTHERS |= {"process_resident_memory_bytes", "process_cpu_seconds_total"}

NAME = r"\b(?:fetchproxy|kafka|process)_[a-z_0-9]+|\bup\b"


def known_names() -> set[str]:
    names = set(OTHERS)
    for family in metrics.BY_TOPIC.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        names |= {family.name + suffix for suffix in suffixes.get(family.type, [""])}
    return names


def names_in(query: str) -> set[str]:
    """The names of metrics in a query: nothing else of it looks like one of them."""
    without_texts = re.sub(r'"[^"]*"', '""', query)
    return set(re.findall(NAME, without_texts))


MADE = monitoring.made()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_the_file_on_disk_is_the_generated_one(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == MADE[path], "run python -m lab.monitoring"


@pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)
def test_an_alert_names_only_metrics_that_exist_and_says_what_to_do(alert: Alert) -> None:
    assert names_in(alert.expr)
    assert names_in(alert.expr) <= known_names()
    assert names_in(alert.culprit) <= known_names()
    assert alert.severity in monitoring.SEVERITIES
    for text in (alert.means, alert.users, alert.emergency, alert.remedy):
        assert text.endswith(".")
    assert alert.summary.endswith(".")


def test_each_alert_has_one_section_of_its_name() -> None:
    page = monitoring.PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == list(ALERTS)


def test_each_alert_fires_in_a_test_and_no_other() -> None:
    """A test that calls `assert_fires` with its name has caused it, or it has failed."""
    fired = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "assert_fires":
                fired |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    assert fired == set(ALERTS)


def in_prometheus(query: str) -> str:
    return query.replace("$__rate_interval", "5m")


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_a_dashboard_names_only_metrics_that_exist(dashboard: Dashboard) -> None:
    queries = list(dashboard.queries())
    assert queries
    for query in queries:
        assert names_in(query)
        assert names_in(query) <= known_names(), query
        assert query.count('job=~"$job"') == len(re.findall(NAME, query)), query


def test_panels_of_a_dashboard_lie_beside_each_other() -> None:
    for dashboard in DASHBOARDS:
        taken: set[tuple[int, int]] = set()
        for panel in as_json(dashboard)["panels"]:
            place = panel["gridPos"]
            cells = {
                (place["x"] + x, place["y"] + y)
                for x in range(place["w"])
                for y in range(place["h"])
            }
            assert not cells & taken, panel["title"]
            assert place["x"] + place["w"] <= 24
            taken |= cells


def test_kinds_with_an_alert_of_their_own_are_real() -> None:
    [left_out] = re.findall(r'kind!~"([^"]*)"', ALERTS["FetchproxyCondition"].expr)
    assert set(left_out.split("|")) <= {str(kind) for kind in Kind}


def test_promtool_accepts_rules_grafanas_queries_and_those_for_the_culprit(
    promtool: Path, tmp_path: Path
) -> None:
    grafana = yaml.safe_load(monitoring.GRAFANA.read_text(encoding="utf-8"))
    queries = [
        rule["data"][0]["model"]["expr"] for group in grafana["groups"] for rule in group["rules"]
    ]
    queries += [one.culprit for one in ALERTS.values()]
    queries += [in_prometheus(query) for one in DASHBOARDS for query in one.queries()]
    rules = [{"record": f"query:{number}", "expr": one} for number, one in enumerate(queries)]
    others = tmp_path / "queries.yaml"
    others.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    for path in (monitoring.RULES, others):
        result = subprocess.run(
            [promtool, "check", "rules", path], capture_output=True, check=False
        )
        assert result.returncode == 0, result.stdout.decode() + result.stderr.decode()


def test_promtool_accepts_the_configuration_on_the_page(promtool: Path, tmp_path: Path) -> None:
    page = (monitoring.RULES.parents[2] / "docs/operate/monitor.md").read_text("utf-8")
    (block,) = re.findall(r"^```yaml\n(rule_files.*?)^```$", page, re.MULTILINE | re.DOTALL)
    place = "/etc/prometheus/fetchproxy/prometheus-rules.yaml"
    assert place in block
    file = tmp_path / "prometheus.yml"
    file.write_text(block.replace(place, str(monitoring.RULES)), encoding="utf-8")
    result = subprocess.run([promtool, "check", "config", file], capture_output=True, check=False)
    assert result.returncode == 0, result.stdout.decode() + result.stderr.decode()


@pytest.mark.usefixtures("promtool")
def test_the_first_error_counts_although_it_makes_its_series() -> None:
    """`increase` alone does not see it; and it is forgotten after a while."""
    series = 'fetchproxy_log_messages_total{level="error",event="store_failing"}'
    played = Timeline(60, {series: [None] * 20 + [1.0] * 40})
    firing = 'count(ALERTS{alertname="FetchproxyLogErrors",alertstate="firing"}) > bool 0'
    yes = [{"labels": "{}", "value": 1}]
    run_promtool(
        played,
        [
            {"expr": firing, "eval_time": "19m", "exp_samples": []},
            {"expr": firing, "eval_time": "20m", "exp_samples": yes},
            {"expr": firing, "eval_time": "34m", "exp_samples": yes},
            {"expr": firing, "eval_time": "50m", "exp_samples": []},
        ],
    )


@pytest.mark.usefixtures("promtool")
@pytest.mark.parametrize("was_there", [True, False])
def test_only_a_process_that_was_there_is_missed(was_there: bool) -> None:
    """Other targets of the same Prometheus are none of these alerts' business."""
    up = 'up{job="any",instance="a"}'
    played = Timeline(30, {up: [1.0] * 10 + [0.0] * 20})
    if was_there:
        info = 'fetchproxy_build_info{job="any",instance="a",version="1",python="3"}'
        played.series[info] = [1.0] * 10 + [None] * 20
    expected = [{"labels": "{}", "value": 1}] if was_there else []
    firing = 'count(ALERTS{alertname="FetchproxyDown",alertstate="firing"})'
    run_promtool(played, [{"expr": firing, "eval_time": "25m", "exp_samples": expected}])
