"""The file that keeps a stream's crossing, in any of Hadoop's file systems.

It is written beside and renamed: it is there as a whole or not at all.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from fetchproxy.errors import ConfigError
from fetchproxy.pipeline.source.crossing import Crossing


class CrossingFile:
    def __init__(self, spark: SparkSession, name: str) -> None:
        self._jvm: Any = spark._jvm
        self._name = name
        self._path = self._jvm.org.apache.hadoop.fs.Path(name)
        self._files = self._path.getFileSystem(spark._jsc.hadoopConfiguration())

    def read(self) -> Crossing | None:
        """None: there is none yet. Raises ConfigError where it is damaged."""
        if not self._files.exists(self._path):
            return None
        stream = self._files.open(self._path)
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return Crossing.decode(text, self._name)

    def keep(self, crossing: Crossing) -> Crossing:
        """What is kept: this one, or that of another start which was faster."""
        beside = self._jvm.org.apache.hadoop.fs.Path(f"{self._name}.{uuid4().hex}.part")
        stream = self._files.create(beside, False)
        try:
            stream.write(bytearray(crossing.encode(), "utf-8"))
        finally:
            stream.close()
        if self._files.exists(self._path) or not self._files.rename(beside, self._path):
            self._files.delete(beside, False)
        kept = self.read()
        if kept is None:
            raise ConfigError(f"archive then live: {self._name} cannot be written")
        return kept
