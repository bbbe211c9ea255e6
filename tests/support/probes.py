"""Probes that the tests put into a pipeline's tasks, named by INSTEP_PROBE."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from instep import errors
from instep.pipeline import session
from instep.pipeline.apply.batch import ProbeEvent

TASKS = 2  # at most, that run at once
FOLDER, STEPS = "INSTEP_TEST_HOLD_FOLDER", "INSTEP_TEST_HOLD_STEPS"


def hold(moment: ProbeEvent) -> None:
    """Stop at the step of the transaction that is given for the pipeline, leave a file that says so, and wait to be killed."""
    if moment.step != json.loads(os.environ[STEPS])[moment.pipeline]:
        return
    Path(os.environ[FOLDER], moment.pipeline).touch()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.01)
    os._exit(1)


def restart_once(moment: ProbeEvent) -> None:
    """Fail after a transaction was committed, as often as Spark tries a task: what it did is then in no report of the query."""
    tries = Path(os.environ[FOLDER], "tries")
    if moment.step == 9 and (
        not tries.exists() or tries.stat().st_size < session.TASK_TRIES_MAX * TASKS
    ):
        with tries.open("ab") as file:
            file.write(b".")
        raise errors.LedgerMoved("the test has the query start again")
