"""Test several tables in one transaction against a plain model of one event at a time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from instep.sinks.sink import Sink
from tests.support import further_lives
from tests.support.databases import run_sql
from tests.support.further_model import LIMIT, Change
from tests.support.further_tables import (
    CONFIGURATIONS,
    Configuration,
    expected,
    random_changes,
    records_of,
    stored,
)
from tests.support.transactions import apply

CHANGES = st.builds(
    Change,
    document=st.sampled_from("abc"),
    version=st.integers(0, 6),
    amount=st.sampled_from([1, 2, 3, LIMIT]),
    status=st.one_of(st.sampled_from(["NEW", "SENT"]), st.none()),
)
BATCHES = st.lists(st.lists(CHANGES, min_size=1, max_size=6), min_size=1, max_size=5)
SERVERS = ("postgres", "mariadb", "mysql")
# the configuration of each server that is not left to long runs
SHORT = {("postgres", 1), ("mariadb", 2), ("mysql", 3)}
# 2 and 3 only compute; 5 and 6 come once for each table
STEPS = (1, 4, 5, 6, 7, 8, 9)


class Writer:
    """A pipeline with three tables, and the number of records that it has read."""

    def __init__(self, url: str, configuration: Configuration) -> None:
        configuration.create(url)
        self.url, self.configuration = url, configuration
        self.sink: Sink = configuration.sink(url)
        self.offset, self.prefixes = 0, itertools.count()

    def check(self, batches: list[list[Change]]) -> None:
        """Apply batches to tables and model; compare the verdicts of each, then the tables."""
        model, prefix = self.configuration.model(), f"{next(self.prefixes)}-"
        for batch in batches:
            outcome = apply(self.sink, records_of(batch, self.offset, prefix))
            self.offset += len(batch)
            verdicts = [model.apply(change) for change in batch]
            assert {one.value: count for one, count in outcome.verdicts.items() if count} == {
                one: verdicts.count(one) for one in set(verdicts)
            }
        assert stored(self.url, prefix) == expected(model)


@pytest.fixture(params=range(len(CONFIGURATIONS)), scope="module")
def writer(
    request: pytest.FixtureRequest, shared_database: Callable[[str], str]
) -> Iterator[Writer]:
    opened = Writer(shared_database("sqlite"), CONFIGURATIONS[request.param])
    yield opened
    opened.sink.close()


@hypothesis_settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(batches=BATCHES)
def test_any_events_in_any_batches_equal_one_by_one(
    writer: Writer, batches: list[list[Change]]
) -> None:
    writer.check(batches)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        pytest.param(kind, number, marks=[] if (kind, number) in SHORT else [pytest.mark.long])
        for kind in SERVERS
        for number in range(len(CONFIGURATIONS))
    ],
)
def test_servers_equal_the_model(
    kind: str, number: int, new_database: Callable[[str], str]
) -> None:
    opened, dice = Writer(new_database(kind), CONFIGURATIONS[number]), random.Random(number)
    try:
        for _ in range(2 if (kind, number) in SHORT else 10):
            sizes = dice.choices([1, 3, 12], k=5)
            opened.check([random_changes(dice, size) for size in sizes])
    finally:
        opened.sink.close()


@pytest.mark.parametrize(
    ("kind", "number", "kills"),
    [
        ("sqlite", 0, 4),
        *(
            pytest.param(kind, number, 12, marks=pytest.mark.long)
            for kind in ("sqlite", *SERVERS)
            for number in range(len(CONFIGURATIONS))
        ),
    ],
)
def test_a_writer_that_is_killed_at_any_step_leaves_all_tables_in_step(
    kind: str, number: int, kills: int, new_database: Callable[[str], str]
) -> None:
    """Kill the process of the writer again and again; the last one writes the rest."""
    url, configuration = new_database(kind), CONFIGURATIONS[number]
    configuration.create(url)
    dice = random.Random(f"{kind} {number}")
    steps = [STEPS[(number + place) % len(STEPS)] for place in range(kills)]
    if kills < len(STEPS):
        steps = [6, 7, 8, 9]
    for step in steps:
        assert further_lives.live(url, number, kill=(step, dice.randint(1, 6)))
    assert not further_lives.live(url, number)
    changes, model = further_lives.log(number), configuration.model()
    verdicts = [model.apply(change) for change in changes]
    assert stored(url) == expected(model)
    sink = configuration.sink(url)
    try:
        position = sink.ledger.positions()[0]
    finally:
        sink.close()
    assert position.next_offset == position.totals["records"] == len(changes)
    assert {one: position.totals[one] for one in set(verdicts)} == {
        one: verdicts.count(one) for one in set(verdicts)
    }
    assert run_sql(url, "SELECT count(*) FROM instep_history") == [(len(changes),)]
