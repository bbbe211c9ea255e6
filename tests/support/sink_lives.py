"""A small imitation of Spark's driver, in a process that is killed again and again.

It keeps a checkpoint as Spark does: what a batch reads is written to `offsets` before it runs, and
`commits` says that it is done. Tasks share the rows in another way at each try, some of them stage
their rows, and some run twice. Only the driver is imitated; tasks, merge and database are real.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from instep import errors
from instep.pipeline.apply.batch import ProbeEvent
from instep.sinks import batches as sink_batches
from instep.spark_sink import decision, definition, task
from instep.spark_sink.definition import SinkTable
from instep.spark_sink.merge import TaskMessage
from tests.support.spark_sinks import SinkQuery

QUERY = "the-query"
STATUSES = ("new", "paid", "sent", "done", "gone")
ROW = [("id", pa.int64()), ("status", pa.string()), ("version", pa.int64())]
SHAPES: dict[str, tuple[tuple[SinkTable, ...], pa.Schema]] = {
    "provenance": ((definition.table("events", key="id", order="version"),), pa.schema(ROW)),
    "aggregate": (
        (definition.table("totals", key="status"),),
        pa.schema([("status", pa.string()), ("n", pa.int64()), ("total", pa.float64())]),
    ),
    "two-tables": (
        (
            definition.table("events", key="id", order="version", column="e"),
            definition.table("audit", key=["id", "version"], column="a"),
        ),
        pa.schema([("e", pa.struct(ROW)), ("a", pa.list_(pa.struct(ROW)))]),
    ),
}
TABLES = {
    "events": "CREATE TABLE events (id BIGINT PRIMARY KEY, status VARCHAR(10), version BIGINT)",
    "totals": (
        "CREATE TABLE totals (status VARCHAR(10) PRIMARY KEY, n BIGINT, total DOUBLE PRECISION)"
    ),
    "audit": (
        "CREATE TABLE audit (id BIGINT, status VARCHAR(10), version BIGINT,"
        " PRIMARY KEY (id, version))"
    ),
}
KILL_STEP = "INSTEP_TEST_KILL_STEP"  # step:countdown
PLANNED, STAGED, MERGED, DONE = 20, 21, 22, 23  # steps of this driver, beside those of the merge

_countdown = [0]


def strike(event: ProbeEvent) -> None:
    """Kill this process at a step, when it has come there often enough."""
    step, _, count = os.environ.get(KILL_STEP, "-1:0").partition(":")
    if event.step != int(step):
        return
    _countdown[0] += 1
    if _countdown[0] > int(count):
        os.kill(os.getpid(), signal.SIGKILL)


def source_row(number: int) -> dict[str, Any]:
    """Return a row of the endless source. Ids come back with higher versions."""
    return {"id": number * 7 % 53, "status": STATUSES[number % 5], "version": number}


def expected(shape: str, end: int) -> dict[str, list[Any]]:
    """Return the tables after all rows of the source up to a number."""
    rows = [source_row(number) for number in range(end)]
    events = {row["id"]: (row["id"], row["status"], row["version"]) for row in rows}
    if shape == "aggregate":
        return {"totals": [(row["status"], row["n"], row["total"]) for row in _totals(end)]}
    found: dict[str, list[Any]] = {"events": sorted(events.values())}
    if shape == "two-tables":
        found["audit"] = sorted((row["id"], row["status"], row["version"]) for row in rows)
    return found


def _totals(end: int) -> list[dict[str, Any]]:
    totals: dict[str, dict[str, Any]] = {}
    for number in range(end):
        row = source_row(number)
        one = totals.setdefault(row["status"], {"status": row["status"], "n": 0, "total": 0.0})
        one["n"] += 1
        one["total"] += number
    return sorted(totals.values(), key=lambda one: str(one["status"]))


def rows_of(shape: str, start: int, end: int) -> list[dict[str, Any]]:
    """Return what the query makes of a part of the source."""
    rows = [source_row(number) for number in range(start, end)]
    if shape == "aggregate":
        changed = {row["status"] for row in rows}
        return [one for one in _totals(end) if one["status"] in changed]
    if shape == "two-tables":
        return [{"e": row, "a": [row]} for row in rows]
    return rows


class ConcurrentUpdateError(Exception):
    """Another driver has planned the same batch."""


class Checkpoint:
    """The checkpoint's folder. Unless it is atomic, the last writer of a file wins.

    In an atomic one, only the first writer of a plan succeeds; Spark ends the other query.
    """

    def __init__(self, folder: Path, *, atomic: bool = False) -> None:
        self._is_atomic = atomic
        self.offsets, self.commits = folder / "offsets", folder / "commits"
        for part in (self.offsets, self.commits):
            part.mkdir(parents=True, exist_ok=True)

    def last(self) -> tuple[int, int, int] | None:
        """Return the last planned batch: its id, and where it begins and ends."""
        ids = sorted(int(file.name) for file in self.offsets.iterdir() if file.name.isdigit())
        while ids:
            try:
                start, end = json.loads((self.offsets / str(ids[-1])).read_text())
            except ValueError:  # half a file
                ids.pop()
                continue
            return ids[-1], start, end
        return None

    def is_committed(self, batch_id: int) -> bool:
        return (self.commits / str(batch_id)).exists()

    def forget_last_commit(self) -> None:
        """Delete the last file of the commit log."""
        ids = [int(file.name) for file in self.commits.iterdir() if file.name.isdigit()]
        if ids:
            (self.commits / str(max(ids))).unlink()

    def plan(self, batch_id: int, start: int, end: int) -> None:
        hidden = self.offsets / f".{batch_id}-{os.getpid()}"
        hidden.write_text(json.dumps([start, end]))
        if not self._is_atomic:
            hidden.rename(self.offsets / str(batch_id))
            return
        try:
            (self.offsets / str(batch_id)).hardlink_to(hidden)
        except FileExistsError as error:
            raise ConcurrentUpdateError(f"batch {batch_id} is planned already") from error
        finally:
            hidden.unlink()

    def commit(self, batch_id: int) -> None:
        (self.commits / str(batch_id)).touch()


class Life:
    """One run of the driver, from its start until it is killed, stopped or done."""

    def __init__(
        self, url: str, shape: str, folder: Path, *, knows_offsets: bool, atomic: bool = False
    ) -> None:
        tables, schema = SHAPES[shape]
        self._shape, self._knows_offsets = shape, knows_offsets
        self._run = f"run-{os.getpid()}-{time.monotonic_ns()}"
        self._query = SinkQuery(url, *tables, schema=schema, query_id=QUERY)
        self._checkpoint = Checkpoint(folder, atomic=atomic)
        self._random = random.Random(self._run)

    def live(self, end: int) -> None:
        """Run batches until the whole source is read."""
        last = self._checkpoint.last()
        batch_id, position = -1, 0
        if last is not None:
            batch_id, start, position = last
            if not self._checkpoint.is_committed(batch_id):
                self._batch(batch_id, start, position)
        while position < end:
            batch_id, start = batch_id + 1, position
            position = min(end, start + self._random.randint(1, 30))
            self._checkpoint.plan(batch_id, start, position)
            strike(ProbeEvent("", PLANNED))
            self._batch(batch_id, start, position)

    def _batch(self, batch_id: int, start: int, end: int) -> None:
        rows = rows_of(self._shape, start, end)
        self._random.shuffle(rows)
        tasks = self._random.randint(1, 3)
        messages = [self._task(rows[number::tasks], batch_id) for number in range(tasks)]
        offsets = decision.planned(str(start), str(end)) if self._knows_offsets else None
        self._query.merge(batch_id, messages, run_id=self._run, offsets=offsets)
        strike(ProbeEvent("", MERGED))
        self._checkpoint.commit(batch_id)
        strike(ProbeEvent("", DONE))

    def _task(self, rows: list[dict[str, Any]], batch_id: int) -> TaskMessage:
        message = self._query.message(rows, self._run)
        if self._random.random() < 0.5:
            return message
        messages = []
        for _attempt in range(self._random.randint(1, 2)):  # the first one is a lost attempt
            stage = task._Stage(
                self._query.definition, self._query.session.inspect()[0], self._run, batch_id
            )
            try:
                stage.add(message.chunks)
            finally:
                stage.close()
            messages.append(
                TaskMessage(QUERY, self._run, message.digest, [], stage.token, stage.count)
            )
            strike(ProbeEvent("", STAGED))
        return messages[-1]


def child(life: Life, end: int) -> int:
    """Live in this forked process; return the exit status, by what ended it."""
    try:
        life.live(end)
    except ConcurrentUpdateError as update:
        sys.stderr.write(f"{type(update).__name__}: {update}\n")
        return 5
    except errors.NamedStop as stop:
        sys.stderr.write(f"{stop.code}\n")
        return 3
    except errors.InstepError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 4
    return 0


def adopt(url: str, shape: str) -> None:
    """Do what a named stop's page says."""
    sink_batches.adopt(url, definition.define(url, SHAPES[shape][0]).name)
