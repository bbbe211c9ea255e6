"""Spark's daemon for Python workers, with what tasks need loaded before it forks them: loaded once, and shared in memory."""

from __future__ import annotations

import contextlib
import gc

import pyspark.worker  # noqa: F401 - what every worker begins with
from pyspark.daemon import manager

import instep.pipeline.task  # noqa: F401 - what it then runs
from instep import errors


def main() -> None:
    for driver in ("postgres", "mysql", "sqlite"):
        with contextlib.suppress(
            errors.MissingPart
        ):  # a target's driver is there when it is needed
            __import__(f"instep.sinks.{driver}")
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
