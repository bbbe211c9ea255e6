"""A user's program on Spark Connect: python -m tests.support.connect_program.

Its arguments are the door (format or foreachBatch), the database's URL, and a folder with the input
and the checkpoint. It ends when everything is written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import instep
from tests.support.spark_sessions import CONF, read_rows


def main() -> None:
    door, url, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    builder = SparkSession.builder.remote("local[2]").appName("connect")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = read_rows(spark, folder / "in", "order_id int, status string, version long")
    if door == "format":
        writer = rows.writeStream.format("instep").options(
            url=url, table="orders", key="order_id", order="version"
        )
    else:
        counts = rows.groupBy("status").agg(sf.count("*").alias("orders"))
        sink = instep.sink(url, instep.table("counts", key="status"))
        writer = counts.writeStream.outputMode("update").foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{door}"))
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
