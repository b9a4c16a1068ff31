"""An archived topic as a DataFrame: the number of orders a day, read only from the archive.

spark-submit examples/archived_topic.py s3://archive/kafka orders
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from fetchproxy.spark import read_archive


def main(store: str, topic: str) -> None:
    spark = SparkSession.builder.appName("orders a day").getOrCreate()
    columns = ["value", "timestamp"]  # other columns are not decoded
    records = read_archive(spark, store, topic, columns=columns, isolationLevel="read_committed")
    days = records.groupBy(f.to_date("timestamp").alias("day")).agg(
        f.count("*").alias("records"), f.sum(f.length("value")).alias("bytes")
    )
    days.orderBy("day").show(100)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
