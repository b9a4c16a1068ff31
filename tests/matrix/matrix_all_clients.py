"""The clients of the matrix, in the order of the table's rows."""

from __future__ import annotations

from matrix_client import MatrixClient
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
    KAFKAJS,
    SPARK,
    SPARK_STREAM,
)
