"""One pipeline at work: started from the ledger, watched, waited for, started again, ended.

States: starting → running ⇄ waiting → ended. A server that went away is waited for with back-off, and the query started
again in the same Spark session; what cannot mend itself ends the pipeline with its error, and the others go on.
"""

from __future__ import annotations

import contextlib
import functools
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from instep import errors, settings, sinks
from instep.kafka import groups, offsets
from instep.kafka.connection import Cluster, java_config
from instep.kafka.topics import Topic
from instep.pipeline import (
    continuity,
    direct_reader,
    failures,
    monitors,
    pending,
    progress,
    query,
    retries,
    task,
)
from instep.pipeline.apply import batch, transaction
from instep.sinks import inspection, runs
from instep.sinks.sink import Sink
from instep.sinks.target import Position, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 15.0
DOUBTFUL_TRIES_MAX = 6  # for what may pass, and may not: unknown errors, deadlocks, a server that says it does not know us
FORGET_AFTER_S = 60.0  # with every look since then a good one, an error and the next have nothing to do with each other
CHECK_INTERVAL_S = 5.0
TABLE_CHECK_INTERVAL_S = 30.0  # reads the database's catalogue, which costs more than the ledger
DOUBT_S = 2.0
MIRROR_INTERVAL_S = 1.0
MIRROR_OWNER_INTERVAL_S = 10.0
LOOK_INTERVAL_S = 0.1

Found = TypeVar("Found")


class RunnerState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


class Runner(threading.Thread):
    """Runs one pipeline in a thread of its own, so that waiting for one pipeline's servers holds up no other."""

    def __init__(
        self,
        name: str,
        pipeline: settings.Pipeline,
        cluster: Cluster,
        spark: SparkSession,
        folder: Path,
        *,
        once: bool,
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_lost` says that the folder was removed: errors do not count as failures of the pipeline then."""
        super().__init__(name=name, daemon=True)
        self.pipeline, self.cluster, self.spark, self.once = pipeline, cluster, spark, once
        self.state = RunnerState.STARTING
        self.error: errors.InstepError | None = None
        self.waiting_for = ""
        self.started_at = datetime.now(UTC)
        self.restarts = 0
        self.progress = progress.Progress()
        self._folder = folder
        self._is_lost = is_lost
        self._suspended = threading.Event()
        self._asked_to_stop = threading.Event()
        self._query: StreamingQuery | None = None
        self._topic: Topic | None = None
        self._plan: task.TaskPlan | None = None
        self._target: Target | None = None
        self._sink: Sink | None = None
        self._epoch = 0
        self._ledger: dict[int, Position] = {}  # as it stood at the last check
        self._applied: dict[int, int] = {}  # how far this query has come
        self._mirror_shows: dict[int, int] = {}
        self._ask_owner_at = 0.0
        self._report_seen = ""
        self._failures = 0
        self._hopeless = 0
        self._failed_at = 0.0
        self._try_at = 0.0
        self._waiting_since = 0.0
        self._checked = self._table_checked = self._mirrored = time.monotonic()
        self._ending = threading.Lock()  # held while the query is stopped
        self._counted: dict[str, int] | None = None  # what the ledger had summed up before this run
        self._lag = monitors.LagWatch(
            name,
            cluster,
            pipeline.topic,
            self.progress,
            lambda: self.state is not RunnerState.WAITING,
        )
        self._heartbeat = monitors.HeartbeatWatch(name, pipeline, self._reported)
        self._retries = retries.Retries(
            name, pipeline, lambda: self._epoch if self.state is not RunnerState.STARTING else 0
        )

    def run(self) -> None:
        """Look after the pipeline until it has ended or is asked to."""
        self._lag.start()
        self._heartbeat.start()
        self._retries.start()
        while self.state is not RunnerState.ENDED and not self._asked_to_stop.wait(LOOK_INTERVAL_S):
            self._guarded(self._look)
        self._lag.end()
        self._stop_query()
        self._retries.end(
            once_more=self.once and self.state is RunnerState.ENDED and self.error is None
        )
        self._settle_at_end()
        self._heartbeat.end()
        self._mirror()
        self._let_go()

    def stop(self, patience_s: float) -> None:
        """End the query; a transaction in the middle is rolled back by its database."""
        self._asked_to_stop.set()
        self._stop_query()
        self.join(patience_s)

    def suspend(self) -> None:
        """End the query, and start none until `resume` gives the pipeline another Spark session."""
        self._suspended.set()
        self._stop_query()
        if self.state is not RunnerState.ENDED:
            self._wait_for("a new Spark session")

    def resume(self, spark: SparkSession, folder: Path) -> None:
        """Continue at the ledger in another Spark session."""
        self.spark, self._folder = spark, folder
        self._suspended.clear()

    def waiting_s(self) -> float:
        """For how long the pipeline has been waiting."""
        return time.monotonic() - self._waiting_since if self.state is RunnerState.WAITING else 0.0

    def _has_no_session(self) -> bool:
        return self._suspended.is_set() or self._is_lost()

    def _look(self) -> None:
        if self._has_no_session():
            return
        now, running = time.monotonic(), self._query
        if running is None:
            if now >= self._try_at:
                self._start()
            return
        self._absorb(running)
        if not running.isActive:
            self._over(running)
        elif now - self._checked >= CHECK_INTERVAL_S:
            self._checked = now
            self._check_log(self._check_ledger())
            if now - self._table_checked >= TABLE_CHECK_INTERVAL_S:
                self._table_checked = now
                self._check_table()
        if now - self._mirrored >= MIRROR_INTERVAL_S:
            self._mirrored = now
            self._mirror()

    # --- starting --------------------------------------------------------------------------------------

    def _start(self) -> None:
        """From the ledger: check the log, take an epoch, then read the ledger, then start the query where it says."""
        if self._target is None:
            target = inspection.inspect(self.name, self.pipeline)
        else:
            target = inspection.refuse_changed(self._target, self.pipeline)
        self._let_go()  # what was open may be a server or a file that is no longer the one there
        sink = self._look_at(target)
        with sink.translated():
            known = sink.ledger.positions()
        topic = self._believed(
            lambda: continuity.describe(self.cluster, self.name, self.pipeline.topic, known)
        )
        continuity.refuse_replaced(self.name, topic, known)
        begins = pending.begins(self.cluster, topic, self.pipeline, known)
        epoch, ledger = sink.ledger.take_epoch(
            Position(p, at, 0, topic.cluster_id, topic.id) for p, at in begins.items()
        )
        continuity.refuse_expired(self.cluster, self.name, topic, ledger)
        self._believed(lambda: continuity.refuse_diverged(self.cluster, self.name, topic, ledger))
        with sink.translated():
            applied = sink.ledger.applied_ranges()
        writer = batch.Writer(epoch, topic.cluster_id, topic.id, applied)
        self._settle(ledger)
        self._topic, self._target, self._epoch, self._ledger = topic, target, epoch, ledger
        self._lag.partitions = tuple(topic.partitions)
        self._checked = self._table_checked = time.monotonic()
        self._report_seen, self._applied = "", {}
        self._plan = task.TaskPlan(
            target, self.pipeline, writer, self.cluster.kafka, self.cluster.bootstrap
        )
        self._query = query.start(
            self.spark,
            self._plan,
            kafka=java_config(self.cluster.kafka, self.cluster.bootstrap),
            offsets={partition: position.next_offset for partition, position in ledger.items()},
            rows_max=self.pipeline.batch_rows_max,
            checkpoint=self._folder / f"checkpoint-{epoch}",
            once=self.once,
        )
        if self._suspended.is_set():  # while the query started: `suspend` did not see it
            self._stop_query()
            return
        self.state = RunnerState.RUNNING

    def _believed(self, check: Callable[[], Found]) -> Found:
        """A broker that has just started may not know its topics or their ends yet: believe it only when it says so again."""
        try:
            return check()
        except (errors.TopicGone, errors.LogDiverged):
            self._asked_to_stop.wait(DOUBT_S)
            return check()

    def _settle(self, ledger: Mapping[int, Position]) -> None:
        """Take the ledger's sums: what tasks of a failed query committed, it never reported."""
        now = {name: sum(at.totals.get(name, 0) for at in ledger.values()) for name in batch.TOTALS}
        if self._counted is None:
            self._counted = now
        self.progress.settle({name: now[name] - before for name, before in self._counted.items()})

    def _settle_at_end(self) -> None:
        """The same once more when the query is over, unless another run counts on in the same ledger by now."""
        waits_for_server = self.state is RunnerState.WAITING and not self._suspended.is_set()
        if self._counted is None or self._target is None or waits_for_server:
            return
        with contextlib.suppress(errors.InstepError):
            sink = self._look_at(self._target)
            with sink.translated():
                ledger = sink.ledger.positions()
            if all(position.epoch <= self._epoch for position in ledger.values()):
                self._settle(ledger)

    def _reported(self) -> tuple[int, str, str | None, str | None]:
        """Epoch, state, code of the error and detail, for the heartbeat."""
        state, error = self.state, self.error
        if state is not RunnerState.ENDED and not self._asked_to_stop.is_set():
            return (
                self._epoch,
                state.value,
                None,
                self.waiting_for if state is RunnerState.WAITING else None,
            )
        if error is None:
            return self._epoch, runs.STOPPED, None, None
        return self._epoch, runs.STOPPED, errors.code_of(error), error.what

    # --- watching --------------------------------------------------------------------------------------

    def _absorb(self, running: StreamingQuery) -> None:
        """Add what the query has reported since the last look."""
        reports = (
            running._jsq.recentProgress()
        )  # one call a report; the public property makes dozens
        fresh = []
        for index in range(len(reports) - 1, -1, -1):
            # by time, not by batch: an idle query reports under the number of the batch that is still to come
            if reports[index].timestamp() <= self._report_seen:
                break
            fresh.append(reports[index])
        for report in reversed(fresh):
            self._report_seen = report.timestamp()
            batch = progress.read(report.json(), self.pipeline.topic)
            self.progress.add(batch)
            self._applied |= batch.positions
            if batch.counts["records"]:
                self._failures = self._hopeless = 0

    def _over(self, ended: StreamingQuery) -> None:
        """The query is no longer active: done, or failed."""
        failure = ended.exception()
        self._absorb(ended)
        self._query = None
        if failure is None or self._asked_to_stop.is_set():
            self.state = RunnerState.ENDED
        else:
            ours = failures.read(str(failure))
            if ours is not None or not self._apply_unreadable():
                self._failed(ours or unexplained(failure))

    def _apply_unreadable(self) -> bool:
        """Whether there was what Spark cannot read: it is applied now, and the query starts again behind it."""
        assert self._plan is not None
        sink = self._look_at(self._plan.target)
        with sink.translated():
            ledger = sink.ledger.positions()
        found = False
        for partition, end, outcome in direct_reader.apply(self._plan, self.cluster, ledger):
            found = True
            self.progress.add(
                progress.Batch(task.counts(outcome), {partition: end}, {partition: end})
            )
        self.restarts += found
        return found

    def _look_at(self, target: Target) -> Sink:
        """The runner's own connection to the target; the tasks have theirs."""
        if self._sink is None:
            self._sink = sinks.open_sink(target)
        return self._sink

    def _let_go(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()

    def _check_ledger(self) -> dict[int, Position]:
        """A newer run, a rewind or an older backup is noticed also while there is nothing to apply; and a lost database."""
        assert self._target is not None
        sink = self._look_at(self._target)
        with sink.translated():
            ledger = sink.ledger.positions()
        newest = max((position.epoch for position in ledger.values()), default=0)
        if newest > self._epoch:
            raise transaction.fenced(self.name, newest, self._epoch)
        passed_over = self._passed_over(ledger)
        for partition in self._ledger:
            now = ledger.get(partition)
            if now is None or now.epoch < self._epoch or partition in passed_over:
                where = "is gone" if now is None else f"was moved to {now.next_offset}"
                raise errors.LedgerMoved(
                    f"the ledger of {self.name!r}, partition {partition}, {where}"
                )
        return ledger

    def _passed_over(self, ledger: dict[int, Position]) -> list[int]:
        """Partitions with records that the ledger has not, and that the query has behind it; transaction markers are none."""
        doubtful = {
            p: ledger[p].next_offset
            for p, end in self._applied.items()
            if p in ledger and ledger[p].next_offset < end
        }
        found = (
            offsets.first_records(self.cluster, self.pipeline.topic, doubtful) if doubtful else {}
        )
        return [
            partition
            for partition, record in found.items()
            if record and record.offset < self._applied[partition]
        ]

    def _check_table(self) -> None:
        """A unique key or a collation that was changed decides how rows have to be written, and refuses none by itself."""
        assert self._target is not None
        inspection.refuse_restrained(self._target, self.pipeline)

    def _check_log(self, ledger: dict[int, Position]) -> None:
        """The log may change under a query that reads on as if nothing had happened."""
        assert self._topic is not None
        topic = self._believed(
            lambda: continuity.describe(self.cluster, self.name, self.pipeline.topic, ledger)
        )
        if topic.id != self._topic.id:
            raise continuity.replaced(self.name, topic.name)
        # what was applied by the last check as well: since then a log that lost its end may have grown past it
        for known in (self._ledger, ledger) if ledger != self._ledger else (ledger,):
            self._believed(
                functools.partial(continuity.refuse_diverged, self.cluster, self.name, topic, known)
            )
        self._ledger = ledger
        if self.state is RunnerState.WAITING:
            self.state = RunnerState.RUNNING
        if time.monotonic() - self._failed_at > FORGET_AFTER_S:
            self._failures = self._hopeless = 0

    def _guarded(self, step: Callable[[], None]) -> None:
        spark = self.spark
        try:
            step()
        except errors.InstepError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - a thread that died unseen would leave a pipeline that only seems to run
            failure = failures.read(str(error)) or unexplained(error)
        else:
            return
        if (
            self.spark is spark
        ):  # else the session was replaced meanwhile, and the error is the old one's
            self._failed(failure)

    def _failed(self, error: errors.InstepError) -> None:
        """Wait and try again, for ever or a few times, or end: by the error's type."""
        if self._asked_to_stop.is_set() or self._has_no_session():
            return
        first_start = self.state is RunnerState.STARTING
        if isinstance(error, errors.DatabaseUnreachable):
            self._let_go()
        if isinstance(error, errors.Unreachable) and self._query is not None:
            self._wait_for(
                error.what
            )  # the query itself waits a while, and need not be started again if that is enough
            return
        self._stop_query()
        waits = isinstance(error, (errors.Unreachable, errors.StartAgain))
        # a topic that went in the middle of a look is looked for again by the start, which tells a stop from a doubt
        passing = (errors.Transient, errors.NotAuthorised, errors.TopicMissing)
        doubtful = type(error) is errors.InstepError or isinstance(error, passing)
        self._hopeless += doubtful
        self._failed_at = time.monotonic()
        if first_start or not (waits or doubtful) or self._hopeless >= DOUBTFUL_TRIES_MAX:
            lost = isinstance(error, errors.NotAuthorised) and not first_start
            self.error = (
                errors.AccessLost(error.what, f"{error.remedy}; then: instep run")
                if lost
                else error
            )
            self.state = RunnerState.ENDED
            return
        self._failures += 1
        self.restarts += 1
        self._try_at = time.monotonic() + min(
            BACKOFF_FIRST_S * 2 ** (self._failures - 1), BACKOFF_MAX_S
        )
        self._wait_for(error.what)

    def _wait_for(self, what: str) -> None:
        if self.state is not RunnerState.WAITING:
            self._waiting_since = time.monotonic()
        self.state = RunnerState.WAITING
        self.waiting_for = what

    def _stop_query(self) -> None:
        """Stop the query; when another thread is stopping it, wait for that."""
        with self._ending:
            running, self._query = self._query, None
            if running is not None:
                # it would not end in time, and the epoch keeps it harmless; or Spark is gone
                with contextlib.suppress(PySparkException, Py4JError, OSError):
                    running.stop()

    def _mirror(self) -> None:
        """Write the position to the pipeline's own consumer group, for the tools people have; never to another program's."""
        positions, group = dict(self.progress.positions), groups.mirror_name(self.name)
        if positions != self._mirror_shows and self.state is not RunnerState.WAITING:
            with contextlib.suppress(
                errors.InstepError
            ):  # a mirror is a courtesy: the ledger has the truth
                if time.monotonic() >= self._ask_owner_at:
                    groups.refuse_foreign(self.cluster, group, self.pipeline.topic, positions)
                    self._ask_owner_at = time.monotonic() + MIRROR_OWNER_INTERVAL_S
                groups.mirror(self.cluster, group, self.pipeline.topic, positions)
                self._mirror_shows = positions


def unexplained(failure: BaseException) -> errors.InstepError:
    """An error that is none of ours: Spark's own words, cut to what a person reads."""
    said = str(failure)
    if "No space left on device" in said:
        return errors.InstepError(
            f"no space left for Spark's temporary files below {tempfile.gettempdir()}",
            "free some space there, or set TMPDIR to a folder on another disk",
        )
    # what follows is the query's plan, or the JVM's stack
    lines = [
        line.strip()
        for line in re.split(r"=== Streaming Query ===|\n\s*at \S+\(", said)[0].splitlines()
    ]
    words = " ".join(filter(None, lines))[:400]
    return errors.InstepError(
        f"the query failed: {type(failure).__name__}: {words}",
        "run with --debug to see Spark's log",
    )
