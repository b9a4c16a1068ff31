"""The folder that a backfill to Parquet writes: data, and beside it what is planned and done.

    topic=<topic>/date=<yyyy-mm-dd>/<topic>-<partition>-<first>-<last>.parquet
    _backfill/plan-<number>.json    the ranges that were not done when it was made
    _backfill/done/<range>.json     a range's manifest: the files that hold it, all of them there
    _backfill/parts/                files that are being written

A range is there when its manifest is. One that lacks what was passed over is written again by the
next run; until then it stands. Readers of Parquet pass over names that begin with `_`.
Files get their names when they are whole; on S3, which knows no renaming, an object is there only
when it is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.fs as pafs

from fetchproxy.errors import ConfigError
from fetchproxy.pipeline.jobs.backfill_plan import Plan

_SIDE = "_backfill"
_MARK = "plan-"


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """`place`: a path or a URI of pyarrow's (file, s3, gs, hdfs). Raises OSError throughout."""

    place: str
    _fs: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def __getstate__(self) -> str:
        return self.place

    def __setstate__(self, place: str) -> None:
        object.__setattr__(self, "place", place)
        object.__setattr__(self, "_fs", [])

    @property
    def fs(self) -> Any:
        return self._opened()[0]

    def path(self, name: str) -> str:
        return f"{self._opened()[1]}/{name}"

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
            self._delete_if_there(path)  # not every file system replaces
        self.fs.move(part, path)

    def discard(self, part: str) -> None:
        self._delete_if_there(part)

    def remove(self, name: str) -> None:
        """A file that was published, if it is there."""
        self._delete_if_there(self.path(name))

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
        return max(numbers), Plan.decode(self.read(name), self.path(name))

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
        return Plan.decode(self.read(name), path)

    def manifests(self) -> Iterator[bytes]:
        """Of all ranges that have one."""
        for name in self._names(f"{_SIDE}/done"):
            raw = self.manifest(name.removesuffix(".json"))
            if raw is not None:
                yield raw

    def manifest(self, name: str) -> bytes | None:
        path = f"{_SIDE}/done/{name}.json"
        if self.fs.get_file_info(self.path(path)).type == pafs.FileType.NotFound:
            return None
        return self.read(path)

    def put_manifest(self, name: str, content: bytes) -> None:
        part = self.part(f"{_SIDE}/done/{name}.json")
        self._write(part, content)
        self.publish(part, f"{_SIDE}/done/{name}.json")

    def remove_parts(self) -> None:
        """What killed tasks have left; whoever still writes one fails, and finds its range done."""
        path = self.path(f"{_SIDE}/parts")
        if self.fs.get_file_info(path).type == pafs.FileType.Directory:
            self.fs.delete_dir(path)

    def read(self, name: str) -> bytes:
        with self.fs.open_input_stream(self.path(name)) as file:
            return bytes(file.readall())

    def _write(self, path: str, content: bytes) -> None:
        with self.fs.open_output_stream(path) as file:
            file.write(content)

    def _opened(self) -> tuple[Any, str]:
        """Made when it is first asked for: file systems do not go over the pipe."""
        if not self._fs:
            place = self.place if "://" in self.place else Path(self.place).absolute().as_uri()
            try:
                fs, path = pafs.FileSystem.from_uri(place)
            except (ValueError, NotImplementedError) as error:
                raise ConfigError(f"output {self.place!r}: {error}") from None
            self._fs.append((fs, path.rstrip("/")))
        opened: tuple[Any, str] = self._fs[0]
        return opened

    def _made(self, path: str) -> str:
        self.fs.create_dir(path.rpartition("/")[0], recursive=True)
        return path

    def _names(self, folder: str) -> list[str]:
        selector = pafs.FileSelector(self.path(folder), allow_not_found=True)
        return [info.base_name for info in self.fs.get_file_info(selector)]

    def _delete_if_there(self, path: str) -> None:
        if self.fs.get_file_info(path).type != pafs.FileType.NotFound:
            self.fs.delete_file(path)


def _plan_name(number: int) -> str:
    return f"{_SIDE}/{_MARK}{number:06d}.json"
