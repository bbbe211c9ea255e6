"""`instep rewind`: move a pipeline's ledger to another place in the log, on purpose and with a plan.

The one way back after a named stop of the log. Works whether the pipeline runs or not: a task that comes afterwards finds the
ledger elsewhere than where its records begin, and the query starts again from there (`transaction.py`, step 1). The epoch
stays, so that the run which holds it goes on and older ones remain fenced.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

import msgspec

from instep import errors, settings, sinks
from instep.kafka import offsets, places
from instep.kafka.connection import Cluster
from instep.kafka.places import Place
from instep.pipeline import continuity
from instep.sinks import inspection
from instep.sinks.journal_entries import Action
from instep.sinks.ledger import AppliedRanges
from instep.sinks.sink import Sink
from instep.sinks.target import Decision, Position

TOPIC_CHARACTERS_MAX = 249


class LedgerMove(msgspec.Struct, frozen=True):
    """One partition: where it stands and where it goes. A place in another topic is no number to subtract, so it has no delta."""

    partition: int
    current: int | None
    new: int | None
    delta: int | None
    again: int = 0  # how many offsets of the log will be applied again
    asked: int | None = None  # the place that was asked for, where the log does not hold it
    passed_over: tuple[int, int] | None = None  # first and last record that will not be applied
    gone_before: int | None = None  # those of them below this offset are gone from the log
    diverged: str | None = None  # how it shows that the log is not the one that was applied


class RewindPlan(msgspec.Struct, frozen=True):
    """What a rewind would do; nothing is changed yet."""

    pipeline: str
    topic: str
    to: str
    new_topic: bool
    kept_as: str | None  # the name under which the places that collide are kept
    moves: list[LedgerMove]
    words: list[str]

    @property
    def needs_why(self) -> bool:
        return any(move.passed_over for move in self.moves)


class Prepared(msgspec.Struct, frozen=True):
    """A plan, with what carrying it out needs."""

    plan: RewindPlan
    ledger: dict[int, Position]
    rows: dict[int, Position]


def prepare(
    cluster: Cluster,
    name: str,
    pipeline: settings.Pipeline,
    place: Place,
    partitions: Collection[int] = (),
    *,
    accept_new_topic: bool = False,
) -> Prepared:
    """Plan the move of these partitions, or of all."""
    with _opened(name, pipeline) as sink, sink.translated():
        ledger = sink.ledger.positions()
    if not ledger:
        raise errors.SettingsError(
            f"pipeline {name!r} has no ledger yet: it begins where `start` in its settings says",
            f"set start, then: instep run {shlex.quote(name)}",
        )
    topic = continuity.describe(cluster, name, pipeline.topic, ledger)
    other = any(continuity.is_other(topic, position) for position in ledger.values())
    if not accept_new_topic:
        continuity.refuse_replaced(name, topic, ledger)
    elif partitions:
        raise errors.SettingsError(
            "--accept-new-topic moves every partition", "leave --partition out"
        )
    strange = sorted(set(partitions) - set(topic.partitions))
    if strange:
        raise errors.SettingsError(
            f"topic {topic.name!r} has no partition {', '.join(map(str, strange))}",
            f"it has {_listed(topic.partitions)}",
        )
    chosen = sorted(partitions or topic.partitions)
    found = places.resolve(cluster, topic.name, chosen, place)
    first = offsets.earliest(cluster, topic.name, chosen)
    end = offsets.latest(cluster, topic.name, chosen)
    known = (
        {}
        if other
        else {partition: ledger[partition] for partition in chosen if partition in ledger}
    )
    diverged = continuity.diverged(cluster, topic, known)
    before = {
        partition: found[partition] - 1
        for partition in chosen
        if found[partition] > first[partition]
    }
    digests = continuity.digests(cluster, topic, before)
    epoch = max(position.epoch for position in ledger.values())
    rows = {
        p: Position(p, found[p], epoch, topic.cluster_id, topic.id, digests.get(p)) for p in chosen
    }
    moves = [
        _move(p, found, (first[p], end[p]), known.get(p), diverged.get(p), ledger.get(p))
        for p in chosen
    ]
    moves += [
        LedgerMove(p, ledger[p].next_offset, None, None)
        for p in sorted(set(ledger) - set(topic.partitions))
    ]
    kept_as = _kept_as(topic.name, ledger, other) if other or diverged else None
    plan = RewindPlan(name, topic.name, str(place), other, kept_as, moves, [])
    return Prepared(msgspec.structs.replace(plan, words=list(_words(plan, pipeline))), ledger, rows)


def execute(
    name: str, pipeline: settings.Pipeline, prepared: Prepared, *, who: str, why: str | None
) -> None:
    """Carry the plan out in one transaction, or refuse it whole when the ledger has moved since."""
    plan = prepared.plan
    if plan.needs_why and not why:
        raise errors.SettingsError(
            "records would be passed over without being applied", "say why: --why TEXT"
        )
    with _opened(name, pipeline) as sink, sink.transaction():
        ledger = sink.ledger.positions(lock=True)
        if _places(ledger) != _places(prepared.ledger):
            raise errors.SettingsError(
                f"the ledger of {name!r} has moved since the plan was made: the pipeline is at work; nothing was changed",
                "do it again; stop the pipeline first if it never stands still",
            )
        sink.ledger.replace_applied_ranges(
            {} if plan.new_topic else _applied(sink.ledger.applied_ranges(), plan.moves, ledger),
        )
        for move in plan.moves:
            if plan.kept_as and (plan.new_topic or move.diverged):
                sink.journal.archive_positions(
                    plan.kept_as, move.partition, 0 if plan.new_topic else move.new or 0
                )
            _write(sink, move, prepared.rows.get(move.partition), ledger)
        sink.journal.add_decisions(
            (_decision(move, who, why) for move in plan.moves if _matters(move)), datetime.now(UTC)
        )


def _applied(
    before: AppliedRanges, moves: Collection[LedgerMove], ledger: Mapping[int, Position]
) -> AppliedRanges:
    """The stretches that were applied once the ledger has moved: of a log that diverged, only what it still holds."""
    after = {partition: list(ranges) for partition, ranges in before.items()}
    for move in filter(_matters, moves):
        row = ledger.get(move.partition)
        ranges = after.setdefault(move.partition, [])
        if row is not None:
            ranges.append((row.since_offset or 0, row.next_offset))
        if move.diverged or move.new is None:
            after[move.partition] = [(start, min(end, move.new or 0)) for start, end in ranges]
    return after


def _write(
    sink: Sink, move: LedgerMove, row: Position | None, ledger: Mapping[int, Position]
) -> None:
    if row is None:
        sink.ledger.remove(move.partition)
    elif move.partition in ledger:
        sink.ledger.move(row)
    else:
        sink.ledger.create(row)


def _move(
    partition: int,
    found: places.Resolved,
    held: tuple[int, int],
    known: Position | None,
    diverged: str | None,
    row: Position | None,
) -> LedgerMove:
    new, (first, end) = found[partition], held
    # a partition that the ledger does not know, or knows of another topic, would begin at its first record
    due = known.next_offset if known else first
    return LedgerMove(
        partition,
        row.next_offset if row else None,
        new,
        new - known.next_offset if known else None,
        max(0, min(known.next_offset, end) - new) if known else 0,
        found.clamped.get(partition),
        (due, new - 1) if new > due else None,
        first if new > due and first > due else None,
        diverged,
    )


def _matters(move: LedgerMove) -> bool:
    return move.delta != 0 or move.diverged is not None


def _decision(move: LedgerMove, who: str, why: str | None) -> Decision:
    """Its place is where the partition stood, if it is still the same log."""
    outcome = f"from {'nowhere' if move.current is None else move.current} to {'nowhere' if move.new is None else move.new}"
    same_log = move.delta is not None and not move.diverged
    place = (move.current if same_log else move.new) or 0
    return Decision(move.partition, place, Action.REWOUND.value, outcome, who, why)


def _kept_as(topic: str, ledger: Mapping[int, Position], other: bool) -> str:
    """The name for what was known of records that are no longer at their places: the old topic's id, or the moment, tells it."""
    mark = next(iter(ledger.values())).topic_id if other else f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
    return f"{topic[: TOPIC_CHARACTERS_MAX - len(mark) - 1]}~{mark}"


def _places(ledger: Mapping[int, Position]) -> dict[int, tuple[int, str]]:
    return {
        partition: (position.next_offset, position.topic_id)
        for partition, position in ledger.items()
    }


@contextmanager
def _opened(name: str, pipeline: settings.Pipeline) -> Iterator[Sink]:
    sink = sinks.open_sink(inspection.inspect(name, pipeline))
    try:
        yield sink
    finally:
        sink.close()


# --- words ---------------------------------------------------------------------------------------------


def _words(plan: RewindPlan, pipeline: settings.Pipeline) -> Iterator[str]:
    """What the plan means for the table."""
    ordered = pipeline.event.order is not None
    if plan.new_topic:
        yield "the topic is another one than the ledger knows: CURRENT are places in the old one"
        yield f"what is known of the old topic's events stays, under the topic name {plan.kept_as}"
        if ordered:
            yield (
                "the table keeps its order values: an event of the new topic whose order value is lower than the stored one"
                " will be stale"
            )
    for move in plan.moves:
        yield from _worded(plan, move)
    again = sum(move.again for move in plan.moves)
    if again:
        yield f"{_records(again)} will be applied again; the history keeps what it has of them"
        yield (
            "under the guard they change nothing that is newer"
            if ordered
            else "the pipeline has no order: documents will show older statuses until it has caught up"
        )
    if not any(map(_matters, plan.moves)):
        yield "nothing moves: every partition stands there already"


def _worded(plan: RewindPlan, move: LedgerMove) -> Iterator[str]:
    if move.new is None:
        yield f"partition {move.partition}: the topic does not have it any more, so its row goes from the ledger"
    if move.diverged:
        yield f"{move.diverged}: what is known of records from {move.new} on stays, under the topic name {plan.kept_as}"
        yield f"partition {move.partition}: choose a place before the loss: what the log has anew below {move.new} is not applied"
    if move.passed_over:
        start, last = move.passed_over
        gone = (
            f" ({start} to {min(last, move.gone_before - 1)} are gone from the log)"
            if move.gone_before
            else ""
        )
        lost = (
            f"{_records(last - start + 1)} lost to the table unless applied later (instep replay)"
        )
        yield f"partition {move.partition}: {start} to {last} will be passed over{gone}: {lost}"


def _records(count: int) -> str:
    """Offsets are not all records: transaction markers have some, and a compacted log lacks many."""
    return f"up to {count:,} record{'s' if count > 1 else ''}"


def _listed(partitions: Collection[int]) -> str:
    return ", ".join(map(str, sorted(partitions)))
