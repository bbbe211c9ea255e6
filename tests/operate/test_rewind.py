"""Test `instep rewind`: its plan, its refusals, the ledger, and records that are read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from instep import errors
from instep.document.decoding import Decoder, Record
from instep.kafka import offsets, places, topics
from instep.kafka.connection import Cluster
from instep.operate import rewind
from instep.pipeline.apply import transaction
from instep.pipeline.apply.batch import Writer
from instep.sinks import preparation
from instep.sinks.sink import Sink
from instep.sinks.target import Position
from tests.support.databases import declare, open_sink, run_sql
from tests.support.producing import IN_ORDER
from tests.support.transactions import apply, begun, event, record, table

__all__ = ["open_sink"]

Open = Callable[..., Sink]


def started(cluster: Cluster, topic: str, sink: Sink, next_offsets: dict[int, int]) -> None:
    """Write twelve records to partition 0, and a ledger with these positions."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    for number in range(12):
        producer.produce(topic, partition=0, key=b"d", value=str(number).encode())
    assert producer.flush(30) == 0
    found = topics.describe(cluster, topic)
    sink.ledger.take_epoch(
        Position(p, offset, 0, found.cluster_id, found.id) for p, offset in next_offsets.items()
    )


def test_a_rewind_is_planned_and_executed(
    database_url: str, open_sink: Open, cluster: Cluster, topic: str
) -> None:
    pipeline = declare(database_url, topic=topic)
    sink = open_sink(pipeline)
    with pytest.raises(errors.SettingsError, match="no ledger yet"):
        rewind.prepare(cluster, "contracts", pipeline, places.FromStart())
    started(cluster, topic, sink, {0: 5, 1: 0})

    back = rewind.prepare(cluster, "contracts", pipeline, places.Offset(2), [0])
    [move] = back.plan.moves
    assert (move.current, move.new, move.delta, move.reapplied, move.skipped) == (5, 2, -3, 3, None)
    assert any("up to 3 records will be applied again" in words for words in back.plan.notes)
    assert any("from overwriting newer values" in words for words in back.plan.notes)
    rewind.execute("contracts", pipeline, back, actor="tester", reason=None)
    stood = sink.ledger.positions()[0]
    found = offsets.first_records(cluster, topic, {0: 1})[0]
    assert found is not None
    assert stood.last_digest == transaction.digest(
        Record(1, found.timestamp_ms, found.key, found.value)
    )
    assert (stood.next_offset, stood.epoch) == (2, 1)

    ahead = rewind.prepare(cluster, "contracts", pipeline, places.Offset(99))
    first, second, third = ahead.plan.moves
    assert (first.new, first.clamped_from, first.skipped) == (12, 99, (2, 11))
    assert (second.new, second.delta, third.current, third.new) == (0, 0, None, 0)
    assert any(
        "partition 0: 2 to 11 will be skipped: up to 10 records missing" in words
        for words in ahead.plan.notes
    )
    with pytest.raises(errors.SettingsError, match="skipped"):
        rewind.execute("contracts", pipeline, ahead, actor="tester", reason=None)
    rewind.execute("contracts", pipeline, ahead, actor="tester", reason="known to be void")
    assert {partition: row.next_offset for partition, row in sink.ledger.positions().items()} == {
        0: 12,
        1: 0,
        2: 0,
    }
    decided = run_sql(
        database_url, "SELECT action, outcome, reason, actor FROM instep_decisions ORDER BY outcome"
    )
    assert ("rewound", "from 2 to 12", "known to be void", "tester") in decided
    assert ("rewound", "from 5 to 2", None, "tester") in decided


def test_invalid_rewinds_are_refused(
    new_database: Callable[[str], str], open_sink: Open, cluster: Cluster, topic: str
) -> None:
    pipeline = declare(new_database("sqlite"), topic=topic)
    sink = open_sink(pipeline)
    started(cluster, topic, sink, {0: 5, 1: 0, 2: 0})
    with pytest.raises(errors.SettingsError, match="no partition 7"):
        rewind.prepare(cluster, "contracts", pipeline, places.FromStart(), [7])
    with pytest.raises(errors.SettingsError, match="every partition"):
        rewind.prepare(
            cluster, "contracts", pipeline, places.FromStart(), [0], accept_new_topic=True
        )
    prepared = rewind.prepare(cluster, "contracts", pipeline, places.FromEnd())
    commit(sink, 6)
    with pytest.raises(errors.SettingsError, match="has moved since the plan"):
        rewind.execute("contracts", pipeline, prepared, actor="tester", reason="skip")
    assert sink.ledger.positions()[0].next_offset == 6
    stays = rewind.prepare(cluster, "contracts", pipeline, places.Offset(6), [0])
    assert stays.plan.notes == ["nothing moves: every partition is already there"]
    assert json.loads(msgspec.json.encode(stays.plan))["moves"][0]["delta"] == 0


def commit(sink: Sink, next_offset: int) -> None:
    """Move the ledger of partition 0, as a running pipeline does."""
    before = sink.ledger.positions()[0]
    with sink.transaction():
        sink.ledger.advance([(before, msgspec.structs.replace(before, next_offset=next_offset))])


def test_a_running_pipeline_is_moved_to_a_place_behind_it(
    database_url: str, open_sink: Open, cluster: Cluster, topic: str
) -> None:
    """The plan stays true while the pipeline commits, and the decision says from where it moved."""
    pipeline = declare(database_url, topic=topic)
    sink = open_sink(pipeline)
    started(cluster, topic, sink, {0: 5, 1: 0, 2: 0})
    back = rewind.prepare(cluster, "contracts", pipeline, places.Offset(2), [0])
    commit(sink, 9)
    rewind.execute("contracts", pipeline, back, actor="tester", reason=None)
    assert sink.ledger.positions()[0].next_offset == 2
    assert sink.ledger.applied_ranges() == {0: [(5, 9)]}
    [(outcome,)] = run_sql(database_url, "SELECT outcome FROM instep_decisions")
    assert outcome == "from 9 to 2"


@pytest.mark.parametrize(
    ("planned", "now", "new", "stays"),
    [
        (5, 5, 9, True),
        (5, 7, 2, True),
        (5, 7, 5, True),
        (5, 7, 6, False),
        (5, 4, 2, False),
        (None, 3, 0, False),
        (None, None, 0, True),
    ],
)
def test_only_a_place_behind_the_ledger_stays_what_was_planned(
    planned: int | None, now: int | None, new: int, stays: bool
) -> None:
    assert rewind.stays(planned, now, new) is stays


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("history", [True, False])
def test_repeated_records_change_and_quarantine_nothing(
    database_url: str, open_sink: Open, ordered: bool, history: bool
) -> None:
    """Read applied, parked, waiting, dead and skipped records again: nothing is decided twice."""
    changes: dict[str, Any] = (
        {} if ordered else {"event": {"document": "doc_id", "status": "status"}}
    )
    transitions = {"CREATED": ["QUEUED"], "QUEUED": ["PRINTED"], "PRINTED": []}
    preparation.prepare(declare(database_url))
    sink = begun(
        open_sink(declare(database_url, history=history, transitions=transitions, **changes))
    )
    log = [
        event(0, "a", 1, "CREATED"),
        event(1, "a", 2, "QUEUED"),
        event(2, "b", 1, "CREATED"),
        event(3, "a", 3, "PRINTED"),
        event(4, "b", 2, "PRINTED"),
        event(5, "b", 3, "QUEUED"),
        record(6, "c", b"{"),
        event(7, "d", 1, "CREATED"),
        record(8, "d", None),
    ]
    apply(sink, log)
    kept = ("instep_history", "instep_dead_letters", "instep_parked", "instep_deleted")
    before = [
        table(database_url),
        *(run_sql(database_url, f"SELECT * FROM {name}") for name in kept),
    ]
    assert [row[0] for row in before[0]] == ["a", "b"]
    assert len(before[2]) == 1
    assert len(before[3]) == 2
    with sink.transaction():
        sink.ledger.move(
            msgspec.structs.replace(sink.ledger.positions(lock=True)[0], next_offset=0)
        )
    steps: list[int] = []
    # a move forward passed the last offset, so that event waits behind as well
    again = Writer(1, "c", "t", {0: [(0, 9)]})
    work = transaction.BatchTransaction(
        again,
        0,
        [*log, event(9, "b", 4, "PRINTED")],
        lambda *_: False,
        lambda at: steps.append(at.step),
    )
    outcome = work.apply(sink, Decoder(sink.target.mapping))
    assert steps.count(1) == 1, "the batch was refused at first, and written with care"
    assert outcome.dead == 0
    waiting = run_sql(database_url, "SELECT count(*) FROM instep_parked")
    assert waiting == [(3,)], "the new event waits behind, and no old one"
    quoted = "`offset`" if database_url.startswith("m") else '"offset"'
    run_sql(
        database_url,
        *(f"DELETE FROM {name} WHERE {quoted} = 9" for name in ("instep_parked", "instep_history")),
    )
    assert [
        table(database_url),
        *(run_sql(database_url, f"SELECT * FROM {name}") for name in kept),
    ] == before


def test_only_applied_events_count_as_applied(
    database_url: str, open_sink: Open, cluster: Cluster, topic: str
) -> None:
    """Start at the log's end, move ahead by mistake and back: the skipped part never counts."""
    pipeline = declare(database_url, topic=topic)
    sink = open_sink(pipeline)
    started(cluster, topic, sink, {0: 5})

    def move(to: int) -> None:
        prepared = rewind.prepare(cluster, "contracts", pipeline, places.Offset(to), [0])
        rewind.execute("contracts", pipeline, prepared, actor="tester", reason="by mistake")

    def advance(to: int) -> None:
        before = sink.ledger.positions()[0]
        with sink.transaction():
            after = msgspec.structs.replace(before, next_offset=to, last_digest=None)
            sink.ledger.advance([(before, after)])

    move(0)
    assert sink.ledger.applied_ranges() == {}, "it began at 5, and has applied nothing"
    advance(3)
    move(10)
    assert sink.ledger.applied_ranges() == {0: [(0, 3)]}
    advance(12)
    move(1)
    assert sink.ledger.applied_ranges() == {0: [(0, 3), (10, 12)]}
    advance(11)
    move(0)
    assert sink.ledger.applied_ranges() == {0: [(0, 12)]}


@pytest.mark.parametrize("history", [True, False])
def test_a_repeated_delete_keeps_a_row_created_after_it(
    database_url: str, open_sink: Open, history: bool
) -> None:
    sink = begun(open_sink(declare(database_url, history=history)))
    log = [
        event(0, "a", 1),
        record(1, "a", None),
        event(2, "a", 5, "MADE AGAIN"),
        event(3, "b", 1),
        record(4, "b", None),
    ]
    apply(sink, log)
    with sink.transaction():
        sink.ledger.move(
            msgspec.structs.replace(sink.ledger.positions(lock=True)[0], next_offset=0)
        )
    apply(sink, log, writer=Writer(1, "c", "t", {0: [(0, 5)]}))
    assert table(database_url) == [("a", "MADE AGAIN", 5)]
