"""A user's program on Spark Connect: python -m tests.support.connect_program.

Its arguments are the door (format, foreachBatch, or several: two queries of the first and one of
the second, in one session), the database's URL, and a folder with the input and the checkpoints.
It ends when everything is written. It prints why a query was refused.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
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
    if door == "several":
        run_several(rows, url, folder)
        spark.stop()
        return
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


def run_several(rows: Any, url: str, folder: Path) -> None:
    """Run two queries behind the format, then one with foreachBatch beside them."""
    queries = []
    for name in ("orders", "copies"):
        writer = rows.writeStream.format("instep").options(
            url=url, table=name, key="order_id", order="version"
        )
        writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}"))
        queries.append(writer.start())
    sink = instep.sink(url, instep.table("orders", key="order_id"), name="another")
    refused = rows.writeStream.foreachBatch(sink).option(
        "checkpointLocation", str(folder / "checkpoint-refused")
    )
    try:
        refused.start().awaitTermination(120)
    except StreamingQueryException as error:
        print(error)  # noqa: T201
    for query in queries:
        query.processAllAvailable()
        query.stop()


if __name__ == "__main__":
    main()
