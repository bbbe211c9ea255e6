"""Records of several partitions in one transaction have the effect of one transaction each."""

from __future__ import annotations

import random
from typing import Any

import pytest

from instep.document.decoding import Decoder, Record
from instep.document.guard import Verdict
from instep.pipeline.apply import together
from instep.pipeline.apply.batch import BatchOutcome, ProbeEvent, Writer
from instep.pipeline.apply.transaction import BatchTransaction
from instep.sinks.sink import Sink
from tests.support.databases import declare, open_sink, run_sql
from tests.support.transactions import (
    WRITER,
    Crash,
    Open,
    apply,
    begun,
    event,
    log_holds_nothing,
    record,
    table,
)

__all__ = ["open_sink"]

PARTITIONS = 3


def batch(partition: int, records: list[Record], **options: Any) -> BatchTransaction:
    writer = options.pop("writer", WRITER)
    return BatchTransaction(writer, partition, records, log_holds_nothing, **options)


def apply_together(
    sink: Sink, read: dict[int, list[Record]], **options: Any
) -> list[BatchOutcome] | None:
    batches = [batch(partition, records, **options) for partition, records in sorted(read.items())]
    return together.apply(batches, sink, Decoder(sink.target.mapping))


def contents(url: str) -> dict[str, list[Any]]:
    """Return everything that a transaction writes, but for times."""
    part, offset = (
        ("`partition`", "`offset`") if url.startswith("m") else ('"partition"', '"offset"')
    )
    place = f"{part}, {offset}"
    return {
        "table": table(url),
        "history": run_sql(
            url,
            f"SELECT {place}, document, order_value, verdict FROM instep_history ORDER BY {place}",
        ),
        "dead": run_sql(url, f"SELECT {place}, reason FROM instep_dead_letters ORDER BY {place}"),
        "parked": run_sql(url, f"SELECT {place}, document FROM instep_parked ORDER BY {place}"),
        "ledger": run_sql(
            url,
            f"SELECT {part}, next_offset, last_digest, totals FROM instep_ledger ORDER BY {part}",
        ),
    }


def random_reads(seed: int) -> list[dict[int, list[Record]]]:
    """Return reads of a few records: fresh, stale and repeated events, deletes, bad records.

    A document is in any partition, as after a topic was given more of them.
    """
    chance = random.Random(seed)
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    reads = []
    for _ in range(25):
        read: dict[int, list[Record]] = {}
        for partition in chance.sample(range(PARTITIONS), chance.randint(1, PARTITIONS)):
            for _ in range(chance.randint(1, 3)):
                number, document = offsets[partition], f"d{chance.randint(0, 5)}"
                offsets[partition] += chance.choice([1, 1, 1, 2])  # a marker takes an offset
                made = event(number, document, chance.randint(1, 30))
                match chance.randint(0, 19):
                    case 0:
                        made = record(number, document, None)
                    case 1:
                        made = record(number, document, b"{")
                read.setdefault(partition, []).append(made)
        reads.append(read)
    return reads


@pytest.mark.parametrize("seed", range(3))
def test_the_effect_is_that_of_one_transaction_each(
    database_url: str, new_database: Any, open_sink: Open, seed: int
) -> None:
    other_url = new_database("sqlite")
    sink = begun(open_sink(declare(database_url)), PARTITIONS)
    alone = begun(open_sink(declare(other_url)), PARTITIONS)
    shared = 0
    for read in random_reads(seed):
        outcomes = apply_together(sink, read)
        if outcomes is None:
            outcomes = [apply(sink, read[partition], partition) for partition in sorted(read)]
        else:
            shared += 1
        assert [(one.partition, one.verdicts, one.dead) for one in outcomes] == [
            (one.partition, one.verdicts, one.dead)
            for one in (apply(alone, read[partition], partition) for partition in sorted(read))
        ]
    assert contents(database_url) == contents(other_url)
    assert shared > 0


def test_new_documents_of_several_partitions_share_a_transaction(
    database_url: str, open_sink: Open
) -> None:
    sink = begun(open_sink(declare(database_url)), PARTITIONS)
    steps: list[ProbeEvent] = []
    read = {part: [event(0, f"a{part}", 1), event(1, f"b{part}", 1)] for part in range(PARTITIONS)}
    outcomes = apply_together(sink, read, probe=steps.append)
    assert outcomes is not None
    assert [one.verdicts[Verdict.APPLIED] for one in outcomes] == [2] * PARTITIONS
    assert len(table(database_url)) == 2 * PARTITIONS
    for partition in range(PARTITIONS):
        assert [one.step for one in steps if one.partition == partition] == list(range(1, 10))


def test_one_refused_row_leaves_nothing_and_each_is_applied_alone(
    database_url: str, open_sink: Open
) -> None:
    sink = begun(open_sink(declare(database_url)), 2)
    index = "CREATE UNIQUE INDEX one_version ON contract_document (print_version)"
    run_sql(database_url, index)  # after the pipeline has looked at the table
    before = contents(database_url)
    read = {0: [event(0, "a", 1)], 1: [event(0, "b", 1)]}
    assert apply_together(sink, read) is None
    assert contents(database_url) == before


@pytest.mark.parametrize("step", range(1, 9))
def test_a_crash_at_any_step_leaves_nothing(database_url: str, open_sink: Open, step: int) -> None:
    sink = begun(open_sink(declare(database_url)), 2)
    before = contents(database_url)

    def crash(at: ProbeEvent) -> None:
        if (at.step, at.partition) == (step, 1):
            raise Crash

    read = {0: [event(0, "a", 1)], 1: [event(0, "b", 1)]}
    with pytest.raises(Crash):
        apply_together(sink, read, probe=crash)
    assert contents(database_url) == before
    assert apply_together(sink, read) is not None


def test_what_needs_its_own_transaction_is_not_applied_together(
    database_url: str, open_sink: Open
) -> None:
    sink = begun(open_sink(declare(database_url)), 2)
    read = {0: [event(0, "a", 1)], 1: [event(0, "b", 1)]}
    newer = Writer(epoch=2, cluster_id="c", topic_id="t")
    older = Writer(epoch=0, cluster_id="c", topic_id="t")
    before = contents(database_url)
    for writer in (newer, older):
        assert apply_together(sink, read, writer=writer) is None
    assert apply_together(sink, {**read, 2: [event(0, "c", 1)]}) is None, "it has no row yet"
    assert contents(database_url) == before


def test_records_that_are_applied_already_are_dropped(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)), 2)
    apply(sink, [event(0, "a", 1), event(1, "a", 2)], 0)
    read = {0: [event(0, "a", 1), event(1, "a", 2)], 1: [event(0, "b", 1)]}
    outcomes = apply_together(sink, read)
    assert outcomes is not None
    assert [one.records for one in outcomes] == [0, 1]
    assert table(database_url) == [("a", "PRINTED", 2), ("b", "PRINTED", 1)]


def test_prepared_statements_survive_a_rollback_to_a_savepoint(
    new_database: Any, open_sink: Open
) -> None:
    sink = begun(open_sink(declare(new_database("postgres"))), 2)
    assert apply_together(sink, {0: [event(0, "a", 1)], 1: [event(0, "b", 1)]}) is not None
    with sink.transaction():
        for number in range(8):  # the driver itself would prepare what it runs often
            sink.connection.select("SELECT %s::int8", (number,))
        with sink.savepoint(keep=False):
            sink.connection.select("SELECT %s::int8", (8,))
    assert apply_together(sink, {0: [event(1, "a", 2)], 1: [event(1, "b", 2)]}) is not None


def test_weaker_guarantees_have_transactions_of_their_own(
    database_url: str, open_sink: Open
) -> None:
    sink = begun(open_sink(declare(database_url, guarantee="at-least-once")), 2)
    assert apply_together(sink, {0: [event(0, "a", 1)], 1: [event(0, "b", 1)]}) is None
