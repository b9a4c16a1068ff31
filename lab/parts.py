"""The list of parts by name: how to set up each, whether it is cached, and its purpose.

Tests, CI and `python -m lab` refer to parts only by these names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lab import (
    balancers,
    browser,
    cache,
    clouds,
    frameworks,
    go_client,
    hdfs,
    helm,
    java,
    kafka_versions,
    kcat,
    kerberos,
    kroxylicious,
    node_client,
    prometheus,
    rust_client,
    s3,
    spark,
)
from lab.errors import PartMissing


@dataclass(frozen=True, slots=True)
class Part:
    """`set_up` returns one line about the part or raises PartMissing; it may take minutes.
    `cached`: the cache entry that exists if set-up is complete."""

    name: str
    purpose: str
    cached: str
    set_up: Callable[[], str]


def set_up_kafka(version: str = kafka_versions.KAFKA_VERSION) -> str:
    runtime = java.find_java()
    jars = len(list(kafka_versions.kafka_jars(version).glob("*.jar")))
    kafka_versions.local_tiered_storage_jars(version)
    return f"Apache Kafka {version} ({jars} jars) on Java {runtime.version} from {runtime.origin}"


def set_up_s3() -> str:
    return f"versitygw {s3.VERSITYGW_VERSION} at {s3.versitygw_executable()}"


def set_up_rclone() -> str:
    return f"rclone at {s3.rclone_executable()}"


def set_up_gcs() -> str:
    return f"fake-gcs-server at {clouds.gcs_executable()}"


def set_up_azure() -> str:
    return f"Azurite at {clouds.azurite_command()[-1]}"


def set_up_hdfs() -> str:
    runtime = java.find_java()
    jars = len(list(hdfs.hdfs_jars().glob("*.jar")))
    on = f"Java {runtime.version} from {runtime.origin}"
    return f"Apache Hadoop {hdfs.HADOOP_VERSION} ({jars} jars) on {on}"


def set_up_kerberos() -> str:
    return f"MIT's KDC and the package gssapi in {kerberos.kerberos_parts()}"


def set_up_kroxylicious() -> str:
    folder = kroxylicious.kroxylicious_classes()
    return f"Kroxylicious {kroxylicious.KROXYLICIOUS_VERSION} in {folder}"


def set_up_clients() -> str:
    """Go's programs are required. kcat (needs Debian) and kafkajs (Node.js) are optional."""
    line = f"franz-go reader at {go_client.franz_reader()}"
    for built in (go_client.kafka_go_client, go_client.sarama_client):
        line += f"; {built().parent.name}"
    for name, look in (("kcat", kcat.find_kcat), ("kafkajs", node_client.kafkajs_command)):
        try:
            look()
            line += f"; {name}"
        except PartMissing as missing:
            line += f"; {missing}"
    return line


def set_up_frameworks() -> str:
    runtime = java.find_java()
    frameworks.streams_command()
    jars = len(list(frameworks.frameworks_jars().glob("*.jar")))
    on = f"Java {runtime.version} from {runtime.origin}"
    return (
        f"Streams, Connect and MirrorMaker of {kafka_versions.KAFKA_VERSION} ({jars} jars) on {on}"
    )


def set_up_browser() -> str:
    """Uses the machine's browser, so there is no cache entry."""
    return f"the machine's own browser, {browser.find_browser()}"


def set_up_balancers() -> str:
    return balancers.balancers_version()


def set_up_helm() -> str:
    program = helm.kubeconform_command()[0]
    return f"Helm {helm.HELM_VERSION} at {helm.helm()}; kubeconform at {program}"


def set_up_prometheus() -> str:
    return f"promtool at {prometheus.find_promtool()}"


def set_up_rust() -> str:
    return f"rust-rdkafka {rust_client.rust_rdkafka_versions()[0]} at {rust_client.rust_rdkafka()}"


def set_up_spark() -> str:
    runtime = java.find_java_up_to(spark.JAVA_VERSION_MAX)
    jars = len(spark.kafka_connector())
    on = f"Java {runtime.version} from {runtime.origin}"
    return f"PySpark {spark.SPARK_VERSION} and its Kafka connector ({jars} jars) on {on}"


def set_up_pyspark(version: str) -> str:
    runtime = java.find_java_up_to(spark.JAVA_VERSION_MAX)
    return f"PySpark in {spark.pyspark(version)} on Java {runtime.version} from {runtime.origin}"


def _pyspark(name: str, version: str) -> Part:
    return Part(
        name,
        f"PySpark {version}, for the tests of the data source on each PySpark",
        spark.pyspark_entry(version),
        lambda: set_up_pyspark(version),
    )


def _kafka(name: str, version: str) -> Part:
    return Part(
        name,
        f"Apache Kafka {version}, for the matrix of clients and brokers",
        kafka_versions.kafka_entry(version),
        lambda: set_up_kafka(version),
    )


# The brokers besides the default version.
OTHER_KAFKAS = {
    "kafka-oldest": kafka_versions.KAFKA_OLDEST,
    "kafka-3.9": kafka_versions.KAFKA_3_9,
    "kafka-newest": kafka_versions.KAFKA_NEWEST,
}

# The data source is tested on each PySpark, in short tests on the first and the last only.
PYSPARKS = {
    "spark-oldest": spark.SPARK_VERSION,
    "spark-4.1": spark.SPARK_4_1,
    "spark-4.2": spark.SPARK_4_2,
    "spark-newest": spark.SPARK_NEWEST,
}

PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        Part(
            "kafka",
            "a real Apache Kafka broker",
            kafka_versions.kafka_entry(),
            set_up_kafka,
        ),
        *(_kafka(name, version) for name, version in OTHER_KAFKAS.items()),
        Part("s3", "a real S3 server", f"versitygw-{s3.VERSITYGW_VERSION}", set_up_s3),
        Part("rclone", "a second real S3 server", s3.rclone_entry(), set_up_rclone),
        Part("gcs", "an emulator of Google Cloud Storage", clouds.gcs_entry(), set_up_gcs),
        Part("azure", "an emulator of Azure Blob Storage", clouds.azurite_entry(), set_up_azure),
        Part("hdfs", "a real HDFS", hdfs.HDFS_ENTRY, set_up_hdfs),
        Part("kerberos", "a real Kerberos KDC", kerberos.KERBEROS_ENTRY, set_up_kerberos),
        Part(
            "kroxylicious",
            "another Kafka proxy, for benchmarks only",
            kroxylicious.KROXYLICIOUS_ENTRY,
            set_up_kroxylicious,
        ),
        Part(
            "clients",
            "clients that are not Python: franz-go, kafka-go, sarama, kcat, kafkajs",
            go_client.sarama_client_entry(),
            set_up_clients,
        ),
        Part(
            "frameworks",
            "Kafka Streams, Kafka Connect and MirrorMaker 2, for the matrix of clients and brokers",
            frameworks.FRAMEWORKS_ENTRY,
            set_up_frameworks,
        ),
        Part(
            "balancers",
            "HAProxy and nginx, in front of two proxies",
            balancers.BALANCERS_ENTRY,
            set_up_balancers,
        ),
        Part("helm", "Helm and kubeconform, for the chart", helm.HELM_ENTRY, set_up_helm),
        Part(
            "browser",
            "a real Chromium, for tests of the console's page",
            "browser-of-the-machine",
            set_up_browser,
        ),
        Part(
            "prometheus",
            "Prometheus' own checker of rules and queries",
            prometheus.PROMETHEUS_ENTRY,
            set_up_prometheus,
        ),
        Part(
            "rust",
            "rust-rdkafka, for the matrix of clients and brokers",
            rust_client.rust_rdkafka_entry(),
            set_up_rust,
        ),
        Part(
            "spark",
            "Apache Spark and its Kafka connector, for the matrix of clients and brokers",
            spark.SPARK_ENTRY,
            set_up_spark,
        ),
        *(_pyspark(name, version) for name, version in PYSPARKS.items()),
    )
}


def is_cached(part: Part) -> bool:
    """Whether `set_up` would find everything in the cache. Contacts no registry."""
    return cache.entry(part.cached) is not None
