"""Baseline (b): Structured Streaming's `foreachBatch` with Spark's JDBC writer.

The JDBC writer can only append. Each batch is therefore reduced to the latest event of each
document and appended to a staging table; one statement from the driver upserts it from there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from instep import settings
from instep.local import artifacts
from instep.sinks import target
from instep_bench import baselines, contestant_program

EVENT = "doc_id string, status string, version long, updated_at timestamp"
JDBC: Mapping[str, tuple[str, str, dict[str, str]]] = {
    "postgresql": ("postgresql", "org.postgresql.Driver", {"reWriteBatchedInserts": "true"}),
    # With this URL scheme Spark quotes names as the database expects.
    "mariadb": (
        "mysql",
        "org.mariadb.jdbc.Driver",
        {"useBulkStmts": "true", "permitMysqlScheme": "true"},
    ),
}
STAGING: Mapping[str, str] = {
    "postgresql": "CREATE UNLOGGED TABLE {table}_staging (LIKE {table})",
    "mariadb": "CREATE TABLE {table}_staging LIKE {table}",
    "sqlite": "CREATE TABLE {table}_staging"
    " (doc_id text, status text, version integer, updated_at text)",
}
GUARDED = """INSERT INTO {table} AS t
    SELECT doc_id, status, version, updated_at FROM {table}_staging WHERE true
    ON CONFLICT (doc_id) DO UPDATE SET status = excluded.status,
        version = excluded.version, updated_at = excluded.updated_at
    WHERE t.version < excluded.version"""
UPSERTS: Mapping[str, str] = {
    "postgresql": GUARDED,
    "sqlite": GUARDED,
    # MariaDB assigns from left to right: the version comes last because the others compare it.
    "mariadb": """INSERT INTO {table} SELECT s.* FROM {table}_staging s ON DUPLICATE KEY UPDATE
        status = IF(s.version > {table}.version, s.status, {table}.status),
        updated_at = IF(s.version > {table}.version, s.updated_at, {table}.updated_at),
        version = GREATEST({table}.version, s.version)""",
}


class JdbcJob:
    """One Spark session; each order runs a query from the start of the topic to its end."""

    def __init__(self) -> None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        self._runs = 0

    def apply(self, order: contestant_program.Order) -> contestant_program.OrderResult:
        declared = settings.load(Path(order.config))
        pipeline = settings.pipeline(declared, order.pipeline)
        spark = session(declared.spark)
        table = StagedTable(spark, pipeline)
        self._runs += 1
        checkpoint = Path(sys.argv[1]).parent / f"checkpoint-{self._runs}"

        def write(batch: DataFrame, _batch_id: int) -> None:
            table.upsert(_events(batch))

        with table.prepared():
            records = (
                spark.readStream.format("kafka")
                .option("kafka.bootstrap.servers", declared.kafka.bootstrap or "")
                .option("subscribe", pipeline.topic)
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", pipeline.batch_rows_max)
                .option("kafka.fetch.max.wait.ms", "1")
                .load()
            )
            query = (
                records.writeStream.foreachBatch(write)
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        return contestant_program.OrderResult()


class StagedTable:
    """A table with a staging table beside it, written over JDBC."""

    def __init__(self, spark: SparkSession, pipeline: settings.Pipeline) -> None:
        url = target.database_url(pipeline.target)
        self._kind = baselines.sql_dialect(url.get_backend_name())
        self._name = pipeline.table
        self._spark = spark
        if self._kind == "sqlite":
            self._url = (
                f"jdbc:sqlite:{url.database}?busy_timeout=60000&journal_mode=WAL&synchronous=NORMAL"
            )
            self._properties = {"driver": "org.sqlite.JDBC"}
        else:
            scheme, driver, tuning = JDBC[self._kind]
            address = baselines.jdbc_address(url.host, url.port, url.database)
            self._url = f"jdbc:{scheme}://{address}?{urlencode(tuning)}"
            self._properties = {
                "driver": driver,
                "user": url.username or "",
                "password": str(url.password or ""),
            }

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Create the staging table, and drop it after the block."""
        self._execute(STAGING[self._kind].format(table=self._name))
        try:
            yield
        finally:
            self._execute(f"DROP TABLE {self._name}_staging")

    def upsert_batch(self, batch: DataFrame, _batch_id: int) -> None:
        """Upsert a batch of a query with `foreachBatch`."""
        self.upsert(batch.select(F.struct(*batch.columns).alias("event")))

    def upsert(self, events: DataFrame) -> None:
        """Append the latest event of each document to the staging table, and upsert it."""
        latest = (
            events.groupBy("event.doc_id")
            .agg(F.max_by("event", "event.version").alias("event"))
            .select("event.*")
        )
        if self._kind == "sqlite":  # one writer at a time, and no time type
            latest = latest.withColumn("updated_at", F.col("updated_at").cast("string")).coalesce(1)
        latest.write.option("batchsize", 10_000).jdbc(
            self._url, f"{self._name}_staging", "append", self._properties
        )
        empty = "TRUNCATE TABLE"
        if self._kind == "sqlite":
            empty = "DELETE FROM"  # SQLite has no TRUNCATE
        self._execute(UPSERTS[self._kind].format(table=self._name), f"{empty} {self._name}_staging")

    def _execute(self, *statements: str) -> None:
        """Execute statements over a JDBC connection of the driver, in one transaction."""
        jvm: Any = self._spark.sparkContext._jvm
        jvm.Class.forName(
            self._properties["driver"], True, jvm.Thread.currentThread().getContextClassLoader()
        )
        properties = jvm.java.util.Properties()
        for name, value in self._properties.items():
            properties.setProperty(name, value)
        connection = jvm.java.sql.DriverManager.getConnection(self._url, properties)
        try:
            connection.setAutoCommit(False)
            statement = connection.createStatement()
            for text in statements:
                statement.execute(text)
            connection.commit()
        finally:
            connection.close()


def _events(records: DataFrame) -> DataFrame:
    """Return the events of Kafka's records, without those that have no id or version."""
    event = F.from_json(F.col("value").cast("string"), EVENT)
    return records.select(event.alias("event")).where(
        "event.doc_id is not null and event.version is not null and event.doc_id != ''"
    )


def session(spark: settings.Spark) -> SparkSession:
    """Return the Spark session, with the drivers of Kafka and JDBC."""
    jars = ",".join(map(str, (*artifacts.jars("spark-kafka"), *artifacts.jars("jdbc"))))
    return (
        SparkSession.builder.appName("baseline")
        .master(spark.master)
        .config("spark.jars", jars)
        # Also on the class path: java.sql.DriverManager offers only the drivers of the caller's
        # class loader.
        .config("spark.driver.extraClassPath", jars.replace(",", os.pathsep))
        .config("spark.driver.memory", spark.memory)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        # Most of the default 200 would be empty.
        .config("spark.sql.shuffle.partitions", os.cpu_count() or 2)
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC")
        .getOrCreate()
    )


if __name__ == "__main__":
    contestant_program.serve(JdbcJob().apply)
