"""The folder that a backfill to Parquet writes, and one range of records as a file in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from fetchproxy.errors import ConfigError
from fetchproxy.jobs.backfill_plan import BackfillRange, Plan
from fetchproxy.remotelog.task_reader import PassedOver

#     topic=<topic>/date=<yyyy-mm-dd>/<topic>-<partition>-<first>-<last>.parquet
#     _backfill/plan-<number>.json    the ranges that were not done when it was made
#     _backfill/done/<range>.json     a range's manifest: the files that hold it, all of them there
#     _backfill/parts/                files that are being written
#
# A range is there when its manifest is. One that lacks what was passed over is written again by
# the next run; until then it stands. Readers of Parquet pass over names that begin with `_`.
# Files get their names when they are whole; on S3, which knows no renaming, an object is there
# only when it is whole.

_SIDE = "_backfill"
_MARK = "plan-"


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """`place`: a path or a URI of pyarrow's (file, s3, gs, hdfs). Raises OSError throughout."""

    place: str

    @property
    def fs(self) -> Any:
        return _opened(self.place)[0]

    def path(self, name: str) -> str:
        return f"{_opened(self.place)[1]}/{name}"

    @property
    def renames(self) -> bool:
        return bool(self.fs.type_name != "s3")

    def part(self, name: str) -> str:
        """Where a file that becomes `name` is written: a path of nobody else's."""
        if not self.renames:
            return self._made(self.path(name))
        base = name.rpartition("/")[2]
        return self._made(self.path(f"{_SIDE}/parts/{base}.{uuid4().hex}"))

    def publish(self, part: str, name: str) -> None:
        """Whoever does it last wins; both have written the same."""
        path = self._made(self.path(name))
        if part == path:
            return
        if self.fs.type_name not in ("local", "subtree"):
            self.discard(path)  # not every file system replaces
        self.fs.move(part, path)

    def discard(self, path: str) -> None:
        """If it is there."""
        if self.fs.get_file_info(path).type != pafs.FileType.NotFound:
            self.fs.delete_file(path)

    # --- what is planned and what is done ---
    def last_plan(self) -> tuple[int, Plan | None]:
        """(its number, the plan); 0: there is none. Raises ConfigError."""
        numbers = [
            int(name.removeprefix(_MARK).removesuffix(".json"))
            for name in self._names(_SIDE)
            if name.startswith(_MARK) and name.endswith(".json")
        ]
        if not numbers:
            return 0, None
        name = _plan_name(max(numbers))
        return max(numbers), Plan.decode(self._read(name), self.path(name))

    def add_plan(self, number: int, plan: Plan) -> Plan:
        """The plan of that number: this one, or that of another run which was faster."""
        name = _plan_name(number)
        part = self._made(self.path(f"{_SIDE}/parts/{_MARK}{number}.{uuid4().hex}"))
        self._write(part, plan.encode())
        path = self._made(self.path(name))
        if self.fs.type_name == "local":
            try:
                os.link(part, path)
            except FileExistsError:
                pass
            finally:
                self.discard(part)
        elif self.fs.get_file_info(path).type == pafs.FileType.NotFound:
            self.fs.move(part, path)
        else:
            self.discard(part)
        return Plan.decode(self._read(name), path)

    def manifests(self) -> list[Manifest]:
        """Of all ranges that have one."""
        names = (name.removesuffix(".json") for name in self._names(f"{_SIDE}/done"))
        return [manifest for name in names if (manifest := self.manifest(name)) is not None]

    def manifest(self, name: str) -> Manifest | None:
        """Of the range of that name."""
        path = f"{_SIDE}/done/{name}.json"
        if self.fs.get_file_info(self.path(path)).type == pafs.FileType.NotFound:
            return None
        return Manifest.decode(self._read(path))

    def put_manifest(self, manifest: Manifest) -> None:
        name = f"{_SIDE}/done/{manifest.range.name}.json"
        part = self.part(name)
        self._write(part, manifest.encode())
        self.publish(part, name)

    def remove_parts(self) -> None:
        """What killed tasks have left; whoever still writes one fails, and finds its range done."""
        path = self.path(f"{_SIDE}/parts")
        if self.fs.get_file_info(path).type == pafs.FileType.Directory:
            self.fs.delete_dir(path)

    def _read(self, name: str) -> bytes:
        with self.fs.open_input_stream(self.path(name)) as file:
            return bytes(file.readall())

    def _write(self, path: str, content: bytes) -> None:
        with self.fs.open_output_stream(path) as file:
            file.write(content)

    def _made(self, path: str) -> str:
        self.fs.create_dir(path.rpartition("/")[0], recursive=True)
        return path

    def _names(self, folder: str) -> list[str]:
        selector = pafs.FileSelector(self.path(folder), allow_not_found=True)
        return [info.base_name for info in self.fs.get_file_info(selector)]


@cache
def _opened(place: str) -> tuple[Any, str]:
    """By each process: file systems do not go over the pipe."""
    uri = place if "://" in place else Path(place).absolute().as_uri()
    try:
        fs, path = pafs.FileSystem.from_uri(uri)
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"output {place!r}: {error}") from None
    return fs, path.rstrip("/")


def _plan_name(number: int) -> str:
    return f"{_SIDE}/{_MARK}{number:06d}.json"


# One range's records as Parquet, a file for each date; the same records give the same files.
# Memory: `BUFFERED_BYTES_MAX` of rows that are not written yet, and what Parquet keeps of each
# open file.

DAY_US = 86_400_000_000
# A row group: large enough to scan well, small enough for several tasks a host.
BUFFERED_BYTES_MAX = 24 * 1024 * 1024
# Records are about in the order of time; of more dates than these the one written to longest ago is
# closed, and a later record of it begins another file.
OPEN_DATES_MAX = 16
# Columns with a dictionary: of the others one is begun for nothing, a fifth of the writing.
_REPEATING = ["key", "partition", "timestampType"]
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"  # how Hive and Spark name what has none


@dataclass(frozen=True, slots=True)
class WrittenFile:
    path: str  # below the output
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """`rows` may be fewer than offsets: markers and aborted batches are no rows.

    `passed_over`: records at most that are not there, as something was damaged or missing;
    `faults`: how many batches and objects were.
    """

    range: BackfillRange
    rows: int
    files: tuple[WrittenFile, ...]
    passed_over: int = 0
    faults: int = 0

    @property
    def is_whole(self) -> bool:
        return not self.faults

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def encode(self) -> bytes:
        files = [asdict(file) for file in self.files]
        document = {"range": self.range, "rows": self.rows, "files": files}
        document |= {"passed_over": self.passed_over, "faults": self.faults}
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Manifest:
        """Raises ValueError, KeyError or TypeError."""
        document = json.loads(raw)
        files = tuple(WrittenFile(**file) for file in document["files"])
        passed_over = document.get("passed_over", 0), document.get("faults", 0)
        return cls(BackfillRange(*document["range"]), document["rows"], files, *passed_over)


@dataclass(slots=True)
class _Open:
    name: str
    part: str
    writer: Any
    waiting: list[Any] = field(default_factory=list)
    waiting_bytes: int = 0
    rows: int = 0
    size_bytes: int = 0


def write_range(
    folder: OutputFolder,
    wanted: BackfillRange,
    batches: Iterable[Any],
    compression: str,
    passed_over: PassedOver,
    before: Manifest | None = None,
) -> Manifest:
    """`batches`: pyarrow.RecordBatches with a `topic` and a `timestamp` column. `passed_over` is
    counted up by whoever makes them. `before`: what was written of the range, and lacks something.

    Nothing is to be seen of it until all of it is there. Raises OSError, and as `batches`.
    """
    files = _DatedFiles(folder, wanted, compression)
    try:
        for batch in batches:
            files.add(batch)
        written = files.close()
    except BaseException:
        files.discard()
        raise
    # Those of one name are replaced by now. Killed here, the next run does the range again.
    replaced = {file.path for file in written}
    for file in before.files if before is not None else ():
        if file.path not in replaced:
            folder.discard(folder.path(file.path))
    manifest = Manifest(
        wanted,
        sum(file.rows for file in written),
        tuple(written),
        passed_over.records,
        passed_over.faults,
    )
    folder.put_manifest(manifest)
    return manifest


@dataclass(slots=True)
class _DatedFiles:
    folder: OutputFolder
    wanted: BackfillRange
    compression: str
    # By day, the one written to longest ago first.
    _open: dict[int, _Open] = field(default_factory=dict)
    _closed: list[_Open] = field(default_factory=list)
    _begun: dict[int, int] = field(default_factory=dict)  # files of each day
    _waiting_bytes: int = 0

    def add(self, batch: Any) -> None:
        for day, rows in by_day(batch):
            file = self._file(day, rows.schema)
            file.waiting.append(rows)
            file.waiting_bytes += rows.nbytes
            self._waiting_bytes += rows.nbytes
        while self._waiting_bytes > BUFFERED_BYTES_MAX:
            self._flush(max(self._open.values(), key=lambda file: file.waiting_bytes))

    def close(self) -> list[WrittenFile]:
        """By name, each where readers look."""
        for day in list(self._open):
            self._close(day)
        for file in self._closed:
            self.folder.publish(file.part, file.name)
        written = [WrittenFile(file.name, file.rows, file.size_bytes) for file in self._closed]
        return sorted(written, key=lambda file: file.path)

    def discard(self) -> None:
        for file in (*self._open.values(), *self._closed):
            if file.writer is not None:
                file.writer.close()
            if self.folder.renames:
                self.folder.discard(file.part)

    def _file(self, day: int, schema: Any) -> _Open:
        file = self._open.pop(day, None)
        if file is None:
            if len(self._open) >= OPEN_DATES_MAX:
                self._close(next(iter(self._open)))
            file = self._begin(day, schema)
        self._open[day] = file
        return file

    def _begin(self, day: int, schema: Any) -> _Open:
        number = self._begun.get(day, 0)
        self._begun[day] = number + 1
        suffix = f"-{number + 1}" if number else ""
        name = f"topic={self.wanted.topic}/date={day_name(day)}/{self.wanted.name}{suffix}.parquet"
        part = self.folder.part(name)
        writer = pq.ParquetWriter(
            part,
            schema,
            filesystem=self.folder.fs,
            compression=self.compression,
            use_dictionary=_REPEATING,
        )
        return _Open(name, part, writer)

    def _flush(self, file: _Open) -> None:
        if file.waiting:
            table = pa.Table.from_batches(file.waiting)
            file.writer.write_table(table, row_group_size=table.num_rows)
            file.rows += table.num_rows
            self._waiting_bytes -= file.waiting_bytes
            file.waiting, file.waiting_bytes = [], 0

    def _close(self, day: int) -> None:
        file = self._open.pop(day)
        self._flush(file)
        writer, file.writer = file.writer, None
        writer.close()
        file.size_bytes = self.folder.fs.get_file_info(file.part).size
        self._closed.append(file)


def by_day(batch: Any) -> Iterator[tuple[int, Any]]:
    """(days since 1970, its rows without the column `topic`), rising."""
    rows = batch.drop_columns(["topic"])
    if not rows.num_rows:
        return
    times = rows.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
    days = np.floor_divide(times, DAY_US)
    first, last = int(days.min()), int(days.max())
    if first == last:
        yield first, rows
        return
    for day in np.unique(days):
        yield int(day), rows.filter(pa.array(days == day))


def day_name(day: int) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(days=day)).isoformat()
    except OverflowError:
        return _NO_DATE  # no calendar has it: timestamps are what producers say
