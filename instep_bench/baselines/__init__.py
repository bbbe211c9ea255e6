"""Baselines: a plain loop, Spark with its JDBC writer, Kafka Connect with a JDBC sink.

Each is what a good engineer would write in a day, tuned. They differ in their guarantees.
"""

from __future__ import annotations

from collections.abc import Mapping

LOOP = "loop"
SPARK_JDBC = "spark-jdbc"
CONNECT = "connect"
GUARANTEES: Mapping[str, str] = {
    LOOP: "exactly once, in order (version guard); bad events are dropped",
    SPARK_JDBC: "at least once, in order (version guard, so that a repeated batch changes nothing);"
    " bad events are dropped",
    CONNECT: "at least once, no version guard: a stale event overwrites a later one;"
    " bad events are dropped",
}
# Default batch sizes in events; Kafka Connect's worker has its own limits.
BATCHES: Mapping[str, int] = {LOOP: 20_000, SPARK_JDBC: 100_000}
BUNDLES: Mapping[str, tuple[str, ...]] = {
    LOOP: (),
    SPARK_JDBC: ("jdbc",),
    CONNECT: ("connect", "debezium-jdbc"),
}


def sql_dialect(backend: str) -> str:
    """Return postgresql, mariadb or sqlite; MySQL gets the same statements as MariaDB."""
    if backend == "mysql":
        return "mariadb"
    return backend


def jdbc_address(host: str | None, port: int | None, database: str | None) -> str:
    """Return the address of a database as a JDBC URL has it."""
    if port is None:
        return f"{host}/{database}"
    return f"{host}:{port}/{database}"
