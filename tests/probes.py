"""Probes that the tests put into a pipeline's tasks, named by INSTEP_PROBE."""

from __future__ import annotations

import os
import time
from pathlib import Path

from instep.pipeline.transaction import Moment

FOLDER, STEP = "INSTEP_TEST_HOLD_FOLDER", "INSTEP_TEST_HOLD_STEP"


def hold(moment: Moment) -> None:
    """Stand still at one step of the transaction, say so, and wait to be killed."""
    if moment.step != int(os.environ[STEP]):
        return
    Path(os.environ[FOLDER], moment.pipeline).touch()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.01)
    os._exit(1)
