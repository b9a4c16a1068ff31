"""The clients of the matrix, in the order of the table's rows."""

from __future__ import annotations

from matrix_client import MatrixClient
from matrix_frameworks import KAFKA_CONNECT, KAFKA_STREAMS, MIRROR_MAKER
from matrix_native_clients import KAFKA_GO, RUST_RDKAFKA, SARAMA
from matrix_programs import FRANZ_GO, JAVA, KAFKAJS, KCAT
from matrix_python_clients import AIOKAFKA, CONFLUENT, KAFKA_PYTHON
from matrix_spark import SPARK, SPARK_STREAM

CLIENTS: tuple[MatrixClient, ...] = (
    JAVA,
    CONFLUENT,
    KCAT,
    KAFKA_PYTHON,
    AIOKAFKA,
    FRANZ_GO,
    KAFKA_GO,
    SARAMA,
    RUST_RDKAFKA,
    KAFKAJS,
    KAFKA_STREAMS,
    KAFKA_CONNECT,
    MIRROR_MAKER,
    SPARK,
    SPARK_STREAM,
)
