"""Test loads beside events: in every sequence the newer one wins, as in a plain model."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from instep import sinks
from instep.document.decoding import Record
from instep.pipeline.apply.batch import Writer
from instep.pipeline.apply.load import LoadTransaction, RowBatch, RowDecoder, load_target
from instep.sinks import inspection, preparation
from instep.sinks.sink import Sink
from instep.sinks.target import Position
from tests.support.databases import declare, run_sql
from tests.support.transactions import apply, begun, event, is_blocked, record
from tests.support.waiting import wait_until

DOCUMENTS = "abcd"
TOO_LONG = "S" * 300
OWN_TABLES = ("instep_history", "instep_parked", "instep_deleted", "instep_ledger", "instep_loads")
# document, version (None: a delete), status
Step = tuple[str, int | None, str]
STEP = st.tuples(
    st.sampled_from(DOCUMENTS),
    st.one_of(st.integers(1, 5), st.integers(1, 5), st.none()),
    st.sampled_from(["A", "B", "C", TOO_LONG]),
)
LOADED = st.tuples(st.sampled_from(DOCUMENTS), st.integers(1, 5), st.sampled_from("XYZ"))
SEQUENCE = st.lists(
    st.one_of(
        st.tuples(st.just("events"), st.lists(STEP, min_size=1, max_size=4)),
        st.tuples(st.just("load"), st.lists(LOADED, min_size=1, max_size=4)),
    ),
    max_size=6,
)
# what each check of the optimistic sequence finds
BROUGHT_AND_DELETED = ("events", [("a", 3, "A"), ("a", None, "A")])
DELETED_BEFORE = ("events", [("a", None, "A")])
PARKED_BEFORE = ("events", [("a", 1, TOO_LONG)])
LOADED_LATE = ("load", [("a", 2, "X"), ("b", 1, "X")])


class LoadModel:
    """The table as a dictionary, changed by one event or one row at a time."""

    def __init__(self, *, ordered: bool) -> None:
        self.ordered = ordered
        self.rows: dict[str, tuple[str, int | None]] = {}
        self.deleted: dict[str, int] = {}
        self.read: set[str] = set()
        self.deletes_read: set[str] = set()
        self.parked: dict[str, int] = {}
        self.verdicts: list[str] = []

    def event(self, document: str, version: int | None, status: str) -> str:
        self.read.add(document)
        if version is None:
            self.deletes_read.add(document)
        if document in self.parked:
            return self._park(document)
        return self._apply(document, version, status)

    def load(self, document: str, version: int, status: str) -> str:
        is_known = document in self.rows or document in self.deleted
        if self.ordered:
            if document in self.deletes_read and not is_known:
                return "stale"
        elif document in self.read or document in self.rows or document in self.parked:
            return "stale"
        if document in self.parked:
            return self._park(document)
        return self._apply(document, version, status)

    def _apply(self, document: str, version: int | None, status: str) -> str:
        known = self.rows.get(document, (None, self.deleted.get(document)))[1]
        if version is None:
            row = self.rows.pop(document, None)
            if self.ordered and row is not None and row[1] is not None:
                self.deleted[document] = row[1]
            return "ignored" if row is None else "applied"
        if self.ordered and known is not None and version <= known:
            return "repeated" if version == known else "stale"
        if status == TOO_LONG:
            return self._park(document)
        self.rows[document] = status, version
        return "applied"

    def _park(self, document: str) -> str:
        self.parked[document] = self.parked.get(document, 0) + 1
        return "parked"


class Side:
    """The same table in a database, with the sink of the pipeline and that of a load."""

    def __init__(self, url: str, *, ordered: bool) -> None:
        order = {"order": "version"} if ordered else {}
        pipeline = declare(
            url,
            event={"document": "doc_id", "status": "status", **order},
            columns={
                "print_status": "status",
                "print_version": {"field": "version", "type": "bigint"},
            },
        )
        preparation.prepare(pipeline)
        self.url, self.topic = url, pipeline.topic
        target = inspection.inspect("contracts", pipeline)
        self.sink = sinks.open_sink(target)
        self.load_sink = sinks.open_sink(load_target(target, 1))
        self.decoder = RowDecoder(target.mapping)
        self.clear()

    def clear(self) -> None:
        run_sql(
            self.url,
            *(f"DELETE FROM {name}" for name in (*OWN_TABLES, "contract_document")),
        )
        begun(self.sink, 2)
        self.epoch, _ = self.load_sink.ledger.take_epoch([Position(0, 1, 0, "", "digest")])
        self._offsets, self._numbers = itertools.count(), itertools.count(1)
        self.load_sink.table.expect_late_rows(0)
        self.sink.table.expect_late_rows(0)

    def events(self, steps: list[Step]) -> None:
        records = [
            record(next(self._offsets), document, None)
            if version is None
            else event(next(self._offsets), document, version, status)
            for document, version, status in steps
        ]
        apply(self.sink, records)

    def load(self, rows: list[tuple[str, int, str]]) -> LoadTransaction:
        records = [
            Record(next(self._numbers), -1, document.encode(), one.value, -1)
            for document, version, status in rows
            for one in [event(0, document, version, status)]
        ]
        work = LoadTransaction(
            Writer(self.epoch, "", "digest"), self.topic, 1, RowBatch(records, self.decoder)
        )
        work.apply_rows(self.load_sink)
        return work

    def rows(self) -> dict[str, tuple[str, int | None]]:
        found = run_sql(
            self.url, "SELECT doc_no, print_status, print_version FROM contract_document"
        )
        return {document: (status, version) for document, status, version in found}

    def parked(self) -> dict[str, int]:
        return dict(
            run_sql(self.url, "SELECT document, count(*) FROM instep_parked GROUP BY document")
        )

    def verdicts(self) -> list[str]:
        return [row[0] for row in run_sql(self.url, "SELECT verdict FROM instep_history")]

    def close(self) -> None:
        self.sink.close()
        self.load_sink.close()


@pytest.fixture
def side(request: pytest.FixtureRequest, new_database: Callable[[str], str]) -> Iterator[Side]:
    kind, ordered = request.param
    opened = Side(new_database(kind), ordered=ordered)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "side",
    [("sqlite", True), ("sqlite", False), ("postgres", True), ("mariadb", True)],
    indirect=True,
    ids=lambda given: f"{given[0]}-{'ordered' if given[1] else 'log order'}",
)
def test_loads_and_events_leave_what_the_model_says(side: Side, request: Any) -> None:
    ordered = side.sink.target.rules.ordered

    @settings(max_examples=40 if "sqlite" in request.node.name else 15)
    @example(sequence=[BROUGHT_AND_DELETED, LOADED_LATE])
    @example(sequence=[DELETED_BEFORE, LOADED_LATE])
    @example(sequence=[PARKED_BEFORE, LOADED_LATE])
    @given(sequence=SEQUENCE)
    def compare(sequence: list[tuple[str, list[Any]]]) -> None:
        side.clear()
        model = LoadModel(ordered=ordered)
        for kind, steps in sequence:
            if kind == "events":
                side.events(steps)
                model.verdicts += [model.event(*step) for step in steps]
            else:
                side.load(steps)
                model.verdicts += [model.load(*step) for step in steps]
        assert side.rows() == model.rows
        assert side.parked() == model.parked
        assert sorted(side.verdicts()) == sorted(model.verdicts)

    compare()


@pytest.mark.parametrize(
    "side", [("postgres", True), ("mariadb", True)], indirect=True, ids=["postgres", "mariadb"]
)
def test_a_load_and_a_task_wait_for_each_other(side: Side, request: Any) -> None:
    kind = "postgres" if "postgres" in request.node.name else "mariadb"
    side.events([("a", 3, "A")])
    with side.sink.transaction():
        side.sink.ledger.positions(lock=True)
        waiting = threading.Thread(target=side.load, args=([("a", 2, "X"), ("b", 1, "X")],))
        waiting.start()
        wait_until(lambda: is_blocked(side.url, kind), "the load to wait for the task")
        side.sink.connection.execute("DELETE FROM contract_document")
    waiting.join()
    assert side.rows() == {"a": ("X", 2), "b": ("X", 1)}
    with side.load_sink.transaction():
        side.load_sink.ledger.positions(lock=True)  # only that of the load
        side.events([("b", 2, "A")])
    assert side.rows()["b"] == ("A", 2)


@pytest.mark.parametrize(
    "side", [("postgres", True), ("mariadb", True)], indirect=True, ids=["postgres", "mariadb"]
)
def test_the_newest_wins_while_both_write(side: Side) -> None:
    """Load versions 1 and 3 of each document; events bring versions 2 and 4 to half of them."""
    names = [f"d{n:03}" for n in range(200)]
    failed: list[BaseException] = []

    def follow(sink: Sink, partition: int) -> None:
        try:
            offsets = itertools.count()
            for version in (2, 4):
                for start in range(0, 50, 10):
                    mine = names[partition::2][start : start + 10]
                    apply(
                        sink,
                        [event(next(offsets), name, version, "E") for name in mine],
                        partition,
                    )
        except BaseException as error:
            failed.append(error)

    sinks_of_tasks = [sinks.open_sink(side.sink.target) for _ in range(2)]
    tasks = [
        threading.Thread(target=follow, args=(sink, partition))
        for partition, sink in enumerate(sinks_of_tasks)
    ]
    for task in tasks:
        task.start()
    for version in (1, 3):
        for start in range(0, 200, 20):
            side.load([(name, version, "L") for name in names[start : start + 20]])
    for task in tasks:
        task.join()
    for sink in sinks_of_tasks:
        sink.close()
    assert failed == []
    followed = {*names[0::2][:50], *names[1::2][:50]}
    assert side.rows() == {name: ("E", 4) if name in followed else ("L", 3) for name in names}
    assert side.parked() == {}
    loads = run_sql(side.url, "SELECT count(*) FROM instep_history WHERE topic = 'load:1'")
    assert loads == [(400,)]
