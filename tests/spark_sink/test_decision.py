"""Test which batches are applied, against a plain model of what a query may do."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep import errors
from instep.sinks.batches import StoredBatch, StoredSink
from instep.spark_sink import decision
from instep.spark_sink.decision import BatchStep, IncomingBatch

QUERY, OTHER = "q1", "q2"


class Model:
    """A sink that keeps every batch, and says in plain words what is right."""

    def __init__(self) -> None:
        self.stored = StoredSink()
        self.applied: dict[int, StoredBatch] = {}
        self.runs: dict[str, int] = {}

    def expected(self, batch: IncomingBatch) -> BatchStep | type[errors.NamedStop]:
        newest = max(self.runs.values(), default=0)
        if self.runs.get(batch.run_id, newest) < newest:
            return errors.Fenced
        if not self.applied:
            return BatchStep.APPLY
        if batch.query_id != self.stored.query_id:
            return errors.CheckpointReplaced
        last = max(self.applied)
        if batch.batch_id > last:
            follows = batch.batch_id == last + 1 and self._begins_at_the_end_of(last, batch)
            return BatchStep.APPLY if follows else errors.BatchesMissing
        before = self.applied.get(batch.batch_id)
        is_known = before is not None and before.offsets == batch.offsets
        return BatchStep.SKIP if is_known else errors.BatchDiffers

    def _begins_at_the_end_of(self, last: int, batch: IncomingBatch) -> bool:
        before = self.applied[last].offsets
        if before is None or batch.offsets is None:
            return True
        return bool(msgspec.json.decode(before)[1] == msgspec.json.decode(batch.offsets)[0])

    def decide(self, batch: IncomingBatch) -> BatchStep | type[errors.NamedStop]:
        """Do what the merge does, with the functions under test."""
        try:
            run_epoch = self.runs.get(batch.run_id)
            epoch = decision.epoch_of("orders", self.stored, run_epoch)
            step = decision.decide("orders", self.stored, batch, self.applied.get)
        except errors.NamedStop as stop:
            return type(stop)
        self.runs[batch.run_id] = epoch
        batch_id = self.stored.batch_id
        if step is BatchStep.APPLY:
            self.applied[batch.batch_id] = StoredBatch(batch.offsets, batch.digest)
            batch_id = batch.batch_id
        self.stored = StoredSink(batch.query_id, batch_id, epoch)
        return step


INCOMING = st.builds(
    IncomingBatch,
    query_id=st.sampled_from([QUERY, QUERY, QUERY, OTHER]),
    run_id=st.sampled_from(["r1", "r2", "r3"]),
    batch_id=st.integers(0, 4),
    digest=st.just("0:0"),
    offsets=st.sampled_from([decision.planned(start, end) for start in "ab" for end in "ab"]),
)


@given(st.lists(INCOMING, max_size=12))
def test_every_sequence_of_batches_is_treated_as_the_model_says(
    batches: list[IncomingBatch],
) -> None:
    model = Model()
    for batch in batches:
        expected = model.expected(batch)

        assert model.decide(batch) == expected


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
