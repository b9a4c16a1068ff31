"""What a worker keeps between tasks; in a process of its own, as it lasts."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

PROGRAM = """
import gc, importlib, sys
from zipimport import zipimporter
from fetchproxy.pipeline.worker_process import keep_what_is_loaded

def importers():
    return [p for p, f in sys.path_importer_cache.items() if isinstance(f, zipimporter)]

sys.path.insert(0, sys.argv[1])
import first
assert importers() == [sys.argv[1]] and gc.get_freeze_count() == 0
keep_what_is_loaded()
frozen = gc.get_freeze_count()
assert importers() == [] and frozen > 1000, frozen
importlib.invalidate_caches()
import second
keep_what_is_loaded()
assert gc.get_freeze_count() <= frozen, "what a later task leaves is not frozen"
print(first.NAME, second.NAME)
"""


def test_what_was_loaded_is_left_alone_and_zip_files_can_still_be_imported_from(
    tmp_path: Path,
) -> None:
    path = tmp_path / "modules.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("first.py", "NAME = 'first'")
        archive.writestr("second.py", "NAME = 'second'")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["first", "second"], done.stderr
