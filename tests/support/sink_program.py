"""A user's program with a streaming query that is killed: python -m tests.support.sink_program.

Its arguments are the shape of `sink_lives`, the database's URL, and a folder with the input and the
checkpoint. It ends when everything is written.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import functions as sf

import instep
from tests.support.spark_sessions import read_rows, user_session

SCHEMA = "id long, status string, version long"


def start(spark: Any, shape: str, url: str, folder: Path) -> Any:
    """Start the query of a shape. It reads one file in each micro-batch."""
    rows = read_rows(spark, folder / "in", SCHEMA)
    checkpoint = str(folder / "checkpoint")
    if shape == "aggregate":
        totals = rows.groupBy("status").agg(
            sf.count("*").alias("n"), sf.sum("version").cast("double").alias("total")
        )
        sink = instep.sink(url, instep.table("totals", key="status"))
        writer = totals.writeStream.outputMode("update").foreachBatch(sink)
    elif shape == "provenance":
        writer = rows.writeStream.format("instep").options(
            url=url, table="events", key="id", order="version"
        )
    else:
        row = sf.struct("id", "status", "version")
        both = rows.select(row.alias("events"), sf.array(row).alias("audit"))
        writer = both.writeStream.format("instep").options(
            **{
                "url": url,
                "tables": "events, audit",
                "events.key": "id",
                "events.order": "version",
                "audit.key": "id, version",
            }
        )
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def main() -> None:
    shape, url, folder = sys.argv[1:]
    asked = Path(folder, "kill")
    if asked.exists():
        asked.write_text(f"{asked.read_text().split()[0]} {os.getpid()}")
    with user_session() as spark:
        start(spark, shape, url, Path(folder)).awaitTermination()


if __name__ == "__main__":
    main()
