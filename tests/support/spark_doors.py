"""Streams that go through the doors of the sink, and the tables that they write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

SCHEMA = "order_id int, status string, version long"
ORDERS = "CREATE TABLE orders (order_id INTEGER PRIMARY KEY, status VARCHAR(20), version BIGINT)"
COUNTS = "CREATE TABLE counts (status VARCHAR(20) PRIMARY KEY, orders BIGINT)"
AUDIT = (
    "CREATE TABLE audit (order_id INTEGER, version BIGINT, status VARCHAR(20),"
    " PRIMARY KEY (order_id, version))"
)


def rows(*order_ids: int, version: int = 1, status: str = "new") -> list[dict[str, Any]]:
    """Return rows of orders with these ids."""
    return [{"order_id": one, "status": status, "version": version} for one in order_ids]


def run_format(
    df: DataFrame, url: str, checkpoint: Path, mode: str = "append", **options: str | None
) -> None:
    """Write everything that the stream has, through the format door. None removes an option."""
    default = {"url": url, "table": "orders", "key": "order_id", "order": "version"}
    given = {name: value for name, value in {**default, **options}.items() if value is not None}
    query = (
        df.writeStream.format("instep")
        .options(**given)
        .option("checkpointLocation", str(checkpoint))
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run_for_each(
    df: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path, mode: str = "update"
) -> None:
    """Write everything that the stream has, through the foreachBatch door."""
    writer = df.writeStream.foreachBatch(sink).outputMode(mode).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
