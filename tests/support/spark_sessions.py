"""A Spark session as users start it, for tests of the sink."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from instep.local import class_archives
from instep.pipeline import session

ROOT = Path(__file__).parents[2]
FIRST_FILE_S = 1_700_000_000
CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.schemaInference": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    # The JVM lives for seconds: it starts from the class archive, as the pipelines' JVMs do.
    "spark.driver.extraJavaOptions": " ".join(
        ["-XX:+UseSerialGC", *class_archives.SPARK.jvm_flags()]
    ),
    "spark.log.level": "OFF",
}


@contextmanager
def user_session(conf: Mapping[str, str] | None = None, master: str = "local[2]") -> Iterator[Any]:
    """Start Spark in its own JVM, whose workers find this checkout as an installed package.

    A later session ends this one.
    """
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    session._end_jvm()
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with (
        _environment("PYTHONPATH", path),
        _environment("PYSPARK_PYTHON", sys.executable),
    ):
        builder = SparkSession.builder.master(master).appName("sink")
        for name, value in {**CONF, **(conf or {})}.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            if SparkContext._active_spark_context is spark.sparkContext:
                spark.stop()
                session._end_jvm()


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable in the block, and what it was before afterwards."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def add_rows(folder: Path, number: int, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add a file of rows to the folder that a stream reads; it appears with all its rows.

    Spark reads files in the order of their times, which would be equal for files made at once.
    """
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{number}"
    hidden.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    os.utime(hidden, (FIRST_FILE_S + number,) * 2)
    hidden.rename(folder / f"{number:06d}.json")


def read_rows(spark: Any, folder: Path, schema: str) -> Any:
    """Return the stream of those rows, one file in each micro-batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").json(str(folder))


def forget_last_commit(checkpoint: Path) -> None:
    """Delete the last file of the commit log, as if Spark had died before it."""
    commits = [file for file in (checkpoint / "commits").iterdir() if file.name.isdigit()]
    last = max(commits, key=lambda file: int(file.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
