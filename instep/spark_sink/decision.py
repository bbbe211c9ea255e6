"""Whether a micro-batch is applied, skipped or refused: a pure function of what is stored.

Spark repeats a batch whose end it did not record: after a crash, a failed commit, or if the last
file of its commit log is lost. It never changes the id of a batch, nor its offsets, unless the
checkpoint was replaced or two drivers use the same one. So:

1. A run that is not known yet takes the next epoch. A run with an older epoch than the stored one
   is fenced.
2. A sink that has applied no batch begins with the first one of a query, number 0. A later one is
   refused: those before it are in another database, or under another name.
3. A batch of another query is refused: its ids mean nothing here.
4. A batch that follows the stored one is applied. If the offsets of both are known, it must begin
   where the stored one ended: with two drivers, the checkpoint's file may be the other one's.
5. A batch that was applied before is skipped if it is the same one: by its planned offsets and the
   number of its rows if both are known, else by the digest of its rows. If it is not the same, it
   is refused. The number of rows is compared because the offsets of some sources, such as files,
   only count what the checkpoint lists.
6. A batch beyond the next one is refused: what lies between was never applied here.

A sink that an operator has adopted applies the next batch, whichever it is, and begins there.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import StrEnum

import msgspec

from instep import errors
from instep.sinks.batches import StoredBatch, StoredSink


class BatchStep(StrEnum):
    """What to do with a batch."""

    APPLY = "apply"
    SKIP = "skip"


class IncomingBatch(msgspec.Struct, frozen=True):
    """A micro-batch as Spark announces it."""

    query_id: str
    run_id: str
    batch_id: int
    digest: str
    offsets: str | None = None


def planned(start: str, end: str) -> str:
    """Return the offsets at which a batch begins and ends, as they are kept."""
    return msgspec.json.encode([start, end]).decode()


def epoch_of(sink: str, stored: StoredSink, run_epoch: int | None) -> int:
    """Return the epoch of a run; raise Fenced if a newer run has written since."""
    if run_epoch is None:
        return stored.epoch + 1
    if run_epoch < stored.epoch:
        raise errors.Fenced(
            f"a newer run of the query writes to sink {sink!r}:"
            f" epoch {stored.epoch} is newer than {run_epoch}",
            "the newer run continues, and nothing is lost; end it if this one should continue",
        )
    return run_epoch


def decide(
    sink: str,
    stored: StoredSink,
    batch: IncomingBatch,
    kept: Callable[[int], StoredBatch | None],
) -> BatchStep:
    """Return whether to apply a batch; raise a named stop if neither is right.

    `kept` returns what is known of a batch that was applied.
    """
    if stored.is_adopted:
        return BatchStep.APPLY
    if stored.query_id is None or stored.batch_id is None:
        _refuse_late_start(sink, batch)
        return BatchStep.APPLY
    if batch.query_id != stored.query_id:
        raise errors.CheckpointReplaced(
            f"sink {sink!r} has batch {stored.batch_id} of query {stored.query_id},"
            f" but this is batch {batch.batch_id} of query {batch.query_id}",
            "if both queries write to the table, give each sink a name of its own: `name`;"
            " if the checkpoint was replaced on purpose, let the sink accept the new query:"
            f" {_adopt(sink)}; then start it again",
        )
    if batch.batch_id > stored.batch_id + 1:
        raise errors.BatchesMissing(
            f"sink {sink!r} has batch {stored.batch_id}, but the query is at {batch.batch_id}",
            "if the database was restored from a backup, restore the checkpoint of that time;"
            " or accept that the rows between are missing:"
            f" {_adopt(sink)}",
        )
    if batch.batch_id == stored.batch_id + 1:
        _refuse_gap(sink, batch, kept(stored.batch_id))
        return BatchStep.APPLY
    if _is_same(batch, kept(batch.batch_id)):
        return BatchStep.SKIP
    raise errors.BatchDiffers(
        f"sink {sink!r} has applied batch {batch.batch_id} of query {batch.query_id},"
        " and now it comes again with other rows",
        "see that only one query uses the checkpoint, and that the query is deterministic;"
        " to apply the batch in addition to what is applied:"
        f" {_adopt(sink)}",
    )


def _refuse_late_start(sink: str, batch: IncomingBatch) -> None:
    """Raise if the first batch of a sink is not the first one of its query."""
    if batch.batch_id > 0:
        raise errors.BatchesMissing(
            f"sink {sink!r} has applied no batch in this database,"
            f" but the query is at {batch.batch_id}",
            "see that `url` and `name` are those of the earlier runs; if the database was restored"
            " from a backup, restore the checkpoint of that time; or accept that the sink begins"
            f" with this batch: {_adopt(sink)}",
        )


def _refuse_gap(sink: str, batch: IncomingBatch, before: StoredBatch | None) -> None:
    """Raise if a batch does not begin where the one before it ended."""
    if batch.offsets is None or before is None or before.offsets is None:
        return
    start, end = _places(batch.offsets)[0], _places(before.offsets)[1]
    if start != end:
        raise errors.BatchesMissing(
            f"sink {sink!r} has batch {batch.batch_id - 1} up to {end},"
            f" but batch {batch.batch_id} begins at {start}",
            "two queries have used the checkpoint; end one of them. Then delete the last file of"
            " `commits` in the checkpoint, so that Spark repeats the batch before, and let the sink"
            f" accept it: {_adopt(sink)}",
        )


def _adopt(sink: str) -> str:
    return f"instep sink adopt {shlex.quote(sink)} --url URL --execute"


def _places(offsets: str) -> tuple[str, str]:
    return msgspec.json.decode(offsets, type=tuple[str, str])


def _is_same(batch: IncomingBatch, kept: StoredBatch | None) -> bool:
    if kept is None:
        return False
    if batch.offsets is not None and kept.offsets is not None:
        return batch.offsets == kept.offsets and _rows(batch.digest) == _rows(kept.digest)
    return batch.digest == kept.digest


def _rows(digest: str) -> str:
    """Return the number of rows, with which a digest begins."""
    return digest.partition(":")[0]
