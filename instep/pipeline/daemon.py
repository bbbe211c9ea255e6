"""Spark's daemon for Python workers, with the modules of the tasks already loaded.

The daemon forks the workers, so they share these modules in memory and start faster.
"""

from __future__ import annotations

import gc
import importlib
import os

import pyspark.worker  # noqa: F401 - loaded for the workers
from pyspark.daemon import manager

PRELOAD = "INSTEP_PRELOAD"  # names of modules, separated by commas; session.py sets it


def main() -> None:
    """Load the modules and run Spark's daemon."""
    for name in filter(None, os.environ.get(PRELOAD, "").split(",")):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
