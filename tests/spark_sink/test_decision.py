"""Test which batches are applied, against a plain account of what the table contains."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep import errors
from instep.sinks.batches import ANY_QUERY, StoredBatch, StoredSink
from instep.spark_sink import decision
from instep.spark_sink.decision import BatchStep, IncomingBatch

QUERY, OTHER = "q1", "q2"


@dataclass(frozen=True)
class Database:
    """A database with a sink: what instep keeps in it, and what its table really contains.

    `contents` are the batches whose rows are in the table since somebody vouched for it: the
    operator who created it empty, or who adopted it. `vouched_from` is the first batch that an
    adopted sink took, and None while it has taken none.
    """

    stored: StoredSink = field(default_factory=StoredSink)
    runs: tuple[str, ...] = ()  # in the order in which they wrote first
    contents: tuple[IncomingBatch, ...] = ()
    is_adopted: bool = False

    def right(self, batch: IncomingBatch) -> BatchStep | type[errors.NamedStop]:
        """Return what must become of a batch, so that no row is lost or written twice."""
        if batch.run_id in self.runs and batch.run_id != self.runs[-1]:
            return errors.Fenced
        if any(one.query_id != batch.query_id for one in self.contents):
            return errors.CheckpointReplaced
        same_id = [one for one in self.contents if one.batch_id == batch.batch_id]
        if same_id:
            return BatchStep.SKIP if same_id[0].offsets == batch.offsets else errors.BatchDiffers
        there = {one.batch_id for one in self.contents}
        if there and batch.batch_id < min(there):
            return errors.BatchDiffers  # behind an adopted sink: nobody knows its rows
        first = min(there) if there else 0
        if self.is_adopted and not there:
            first = batch.batch_id
        if set(range(first, batch.batch_id)) - there:
            return errors.BatchesMissing
        before = [one for one in self.contents if one.batch_id == batch.batch_id - 1]
        if before and _places(before[0])[1] != _places(batch)[0]:
            return errors.BatchesMissing
        return BatchStep.APPLY

    def after(self, batch: IncomingBatch) -> tuple[Database, BatchStep | type[errors.NamedStop]]:
        """Do what the merge does, with the functions under test."""
        epochs = {run: number for number, run in enumerate(self.runs, start=1)}
        kept = {one.batch_id: StoredBatch(one.offsets, one.digest) for one in self.contents}
        try:
            epoch = decision.epoch_of("orders", self.stored, epochs.get(batch.run_id))
            step = decision.decide("orders", self.stored, batch, kept.get)
        except errors.NamedStop as stop:
            return self, type(stop)
        runs = self.runs if batch.run_id in self.runs else (*self.runs, batch.run_id)
        stored = msgspec.structs.replace(self.stored, epoch=epoch)
        if step is BatchStep.SKIP:
            return replace(self, stored=stored, runs=runs), step
        stored = StoredSink(batch.query_id, batch.batch_id, epoch)
        return replace(self, stored=stored, runs=runs, contents=(*self.contents, batch)), step

    def adopted(self) -> Database:
        """Do what `instep sink adopt` does."""
        stored = StoredSink(ANY_QUERY, None, self.stored.epoch)
        return replace(self, stored=stored, contents=(), is_adopted=True)


def _places(batch: IncomingBatch) -> list[str]:
    assert batch.offsets is not None
    return list(msgspec.json.decode(batch.offsets))


INCOMING = st.builds(
    IncomingBatch,
    query_id=st.sampled_from([QUERY, QUERY, QUERY, OTHER]),
    run_id=st.sampled_from(["r1", "r2", "r3"]),
    batch_id=st.integers(0, 4),
    digest=st.just("0:0"),
    offsets=st.sampled_from([decision.planned(start, end) for start in "ab" for end in "ab"]),
)
# Beside batches: a backup is made, it is restored, and the sink is adopted.
STEPS = st.lists(st.one_of(INCOMING, st.sampled_from(["backup", "restore", "adopt"])), max_size=14)


@given(STEPS)
def test_every_sequence_of_batches_leaves_a_table_without_gaps(
    steps: list[IncomingBatch | str],
) -> None:
    database = backup = Database()
    for step in steps:
        if step == "backup":
            backup = database
        elif step == "restore":
            database = backup
        elif step == "adopt":
            database = database.adopted()
        elif isinstance(step, IncomingBatch):
            right = database.right(step)
            database, done = database.after(step)

            assert done == right
        ids = [one.batch_id for one in database.contents]
        first = ids[0] if ids and database.is_adopted else 0
        assert ids == list(range(first, first + len(ids)))


@pytest.mark.parametrize("batch_id", [1, 57])
def test_a_sink_that_has_applied_nothing_begins_with_the_first_batch(batch_id: int) -> None:
    batch = IncomingBatch(QUERY, "r1", batch_id, "0:0")

    with pytest.raises(errors.BatchesMissing, match="no batch in this database") as caught:
        decision.decide("orders and lines", StoredSink(), batch, lambda _: None)
    assert "instep sink adopt 'orders and lines' --url URL --execute" in caught.value.remedy
    adopted = StoredSink(ANY_QUERY)
    assert decision.decide("orders", adopted, batch, lambda _: None) is BatchStep.APPLY


@pytest.mark.parametrize(
    ("kept", "incoming", "is_same"),
    [
        (StoredBatch("a", "1:x"), ("a", "1:y"), True),  # the planned offsets decide
        (StoredBatch("a", "1:x"), ("a", "2:y"), False),  # with the number of rows
        (StoredBatch("a", "1:x"), ("b", "1:x"), False),
        (StoredBatch("a", "1:x"), (None, "1:x"), True),  # unless one of them is not known
        (StoredBatch(None, "1:x"), ("a", "1:y"), False),
        (None, ("a", "1:x"), False),  # too old: Spark keeps a hundred batches, and so does the sink
    ],
)
def test_a_batch_that_comes_again_is_compared_by_offsets_else_by_its_rows(
    kept: StoredBatch | None, incoming: tuple[str | None, str], is_same: bool
) -> None:
    offsets, digest = incoming
    batch = IncomingBatch(QUERY, "r1", 3, digest, offsets)
    stored = StoredSink(QUERY, 5, 1)

    if is_same:
        assert decision.decide("orders", stored, batch, lambda _: kept) is BatchStep.SKIP
        return
    with pytest.raises(errors.BatchDiffers):
        decision.decide("orders", stored, batch, lambda _: kept)
