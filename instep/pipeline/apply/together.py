"""One transaction for a few records of several partitions.

At low rates a read brings one or two records of each partition. A transaction for each partition
would cost several times as much as one for all. It has the same steps (see `transaction.py`), each
for all partitions. Anything unusual rolls it back; then each partition is applied alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from instep import errors
from instep.document.decoding import Decoder
from instep.pipeline.apply import fast, rows
from instep.pipeline.apply.batch import BatchOutcome
from instep.pipeline.apply.transaction import BatchTransaction, TakenRecords
from instep.sinks.journal_entries import SpecialDocuments
from instep.sinks.sink import Sink


class NotTogether(Exception):
    """One of the partitions needs a separate transaction."""


def apply(
    batches: Sequence[BatchTransaction], sink: Sink, decoder: Decoder
) -> list[BatchOutcome] | None:
    """Apply the batches, in the order of their partitions, in one transaction.

    Return None, with nothing applied, if each batch has to be applied alone. That also holds after
    an error: applied alone, the batch that has it raises it again.
    """
    if sink.target.guarantee != "exactly-once":
        return None
    try:
        for one in batches:
            one.begin(sink, decoder)
        with sink.transaction():
            outcomes = _apply(batches, sink)
    except (NotTogether, fast.LateRows, errors.InstepError):
        return None
    _report(batches, 9)
    return outcomes


def _apply(batches: Sequence[BatchTransaction], sink: Sink) -> list[BatchOutcome]:
    """Do steps 1 to 7."""
    _report(batches, 1)
    positions, special = sink.lock([one.partition for one in batches])
    if len(positions) < len(batches):  # a new partition has no row yet
        raise NotTogether
    for one in batches:
        one.check_position(positions[one.partition])
    taken = [one.take(positions[one.partition]) for one in batches]
    _report(batches, 4)
    outcomes = _write_at_once(batches, taken, special)
    if outcomes is None:
        outcomes = [one.write(some) for one, some in zip(batches, taken, strict=True)]
    batches[0].check_topic()
    _report(batches, 7)
    moves = []
    for one, outcome in zip(batches, outcomes, strict=True):
        before = positions[one.partition]
        after = one.next_position(before, outcome)
        if after is not None:
            moves.append((before, after))
    sink.ledger.advance(moves)
    _report(batches, 8)
    return outcomes


def _write_at_once(
    batches: Sequence[BatchTransaction],
    taken: Sequence[TakenRecords],
    special: SpecialDocuments,
) -> list[BatchOutcome] | None:
    """Write all documents with one statement; return None if that is not possible.

    One after the other, the batches would get the same verdicts. The slow path tells events apart
    by their offsets, which are unique only within a partition.
    """
    sink = batches[0].sink
    if special.any_parked or any(some.already_applied for some in taken):
        return None
    events = [event for some in taken for event in some.events]
    verdicts = rows.write_fast(
        sink,
        events,
        any_deleted=special.any_deleted,
        at_step=lambda step: _report(batches, step),
    )
    if verdicts is None:
        return None
    ends = itertools.accumulate((len(some.events) for some in taken), initial=0)
    return [
        one.keep(some, verdicts[start:end])
        for one, some, (start, end) in zip(batches, taken, itertools.pairwise(ends), strict=True)
    ]


def _report(batches: Sequence[BatchTransaction], step: int) -> None:
    for one in batches:
        one.at(step)
