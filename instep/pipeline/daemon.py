"""Spark's daemon for Python workers, with the modules of the tasks already loaded.

The daemon forks the workers, so they share these modules in memory and start faster.
"""

from __future__ import annotations

import contextlib
import gc

import pyspark.worker  # noqa: F401 - loaded for the workers
from pyspark.daemon import manager

import instep.pipeline.micro_batch.task  # noqa: F401 - loaded for the workers
from instep import errors


def main() -> None:
    """Load the modules and run Spark's daemon."""
    for driver in ("postgres", "mysql", "sqlite"):
        with contextlib.suppress(errors.MissingPart):  # only the drivers in use are installed
            __import__(f"instep.sinks.{driver}")
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
