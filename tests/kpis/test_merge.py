"""Test the transaction of a KPI on every database, without Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from instep import errors
from instep.kpis.definition import KpiDefinition
from instep.pipeline.apply.batch import ProbeEvent
from instep.sinks import kpi_store
from instep.sinks.sink import Sink
from tests.support import kpis
from tests.support.databases import run_sql
from tests.support.kpi_merging import KpiRun, LogReader
from tests.support.kpis import NAME

Runs = Callable[..., KpiRun]


@pytest.fixture
def run() -> Iterator[Runs]:
    """Return a function that starts runs. End them at the end."""
    opened: list[Sink] = []

    def start(
        definition: KpiDefinition, probe: Callable[[ProbeEvent], None] = lambda _: None
    ) -> KpiRun:
        started = KpiRun(definition, probe)
        opened.append(started.sink)
        return started

    yield start
    for sink in opened:
        sink.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb", "mysql"])
def test_batches_of_any_size_make_the_rows_of_the_whole_log(
    kind: str, new_database: Callable[[str], str], run: Runs
) -> None:
    url = new_database(kind)
    records = kpis.log(seed=1, documents=25, wrong_clocks=True)
    definition = kpis.define(url, "t")
    log, one, chance = LogReader(definition, records), run(definition), random.Random(1)
    while reads := log.batch(one.positions, {0: chance.randint(1, 15), 1: chance.randint(1, 40)}):
        one.apply(reads)
        if chance.random() < 0.2:
            one = run(definition)  # another run takes over
    kpis.assert_same(kpis.table(url), kpis.model(records))
    kinds = {kind for _, kind, _ in kpis.table(url)}
    assert kinds == {"status", "duration", "too_late"}


def test_totals_say_what_became_of_the_records(
    new_database: Callable[[str], str], run: Runs
) -> None:
    url, records = new_database("sqlite"), kpis.log(seed=2)
    definition = kpis.define(url, "t")
    one = run(definition)
    one.apply(LogReader(definition, records).batch(one.positions, {0: 10**6, 1: 10**6}))

    totals = [position.totals for position in one.sink.ledger.positions().values()]
    assert sum(one["records"] for one in totals) == len(records)
    assert sum(one["dead"] + one["ignored"] for one in totals) == 4
    rows = kpis.table(url)
    late = sum(count for (_, kind, _), (count, *_) in rows.items() if kind == "too_late")
    counted = sum(count for (_, kind, _), (count, *_) in rows.items() if kind == "status")
    assert sum(one["stale"] for one in totals) == late
    assert sum(one["applied"] for one in totals) == counted


@pytest.mark.parametrize(
    ("kind", "step"), [*(("sqlite", step) for step in range(1, 10)), ("postgres", 8)]
)
def test_a_failure_at_any_step_leaves_all_or_nothing(
    kind: str, step: int, new_database: Callable[[str], str], run: Runs
) -> None:
    url, records = new_database(kind), kpis.log(seed=3, documents=8)
    definition = kpis.define(url, "t")
    failing = [step]

    def fail(event: ProbeEvent) -> None:
        if event.step in failing:
            failing.clear()
            raise errors.Transient("the answer was lost")

    one, log = run(definition, fail), LogReader(definition, records)
    reads = log.batch(one.positions, {0: 10, 1: 10})
    with pytest.raises(errors.Transient):
        one.apply(reads)
    before = kpis.table(url)
    one.apply(reads)  # after step 8 it was committed: nothing is counted twice
    assert (before == kpis.table(url)) is (step == 9)
    one = run(definition)
    one.apply(log.batch(one.positions, {0: 10**6, 1: 10**6}))
    kpis.assert_same(kpis.table(url), kpis.model(records))


def test_documents_are_forgotten(new_database: Callable[[str], str], run: Runs) -> None:
    url = new_database("sqlite")
    definition = kpis.define(url, "t")
    hours = [kpis.T0_MS + hour * 3_600_000 for hour in range(3)]
    records = [
        kpis.record(0, at, f"{document}-{at}", status="QUEUED", version=1, updated_at=at)
        for at in hours
        for document in ("A", "B")  # the second one confirms the jump to the next hour
    ]
    one, log = run(definition), LogReader(definition, records)
    while reads := log.batch(one.positions, {0: 1, 1: 1}):
        one.apply(reads)
    left = run_sql(url, "SELECT document FROM instep_kpi_documents ORDER BY document")
    assert left == [(f"A-{hours[2]}",), (f"B-{hours[2]}",)]


def test_an_older_run_is_fenced(new_database: Callable[[str], str], run: Runs) -> None:
    url, records = new_database("sqlite"), kpis.log(seed=4, documents=4)
    definition = kpis.define(url, "t")
    older, _newer = run(definition), run(definition)
    with pytest.raises(errors.Fenced):
        older.apply(LogReader(definition, records).batch(older.positions, {0: 5, 1: 5}))


def test_a_ledger_that_was_moved_back_starts_the_query_again(
    new_database: Callable[[str], str], run: Runs
) -> None:
    url, records = new_database("sqlite"), kpis.log(seed=4)
    definition = kpis.define(url, "t")
    one, log = run(definition), LogReader(definition, records)
    one.apply(log.batch(one.positions, {0: 5, 1: 5}))
    run_sql(url, "UPDATE instep_ledger SET next_offset = 2")
    with pytest.raises(errors.LedgerMoved):
        one.apply(log.batch(one.positions, {0: 5, 1: 5}))


def test_rows_that_were_counted_with_other_settings_are_not_changed(
    new_database: Callable[[str], str], run: Runs
) -> None:
    url, records = new_database("sqlite"), kpis.log(seed=4)
    definition = kpis.define(url, "t")
    one = run(definition)
    one.apply(LogReader(definition, records).batch(one.positions, {0: 5, 1: 5}))
    changed = kpis.define(url, "t", watermark_s=1_200)
    two = run(changed)
    with pytest.raises(errors.KpiChanged, match="--kpi print_kpis --fix"):
        two.apply(LogReader(changed, records).batch(two.positions, {0: 5, 1: 5}))
    assert kpi_store.check(url, NAME) == kpi_store.StoredKpi(definition.text, one_clock(url))


def one_clock(url: str) -> dict[int, kpi_store.ClockTimes]:
    stored = kpi_store.check(url, NAME)
    assert stored is not None
    return stored.clocks
