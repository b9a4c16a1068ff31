"""docs/spark/index.md names the packages that an executor needs, and no more."""

from __future__ import annotations

import re
import subprocess
import sys

from compose_file import ROOT

# Their modules are named as they are in `import`.
MODULES = {"prometheus-client": "prometheus_client", "kafka-python": "kafka"}
READS = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None  # as if it were not installed
import fetchproxy.remotelog.task_reader, fetchproxy.remotelog.planning
import fetchproxy.storage.stores.registry, fetchproxy.storage.stores.s3
print(*(name for name, module in sys.modules.items() if module is not None))
"""


def test_an_executor_needs_what_the_page_names() -> None:
    page = (ROOT / "docs" / "spark/index.md").read_text(encoding="utf-8")
    row = re.search(r"packages that the store needs: ([^|]+) \|", page)
    assert row is not None
    named = row[1].split(", ")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    dependencies = re.search(r"^dependencies = \[(.*?)^\]", project, re.M | re.S)
    assert dependencies is not None
    dependencies_named = set(re.findall(r'"([a-z-]+)', dependencies[1]))
    assert set(named) <= dependencies_named
    others = [MODULES.get(name, name) for name in dependencies_named - set(named)]
    result = subprocess.run([sys.executable, "-c", READS, *others], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    assert [name for name in named if MODULES.get(name, name) not in loaded] == []
