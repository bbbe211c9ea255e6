"""Test a pipeline's status: its lag to the end of the log, what blocks it, and its run's state."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from instep.kafka.connection import Cluster
from instep.kafka.offsets import Span
from instep.operate import status
from instep.pipeline import counts, progress_text, reporter
from instep.pipeline.engine import Report
from instep.pipeline.monitors import HELD_AFTER_S, HeldBack
from instep.pipeline.progress import Progress
from instep.pipeline.runner import RunnerState
from instep.reconcile.report import ReconcileVerdict
from instep.sinks import ledger_reader
from instep.sinks.runs import FRESHNESS_MAX_S, Run
from tests.support.databases import run_sql
from tests.support.open_transaction import hanging_transaction
from tests.support.pipelines import Prove, drained, following
from tests.support.runs import Run as Start
from tests.support.runs import event, rows, send
from tests.support.waiting import wait_until

NOW = datetime(2026, 11, 16, 10, tzinfo=UTC)


def test_an_open_transaction_hides_nothing(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Start, prove: Prove
) -> None:
    """Count acknowledged records behind the transaction as lag everywhere, and fail the proof."""
    url = new_database("sqlite")
    pipeline = following(url, topic)
    send(cluster, topic, *(event(f"a{n}", 1) for n in range(9)))
    run = runner(pipeline)
    wait_until(lambda: len(rows(url)) == 9, "the first records")
    with hanging_transaction(cluster.bootstrap, topic, (b"h", b"{}"), partition=0):
        send(cluster, topic, *(event(f"b{n}", 1) for n in range(60)))
        wait_until(lambda: bool(run.progress.held_by), "the open transaction to be named")
        # the other partitions have their own transactions, and a separate thread measures the lag
        wait_until(
            lambda: _holds_all(status.read(cluster, "contracts", pipeline)),
            "everything else to be applied",
        )
        found = status.read(cluster, "contracts", pipeline)
        assert found.held_back == found.lag_records
        assert (found.held_back or 0) > 1
        wait_until(
            lambda: run.progress.lag == run.progress.held_back == found.held_back,
            "the lag to be measured",
        )
        [note] = found.notes
        assert note.startswith(f"{found.held_back} records behind an open transaction since 20")
        assert note.endswith(", partition 0")
        [holder] = found.open_transactions
        assert f"producer id {holder.producer_id}, transactional id 'hangs-{topic}'" in note
        assert (
            f"lag {found.lag_records} ({found.held_back} behind an open transaction)"
            in reporter.line(run)
        )
        report, _ = prove(pipeline)
        assert (report.verdict, report.in_step, report.held_back) == (
            ReconcileVerdict.HELD_BACK,
            False,
            found.held_back,
        )
        assert report.notes == [note]
        run_sql(url, "DELETE FROM contract_document WHERE doc_no = 'a0'")
        assert prove(pipeline)[0].verdict is ReconcileVerdict.NOT_IN_STEP
        run_sql(url, "INSERT INTO contract_document (doc_no) VALUES ('a0')")
    wait_until(lambda: len(rows(url)) == 69, "what was held back")
    wait_until(lambda: run.progress.lag == 0 and not run.progress.held_by, "the lag to be gone")
    assert status.read(cluster, "contracts", pipeline).lag_records == 0


def _holds_all(found: status.PipelineStatus) -> bool:
    """Return whether everything that still waits is behind the open transaction."""
    return found.held_back == found.lag_records


def test_the_state_of_a_run(database_url: str, topic: str, cluster: Cluster, runner: Start) -> None:
    pipeline = following(database_url, topic)

    def found() -> status.RunStatus:
        read = status.read(cluster, "contracts", pipeline)
        assert read.error is None
        assert read.run is not None
        return read.run

    run = runner(pipeline)
    wait_until(lambda: found().state == "running", "the heartbeat")
    now = found()
    assert (now.host, now.pid, now.epoch) == (socket.gethostname(), os.getpid(), 1)
    assert now.description.startswith("running since 20")
    run.stop(60)
    # a separate thread writes it
    wait_until(lambda: found().state == "stopped", "the last heartbeat")
    assert found().code is None
    run_sql(database_url, "UPDATE instep_ledger SET topic_id = 'another'")
    failed = runner(pipeline)
    wait_until(lambda: failed.state is RunnerState.ENDED, "the stop")
    wait_until(lambda: found().code == "TOPIC_REPLACED", "the last heartbeat")
    assert " with TOPIC_REPLACED: " in found().description


def known(state: str, silent_s: float = 1.0, **changes: Any) -> Run:
    return Run(
        **{
            "run": "r",
            "epoch": 3,
            "host": "alpha",
            "pid": 7,
            "started_at": NOW - timedelta(hours=2),
            "state": state,
            "heartbeat_at": NOW - timedelta(seconds=silent_s),
            "state_at": NOW - timedelta(hours=1),
            "code": None,
            "detail": None,
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (None, "never run"),
        (known("running"), "running since 2026-11-16T08:00:00Z on alpha, pid 7"),
        (
            known("waiting", detail="no broker answers"),
            "waiting since 2026-11-16T09:00:00Z on alpha, pid 7: no broker answers",
        ),
        (
            known("running", 60),
            "presumed dead: no heartbeat since 2026-11-16T09:59:00Z (on alpha, pid 7)",
        ),
        (known("stopped", 9_000), "stopped at 2026-11-16T09:00:00Z"),
        (
            known("stopped", 9_000, code="TOPIC_GONE", detail="topic 't' was deleted"),
            "stopped at 2026-11-16T09:00:00Z with TOPIC_GONE: topic 't' was deleted",
        ),
    ],
)
def test_states_in_words(run: Run | None, words: str) -> None:
    assert status.run_status(run, NOW).description == words


def test_a_short_transaction_does_not_count_as_held_back() -> None:
    held = HeldBack()
    assert held.see({0: Span(0, 9, 5, None)}, {0: 5}, 0.0) == {}
    assert held.see({0: Span(0, 12, 9, None)}, {0: 9}, HELD_AFTER_S) == {}  # another transaction
    assert held.see({0: Span(0, 14, 9, None)}, {0: 9}, HELD_AFTER_S * 2) == {0: 5}
    assert held.see({0: Span(0, 15, 15, None)}, {0: 15}, HELD_AFTER_S * 3) == {}
    assert held.see({0: Span(0, 16, 15, None)}, {0: 15}, HELD_AFTER_S * 3) == {}


def test_lag_is_known_before_the_query_reports() -> None:
    nothing = dict.fromkeys(counts.NAMES, 0)
    done = Progress()
    assert progress_text.lag(done) == "not known yet"
    done.begin({0: 5, 1: 0}, {0: 9, 1: 3})
    assert done.lag == 7
    done.add(Report({**nothing, "records": 4, "applied": 4}, {0: 9}, {0: 9}))
    assert (done.lag, done.positions) == (3, {0: 9})
    done.see_ends({0: 11, 1: 3})
    assert done.lag == 5
    done.held_back = 2
    assert progress_text.lag(done) == "5 (2 behind an open transaction)"
    done.settle({"records": 6, "applied": 3, "dead": 1})
    assert (done.totals["records"], done.totals["applied"], done.totals["dead"]) == (6, 4, 1)
    starting = SimpleNamespace(name="contracts", state=RunnerState.STARTING, progress=done)
    assert reporter.line(starting) == "contracts: starting, lag 5 (2 behind an open transaction)"


def test_a_report_may_arrive_while_another_thread_computes_the_rate() -> None:
    done, nothing = Progress(), dict.fromkeys(counts.NAMES, 0)

    class Interrupted(dict[str, int]):
        """Counts that are read just when the next report arrives."""

        def __getitem__(self, name: str) -> int:
            done.add(Report({**nothing, "applied": 1}, {}, {}))
            return super().__getitem__(name)

    for _ in range(2):
        done.add(Report(Interrupted({**nothing, "applied": 1}), {}, {}))
    assert done.rate() == 2
    assert done.freshness_s(0.5) is None


def test_the_figures_of_a_minute_are_those_since_the_last_one() -> None:
    done, nothing = Progress(), dict.fromkeys(counts.NAMES, 0)
    done.begin({0: 0}, {0: 9})
    done.add(Report({**nothing, "applied": 5, "bucket_0": 5}, {0: 4}, {0: 9}))
    before = dict(done.totals)
    last = len(counts.FRESHNESS_BOUNDS_S)
    done.add(Report({**nothing, "applied": 3, f"bucket_{last}": 3}, {0: 7}, {0: 9}))
    minute = done.minute(before, 60.0, is_running=True)
    assert (minute.lag, minute.applied_per_s) == (2, 0.05)
    assert minute.freshness_p50_s == minute.freshness_p99_s == FRESHNESS_MAX_S
    rest = done.minute(done.totals, 60.0, is_running=False)
    assert (rest.lag, rest.applied_per_s, rest.freshness_p50_s) == (None, 0.0, None)


def test_the_ledger_holds_totals(
    database_url: str, topic: str, cluster: Cluster, runner: Start
) -> None:
    """Check that totals are stored with the position, whatever the guarantee."""
    send(cluster, topic, event("a", 1), event("a", 1), event("b", 1), (b"c", b"{"))
    for guarantee in ("exactly-once", "at-least-once", "at-most-once"):
        pipeline = following(database_url, topic, guarantee=guarantee)
        drained(runner(pipeline, guarantee, once=True))
        totals = [at.totals for at in ledger_reader.ledger(guarantee, pipeline).values()]
        sums = {
            name: sum(one.get(name, 0) for one in totals) for name in ("records", "applied", "dead")
        }
        applied = 2 if guarantee == "exactly-once" else 0  # the rows exist already
        assert sums == {"records": 4, "applied": applied, "dead": 1}, guarantee
