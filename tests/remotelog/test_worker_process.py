"""What a worker keeps between tasks; in a process of its own, as it lasts."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from made_batches import Record, made_batch
from written_archive import WrittenArchive

PROGRAM = """
import gc, importlib, sys
from zipimport import zipimporter
from fetchproxy.remotelog.session import freeze_loaded_modules

def importers():
    return [p for p, f in sys.path_importer_cache.items() if isinstance(f, zipimporter)]

sys.path.insert(0, sys.argv[1])
import first
assert importers() == [sys.argv[1]] and gc.get_freeze_count() == 0
freeze_loaded_modules()
frozen = gc.get_freeze_count()
assert importers() == [] and frozen > 1000, frozen
importlib.invalidate_caches()
import second
freeze_loaded_modules()
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
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=False
    )
    assert result.stdout.split() == ["first", "second"], result.stderr


HEAPS = """
import ctypes, sys, threading
from fetchproxy.remotelog.session import share_one_heap

if sys.argv[1] == "one":
    share_one_heap()
together = threading.Barrier(4)
malloc = ctypes.CDLL(None).malloc

def use() -> None:
    together.wait()
    for _ in range(1000):
        malloc(1000)
    together.wait()

threads = [threading.Thread(target=use) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
ctypes.CDLL(None).malloc_stats()
"""


def heaps(how: str) -> int:
    result = subprocess.run(
        [sys.executable, "-c", HEAPS, how], capture_output=True, text=True, check=True
    )
    return result.stderr.count("Arena ")


def test_threads_of_a_worker_share_one_heap() -> None:
    assert heaps("many") > 1, "this C library has one heap anyway: the test shows nothing"
    assert heaps("one") == 1


READS = """
import sys
from fetchproxy.remotelog.archive_reading import plan_input
from fetchproxy.remotelog.options import parse_options
from fetchproxy.remotelog.planning import plan_tasks
from fetchproxy.remotelog.task_reader import read_task

options = parse_options({"store": sys.argv[1], "topics": "orders"})
tasks = plan_tasks(plan_input(options), partition_bytes_max=1 << 20)
rows = sum(batch.num_rows for task in tasks for batch in read_task(options, task, ["value"]))
loaded = {name.partition(".")[0] for name in sys.modules}
print(rows, *sorted(loaded & {"aiobotocore", "aiohttp", "pandas"}))
print(*sorted(name for name in sys.modules if name in ("pyarrow.dataset", "pyarrow.parquet")))
"""


def test_who_reads_files_loads_no_client_of_another_store(tmp_path: Path) -> None:
    """Each worker and each planner would take their memory."""
    archive = WrittenArchive(tmp_path / "archive")
    archive.add([made_batch(0, [Record()] * 10)])
    result = subprocess.run(
        [sys.executable, "-c", READS, archive.url], capture_output=True, text=True, check=False
    )
    assert result.stdout.split() == ["10"], result.stdout + result.stderr
