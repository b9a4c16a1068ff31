"""Ten tasks of an operator: each page is two clicks from the first, and has what the task needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compose_file import ROOT

INDEX = ROOT / "docs" / "index.md"
# The task, its page, and what has to be done there.
TASKS = (
    (
        "deploy two proxies behind HAProxy",
        "deploy/load-balancer.md",
        ("node_map", "check port 8080"),
    ),
    ("addresses behind a load balancer", "deploy/addresses.md", ("gateway.node_map",)),
    ("size 200 MB/s", "deploy/sizing.md", ("--mb-per-s 200", "cores", "spool of an archiver")),
    ("keep a year", "operate/retention.md", ('remote_log_retention_ms = "365d"',)),
    ("rotate a certificate", "security/tls.md", ("Replace the files", "tls_files_reloaded")),
    ("a consumer is stuck", "troubleshoot/index.md", ("fetchproxy_store_up", "readers_held")),
    ("restore a lost bucket", "recover/bucket.md", ("remote-log-layout", "--create")),
    ("upgrade", "operate/upgrade.md", ("Roll back", "archivers")),
    ("leave", "leave.md", ("backfill",)),
    ("read a cost estimate", "deploy/sizing.md", ("[prices]", "total cost a month")),
    ("what a log event means", "reference/log-events.md", ("store_failing", "archive_gap")),
)


def linked_from(page: Path) -> set[Path]:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text("utf-8"))
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


@pytest.mark.parametrize(("task", "page", "words"), TASKS, ids=[task for task, _, _ in TASKS])
def test_a_task_is_two_clicks_away_and_its_page_is_enough(
    task: str, page: str, words: tuple[str, ...]
) -> None:
    first = linked_from(INDEX)
    second = {
        linked_page for each in first if each.suffix == ".md" for linked_page in linked_from(each)
    }
    assert ROOT / "docs" / page in first | second, task
    text = (ROOT / "docs" / page).read_text("utf-8").lower()
    assert not [word for word in words if word.lower() not in text], task
