"""The Spark session of a reconciliation."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from instep import settings
from instep.pipeline import session
from instep.spark_options import SparkFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def opened(
    spark: settings.Spark, files: SparkFiles, *, verbose: bool
) -> Iterator[tuple[SparkSession, Path]]:
    """Open a session, with a folder for temporary files; remove both at the end."""
    run_folder = session.RunFolder()
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        started = session.open_session(spark, files, run_folder, verbose=verbose)
        for number, handler in handlers:
            signal.signal(number, handler)  # Spark installs its own handler when it starts
        try:
            yield started, run_folder.path
        finally:
            with contextlib.suppress(Py4JError, OSError):
                started.stop()
    finally:
        run_folder.remove()
