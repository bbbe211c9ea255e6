"""Probes that the tests put into a pipeline's tasks, named by INSTEP_PROBE."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil

from instep import errors
from instep.pipeline import session
from instep.pipeline.apply.batch import ProbeEvent

TASKS = 2  # that run at once, at most
FOLDER, STEPS = "INSTEP_TEST_HOLD_FOLDER", "INSTEP_TEST_HOLD_STEPS"


def hold(moment: ProbeEvent) -> None:
    """Hold the transaction at the step that is given for the pipeline.

    Create a file to report it, and wait to be killed.
    """
    if moment.step != json.loads(os.environ[STEPS])[moment.pipeline]:
        return
    Path(os.environ[FOLDER], moment.pipeline).touch()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.01)
    os._exit(1)


def restart_once(moment: ProbeEvent) -> None:
    """Fail after a commit, as often as Spark tries a task.

    The query then has no report of what was committed.
    """
    tries = Path(os.environ[FOLDER], "tries")
    if moment.step == 9 and (
        not tries.exists() or tries.stat().st_size < session.TASK_TRIES_MAX * TASKS
    ):
        with tries.open("ab") as file:
            file.write(b".")
        raise errors.LedgerMoved("the test has the query start again")


def hold_while_asked(moment: ProbeEvent) -> None:
    """Hold a transaction, before its commit, while a file asks for it; report the process."""
    asked = Path(os.environ[FOLDER], "asked")
    if moment.step != 8 or not asked.exists():
        return
    Path(os.environ[FOLDER], f"held-{os.getpid()}").touch()
    while asked.exists():
        time.sleep(0.01)


def kill_at(moment: ProbeEvent) -> None:
    """Kill this process at a step of the batch that has a row: INSTEP_TEST_KILL is STEP:ROW."""
    step, _, row = os.environ["INSTEP_TEST_KILL"].partition(":")
    if moment.step == int(step) and moment.first <= int(row) <= moment.last:
        os.kill(os.getpid(), signal.SIGKILL)


def kill_once(moment: ProbeEvent) -> None:
    """Kill this process, and those that started it up to the driver, at the step that a file asks.

    The file `kill` has the step and the process id of the driver, or 0 to kill only this process.
    It is renamed first, so that only one process is killed.
    """
    asked = Path(os.environ[FOLDER], "kill")
    try:
        step, driver = map(int, asked.read_text().split())
        if moment.step != step:
            return
        asked.rename(asked.with_name("killed"))
    except (FileNotFoundError, ValueError):
        return
    above = [process.pid for process in psutil.Process().parents()] if driver else []
    for pid in above[: above.index(driver) + 1] if driver in above else []:
        os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
