"""Test redrive: parked documents are released again, within the policy's limits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from instep import settings
from instep.document import reasons
from instep.kafka.connection import Cluster
from instep.operate import status
from instep.pipeline import metrics, retries, retry_policy
from instep.pipeline.apply import release
from instep.pipeline.progress import Progress
from instep.pipeline.retries import GAVE_UP_ALARM, Retries
from instep.pipeline.runner import Runner
from instep.sinks import ledger_reader
from instep.sinks.journal_entries import ParkedAttempts, Selection
from tests.support.databases import declare, run_sql
from tests.support.pipelines import following
from tests.support.quarantine import session
from tests.support.runs import event as published
from tests.support.runs import send
from tests.support.tables import BATCHES
from tests.support.transactions import Open, apply, begun, event, parked, table
from tests.support.waiting import wait_until

COLUMNS = {"print_status": "status", "print_version": "version", "batch": "batch"}
EVERY = timedelta(minutes=5)
POLICY: dict[str, Any] = {"reason": ["PARENT_MISSING"], "every": "5m", "attempts": 2}


def pipeline_of(url: str, **changes: Any) -> settings.Pipeline:
    redrive = {**POLICY, **changes}
    return declare(url, columns=COLUMNS, retry_parked_s=0, redrive=redrive)


class Redrive:
    """The redrive of one run: the test controls the clock."""

    def __init__(self, pipeline: settings.Pipeline) -> None:
        self.progress = Progress()
        [policy] = retry_policy.of_pipeline(pipeline)
        self._retries = Retries("contracts", pipeline, policy, lambda: 1, self.progress)
        self._start = datetime.now(UTC)

    def round(self, minutes: float) -> int:
        """Return how many documents are tried so much later."""
        return self._retries.round(self._start + timedelta(minutes=minutes))

    def close(self) -> None:
        self._retries._close()


def park(open_sink: Open, pipeline: settings.Pipeline, *documents: str) -> None:
    run_sql(pipeline.target, *BATCHES)
    sink = begun(open_sink(pipeline))
    apply(sink, [event(number, name, 1, batch="new") for number, name in enumerate(documents)])


def decided(url: str) -> list[Any]:
    return run_sql(
        url, "SELECT document, action, outcome, actor, reason FROM instep_decisions ORDER BY 1, 2"
    )


def test_a_document_is_tried_a_few_times_and_then_given_up(
    database_url: str, open_sink: Open
) -> None:
    pipeline = pipeline_of(database_url)
    park(open_sink, pipeline, "a", "b")
    run = Redrive(pipeline)
    assert run.round(4.9) == 0, "a document was tried before its time"
    assert run.round(5.1) == 2
    assert run.round(6) == 0
    assert run.progress.alarms == {}
    run.close()
    run_sql(database_url, "DELETE FROM instep_parked WHERE document = 'b'")
    restarted = Redrive(pipeline)
    assert restarted.round(10) == 0, "the restart forgot when the document was tried"
    assert restarted.round(10.2) == 1
    restarted.round(12)
    assert "gave up 1 parked document after 2 attempts" in restarted.progress.alarms[GAVE_UP_ALARM]
    assert restarted.progress.redriven == {"released": 0, "refused": 1}
    assert decided(database_url) == [
        ("a", "gave up", "PARENT_MISSING", "redrive", "gave up after 2 attempts")
    ]
    assert ledger_reader.given_up("contracts", pipeline) == 1
    run_sql(database_url, "INSERT INTO batch VALUES ('new')")
    assert restarted.round(100) == 0, "a document that was given up was tried again"
    with session(database_url, columns=COLUMNS) as at:
        release.release(at, "a", execute=True)
    restarted.round(200)
    assert restarted.progress.alarms == {}
    restarted.close()
    assert (table(database_url), parked(database_url)) == ([("a", "PRINTED", 1)], [])


def test_a_decision_that_a_crash_has_lost_is_kept_later(database_url: str, open_sink: Open) -> None:
    """Decide about documents whose last attempt was counted by a run that ended before it did."""
    pipeline = pipeline_of(database_url)
    park(open_sink, pipeline, "a", "b")
    crashed = Redrive(pipeline)
    crashed.round(5.1)
    crashed.round(10.2)
    crashed.close()
    run_sql(database_url, "DELETE FROM instep_decisions WHERE document = 'a'")
    restarted = Redrive(pipeline)
    restarted.round(12)
    assert [row[0] for row in decided(database_url)] == ["b"], "the attempt may still be running"
    restarted.round(16)
    restarted.round(18)
    restarted.close()
    gave_up = ("gave up", "PARENT_MISSING", "redrive", "gave up after 2 attempts")
    assert decided(database_url) == [("a", *gave_up), ("b", *gave_up)]


def test_two_runs_never_try_the_same_attempt(database_url: str, open_sink: Open) -> None:
    pipeline = pipeline_of(database_url)
    park(open_sink, pipeline, "a", "b")
    one, other = Redrive(pipeline), Redrive(pipeline)
    assert (one.round(0), other.round(0)) == (0, 0)  # both have scheduled them
    assert (one.round(5.5), other.round(5.6)) == (2, 0)
    assert other.round(10) == 0
    run_sql(database_url, "INSERT INTO batch VALUES ('new')")
    assert (other.round(10.6), one.round(10.7)) == (2, 0)
    one.close()
    other.close()
    assert [row[:4] for row in decided(database_url)] == [
        ("a", "released", "applied", "redrive"),
        ("b", "released", "applied", "redrive"),
    ]


def test_the_rate_limits_a_second(new_database: Callable[[str], str], open_sink: Open) -> None:
    pipeline = pipeline_of(new_database("sqlite"), rate=2)
    park(open_sink, pipeline, "a", "b", "c", "d", "e")
    run = Redrive(pipeline)
    assert [run.round(6 + second / 60) for second in range(4)] == [2, 2, 1, 0]
    run.close()


def test_what_an_operator_does_wins(new_database: Callable[[str], str], open_sink: Open) -> None:
    url = new_database("sqlite")
    pipeline = pipeline_of(url)
    park(open_sink, pipeline, "a", "b")
    run = Redrive(pipeline)
    run.round(0)
    run_sql(url, "INSERT INTO batch VALUES ('new')")
    with session(url, columns=COLUMNS) as at:
        release.release(at, "a", execute=True)
        [head] = at.sink.journal.parked_heads(Selection())
        assert not at.sink.journal.claim_attempt(head.position, 2, head.since)
    assert run.round(5.5) == 1
    run.close()
    assert [row[3] for row in decided(url)] == ["ann", "redrive"]


def test_late_rows_are_first_left_to_the_other_policy() -> None:
    pipeline = declare("sqlite:///contracts.db", missing="park", redrive=POLICY)
    [_, policy] = retry_policy.of_pipeline(pipeline)
    start = datetime(2026, 11, 1, tzinfo=UTC)
    late, tried = ParkedAttempts(start), ParkedAttempts(start, 1, start + 4 * EVERY)
    reason = reasons.Reason.PARENT_MISSING
    assert policy.first_due(reason, late, start) == start + timedelta(minutes=15)
    assert policy.first_due(reason, tried, start) == start + 5 * EVERY
    texts = [
        retry_policy.outlook(pipeline, reason, one, start + timedelta(minutes=minutes)).describe()
        for one, minutes in ((late, 1), (tried, 20), (ParkedAttempts(start, 2, start), 20))
    ]
    assert texts == [
        "until 2026-11-01T00:15:00Z",
        "up to 2 times, next 2026-11-01T00:25:00Z",
        "gave up after 2 attempts",
    ]


def test_the_settings_know_every_reason_for_parking() -> None:
    known = set(get_args(settings.ParkingReason))
    assert known == {one.value for one in reasons.PARKS - {reasons.Reason.WAITS_BEHIND}}


def test_a_run_redrives_and_says_what_it_gave_up(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Callable[..., Runner],
    monkeypatch: Any,
) -> None:
    for name in ("START_PAUSE_S", "INTERVAL_S"):
        monkeypatch.setattr(retries, name, 0.2)
    url = new_database("postgres")
    run_sql(url, *BATCHES, "INSERT INTO batch VALUES ('new')")
    pipeline = following(
        url, topic, columns=COLUMNS, retry_parked_s=0, redrive={**POLICY, "every": "1s"}
    )
    run = runner(pipeline)
    send(cluster, topic, published("lost", 1, batch="never"), published("a", 1, batch="later"))
    wait_until(lambda: len(parked(url)) == 2, "both documents to be parked")
    run_sql(url, "INSERT INTO batch VALUES ('later')")
    wait_until(lambda: ("a", "PRINTED", 1) in table(url), "the document to be released")
    wait_until(lambda: bool(run.progress.alarms), "the other one to be given up")
    found = status.read(cluster, "contracts", pipeline)
    assert found.given_up == 1
    assert found.notes == [run.progress.alarms[GAVE_UP_ALARM]]
    registry = CollectorRegistry()
    registry.register(metrics.Pipelines([run]))
    exposed = generate_latest(registry).decode()
    assert 'instep_given_up_documents{pipeline="contracts"} 1.0' in exposed
    assert 'instep_redrives_total{outcome="released",pipeline="contracts"} 1.0' in exposed
