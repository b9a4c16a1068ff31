"""The output folder of a backfill to Parquet, and the writer of one range's files.

    topic_folder=<topic>/date=<yyyy-mm-dd>/<topic>-<partition>-<first>-<last>.parquet
                                    (`file_names` says for which topics the name is another)
    _backfill/plan-<number>.json    the ranges that were not done when the plan was made
    _backfill/done/<range>.json     a range's manifest: the names of its files, all complete
    _backfill/parts/                files that are being written

A range is done when its manifest exists. If records were passed over, the next run writes the range
again; until then its files stay. Parquet readers ignore names that begin with `_`. A file gets its
name when it is complete. S3 cannot rename, but an S3 object appears only when it is complete.

The topic is a column of each file. Readers guess the type of a value that only a folder's name has
(007 and 2024-01-01 are legal topics) and take one name for null, so `topic_folder` serves only to
leave out files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
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
from fetchproxy.remotelog.file_names import file_stem
from fetchproxy.remotelog.task_reader import SkippedRecords

_SIDE = "_backfill"
_MARK = "plan-"
DAY_US = 86_400_000_000
# A row group is large enough to scan well, and small enough for several tasks on a host.
BUFFERED_BYTES_MAX = 24 * 1024 * 1024
# Records are roughly in time order. Above this number of open dates, the file of the date written
# least recently is closed. A later record of that date begins another file.
OPEN_DATES_MAX = 16
# Larger rows are one record, in a file of its own. Parquet's writer has it three times, and once
# more packed (tests/jobs/test_memory_of_records.py): its rows, their values, and their page.
# Version 2 of the page is the packed values, so a record that packs to half takes no more.
_LARGE_PAGE_VERSION = "2.0"
_PACKED_SHARE_MAX = 0.5
# Packed by itself, to see how large all will be.
_PIECE_BYTES = 1024 * 1024
# Columns with a dictionary. For other columns a dictionary is useless and takes a fifth of the
# writing time.
_REPEATING = ["key", "topic", "partition", "timestampType"]
# Of other columns Parquet's writer keeps the least and the greatest value, in six copies of each.
_WITH_STATISTICS = ["topic", "partition", "offset", "timestamp", "timestampType"]
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"  # Hive's and Spark's name for a missing date
# Days since 1970 that `date` can name. All others, and no timestamp, are one day without a name.
_DAY_MIN, _DAY_MAX = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
_NO_DAY = _DAY_MAX + 1


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """`place`: a path or a pyarrow URI (file, s3, gs, hdfs). All methods may raise OSError."""

    place: str

    @property
    def fs(self) -> Any:
        return _file_system_of(self.place)[0]

    def path(self, name: str) -> str:
        return f"{_file_system_of(self.place)[1]}/{name}"

    @property
    def renames(self) -> bool:
        return bool(self.fs.type_name != "s3")

    def part(self, name: str) -> str:
        """The path to write the file `name` at until `publish`. No other task uses the path."""
        if not self.renames:
            return self._make_folder(self.path(name))
        base = name.rpartition("/")[2]
        return self._make_folder(self.path(f"{_SIDE}/parts/{base}.{uuid4().hex}"))

    def publish(self, part: str, name: str) -> None:
        """The last of several tasks wins; all have written the same content."""
        path = self._make_folder(self.path(name))
        if part == path:
            return
        if self.fs.type_name not in ("local", "subtree"):
            self.discard(path)  # not every file system replaces a file
        self.fs.move(part, path)

    def discard(self, path: str) -> None:
        """Delete the file if it exists."""
        if self.fs.get_file_info(path).type != pafs.FileType.NotFound:
            self.fs.delete_file(path)

    # --- plans and manifests ---
    def last_plan(self) -> tuple[int, Plan | None]:
        """The last plan's number and the plan. (0, None): there is no plan. Raises ConfigError."""
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
        """The stored plan of that number: `plan`, unless another run stored its plan first."""
        name = _plan_name(number)
        part = self._make_folder(self.path(f"{_SIDE}/parts/{_MARK}{number}.{uuid4().hex}"))
        self._write(part, plan.encode())
        path = self._make_folder(self.path(name))
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
        """The manifests of all ranges."""
        names = (name.removesuffix(".json") for name in self._names(f"{_SIDE}/done"))
        return [manifest for name in names if (manifest := self.manifest(name)) is not None]

    def manifest(self, name: str) -> Manifest | None:
        """The manifest of the range `name`. None: not written yet."""
        path = f"{_SIDE}/done/{name}.json"
        if self.fs.get_file_info(self.path(path)).type == pafs.FileType.NotFound:
            return None
        return Manifest.decode(self._read(path), self.path(path))

    def put_manifest(self, manifest: Manifest) -> None:
        name = f"{_SIDE}/done/{manifest.range.name}.json"
        part = self.part(name)
        self._write(part, manifest.encode())
        self.publish(part, name)

    def remove_parts(self) -> None:
        """Delete leftovers of killed tasks. A task still writing one fails: its range is done."""
        path = self.path(f"{_SIDE}/parts")
        if self.fs.get_file_info(path).type == pafs.FileType.Directory:
            self.fs.delete_dir(path)

    def _read(self, name: str) -> bytes:
        with self.fs.open_input_stream(self.path(name)) as file:
            return bytes(file.readall())

    def _write(self, path: str, content: bytes) -> None:
        with self.fs.open_output_stream(path) as file:
            file.write(content)

    def _make_folder(self, path: str) -> str:
        self.fs.create_dir(path.rpartition("/")[0], recursive=True)
        return path

    def _names(self, folder: str) -> list[str]:
        selector = pafs.FileSelector(self.path(folder), allow_not_found=True)
        return [info.base_name for info in self.fs.get_file_info(selector)]


@cache
def _file_system_of(url: str) -> tuple[Any, str]:
    """Opened in each process, as a file system object cannot be pickled."""
    uri = url if "://" in url else Path(url).absolute().as_uri()
    try:
        fs, path = pafs.FileSystem.from_uri(uri)
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"output {url!r}: {error}") from None
    return fs, path.rstrip("/")


def _plan_name(number: int) -> str:
    return f"{_SIDE}/{_MARK}{number:06d}.json"


# One range's records as Parquet, a file for each date. The same records give the same files.
# Memory: `BUFFERED_BYTES_MAX` of rows that are not written yet, and Parquet's own state of each
# open file.


@dataclass(frozen=True, slots=True)
class WrittenFile:
    path: str  # relative to the output folder
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """`rows` may be fewer than offsets: markers and aborted batches are not rows.

    `skipped_records`: the maximum number of records missing because of damage. `faults`: the number
    of damaged or missing batches and objects. `too_large`: first and last offsets of batches that
    were left out because they are too large to unpack.
    """

    range: BackfillRange
    rows: int
    files: tuple[WrittenFile, ...]
    skipped_records: int = 0
    faults: int = 0
    too_large: tuple[tuple[int, int], ...] = ()

    @property
    def is_whole(self) -> bool:
        return not self.faults and not self.too_large

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def encode(self) -> bytes:
        files = [asdict(file) for file in self.files]
        document = {"range": self.range, "rows": self.rows, "files": files}
        document |= {"passed_over": self.skipped_records, "faults": self.faults}
        document |= {"too_large": self.too_large} if self.too_large else {}
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, raw: bytes, path: str) -> Manifest:
        """Raises ConfigError, naming `path`."""
        try:
            document = json.loads(raw)
            files = tuple(WrittenFile(**file) for file in document["files"])
            skipped_records = document.get("passed_over", 0), document.get("faults", 0)
            too_large = tuple((first, last) for first, last in document.get("too_large", ()))
            written_range = BackfillRange(*document["range"])
            return cls(written_range, document["rows"], files, *skipped_records, too_large)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} is not a manifest of a backfill: {error!r}: restore it from a copy, or "
                "write into another output"
            ) from None


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
    backfill_range: BackfillRange,
    batches: Iterable[Any],
    compression: str,
    skipped_records: SkippedRecords,
    before: Manifest | None = None,
) -> Manifest:
    """`batches`: pyarrow.RecordBatches with a `timestamp` column. Their source counts
    up `skipped_records`. `before`: the manifest of an earlier, incomplete version of the range.

    Files get their names after all are written; on S3 each appears once it is written. Raises
    OSError, and the errors of `batches`.
    """
    files = _DatedFiles(folder, backfill_range, compression)
    try:
        for batch in batches:
            files.add(batch)
            del batch  # it may be large, and the next one is made now
        written_files = files.close()
    except BaseException:
        files.discard()
        raise
    # Files of the same name are replaced already. After a kill here, the next run does the range
    # again.
    replaced_paths = {file.path for file in written_files}
    for file in before.files if before is not None else ():
        if file.path not in replaced_paths:
            folder.discard(folder.path(file.path))
    manifest = Manifest(
        backfill_range,
        sum(file.rows for file in written_files),
        tuple(written_files),
        skipped_records.records,
        skipped_records.faults,
        tuple(skipped_records.too_large or ()),
    )
    folder.put_manifest(manifest)
    return manifest


@dataclass(slots=True)
class _DatedFiles:
    folder: OutputFolder
    range_: BackfillRange
    compression: str
    # By day, the file written least recently first.
    _open: dict[int, _Open] = field(default_factory=dict)
    _closed: list[_Open] = field(default_factory=list)
    _begun: dict[int, int] = field(default_factory=dict)  # number of files by day
    _waiting_bytes: int = 0

    def add(self, batch: Any) -> None:
        if batch.num_rows == 1 and batch.nbytes > BUFFERED_BYTES_MAX:
            [(day, rows)] = rows_by_day(batch)
            self._write_large(day, rows)
            return
        for day, rows in rows_by_day(batch):
            file = self._file(day, rows.schema)
            file.waiting.append(rows)
            file.waiting_bytes += rows.nbytes
            self._waiting_bytes += rows.nbytes
        while self._waiting_bytes > BUFFERED_BYTES_MAX:
            self._flush(max(self._open.values(), key=lambda file: file.waiting_bytes))

    def close(self) -> list[WrittenFile]:
        """Publishes the files. Returns them by name."""
        for day in list(self._open):
            self._close(day)
        for file in self._closed:
            self.folder.publish(file.part, file.name)
        written_files = [
            WrittenFile(file.name, file.rows, file.size_bytes) for file in self._closed
        ]
        return sorted(written_files, key=lambda file: file.path)

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
            file = self._begin(day, schema, self.compression)
        self._open[day] = file
        return file

    def _write_large(self, day: int, rows: Any) -> None:
        _keep_little_for(rows.nbytes)  # what has made the rows
        compression = self.compression if packs_to_half(rows, self.compression) else "none"
        file = self._begin(day, rows.schema, compression, _LARGE_PAGE_VERSION, [])
        self._closed.append(file)
        file.writer.write_table(pa.Table.from_batches([rows]))
        file.rows = rows.num_rows
        self._finish(file)
        _keep_little_for(rows.nbytes)

    def _begin(
        self,
        day: int,
        schema: Any,
        compression: str,
        page_version: str = "1.0",
        with_dictionary: Sequence[str] = _REPEATING,
    ) -> _Open:
        number = self._begun.get(day, 0)
        self._begun[day] = number + 1
        suffix = f"-{number + 1}" if number else ""
        folder = f"topic_folder={file_stem(self.range_.topic)}/date={day_name(day)}"
        name = f"{folder}/{self.range_.name}{suffix}.parquet"
        part = self.folder.part(name)
        writer = pq.ParquetWriter(
            part,
            schema,
            filesystem=self.folder.fs,
            compression=compression,
            data_page_version=page_version,
            use_dictionary=with_dictionary,
            write_statistics=_WITH_STATISTICS,
        )
        return _Open(name, part, writer)

    def _flush(self, file: _Open) -> None:
        if file.waiting:
            table = pa.Table.from_batches(file.waiting)
            _keep_little_for(file.waiting_bytes)  # the writer takes two to three times as much
            file.writer.write_table(table, row_group_size=table.num_rows)
            file.rows += table.num_rows
            written_bytes, file.waiting, file.waiting_bytes = file.waiting_bytes, [], 0
            self._waiting_bytes -= written_bytes
            del table
            _keep_little_for(written_bytes)

    def _close(self, day: int) -> None:
        file = self._open.pop(day)
        self._closed.append(file)
        self._flush(file)
        self._finish(file)

    def _finish(self, file: _Open) -> None:
        writer, file.writer = file.writer, None
        writer.close()
        file.size_bytes = self.folder.fs.get_file_info(file.part).size


def _keep_little_for(size_bytes: int) -> None:
    """Arrow's pool keeps freed memory for later. Beside a large record that is too much."""
    if size_bytes > BUFFERED_BYTES_MAX:
        pa.default_memory_pool().release_unused()


def packs_to_half(rows: Any, compression: str) -> bool:
    """Whether keys, values and headers are at most half as large when they are packed."""
    if compression == "none":
        return False
    codec = pa.Codec(compression)
    columns = [rows.column(name) for name in ("key", "value", "headers")]
    buffers = [buffer for column in columns for buffer in column.buffers() if buffer is not None]
    packed_bytes = sum(
        codec.compress(buffer.slice(position, min(_PIECE_BYTES, buffer.size - position))).size
        for buffer in buffers
        for position in range(0, buffer.size, _PIECE_BYTES)
    )
    bytes_max = _PACKED_SHARE_MAX * sum(buffer.size for buffer in buffers)
    return bool(packed_bytes <= bytes_max)


def rows_by_day(batch: Any) -> Iterator[tuple[int, Any]]:
    """Days since 1970, in order, each with its rows."""
    if not batch.num_rows:
        return
    times = batch.column("timestamp").cast(pa.int64()).fill_null(_NO_DAY * DAY_US)
    days = np.floor_divide(times.to_numpy(zero_copy_only=False), DAY_US)
    days[(days < _DAY_MIN) | (days > _DAY_MAX)] = _NO_DAY
    first, last = int(days.min()), int(days.max())
    if first == last:
        yield first, batch
        return
    for day in np.unique(days):
        yield int(day), batch.filter(pa.array(days == day))


def day_name(day: int) -> str:
    if not _DAY_MIN <= day <= _DAY_MAX:
        return _NO_DATE  # producers may set any timestamp
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()
