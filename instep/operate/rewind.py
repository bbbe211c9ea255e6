"""`instep rewind`: move a pipeline's ledger to another place in the log, after showing a plan.

This is how a pipeline continues after a named stop that concerns the log. It works whether the
pipeline runs or not: the next task finds that its records do not begin at the ledger's position,
and the flow restarts from there (`transaction.py`, step 1). The epoch stays the same, so the
current run continues and older ones remain fenced.
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


# The keys of the JSON output, where they differ from the names of the fields.
MOVE_KEYS = {
    "reapplied": "again",
    "clamped_from": "asked",
    "skipped": "passed_over",
    "expired_before": "gone_before",
}
PLAN_KEYS = {"archived_as": "kept_as", "notes": "words"}


class LedgerMove(msgspec.Struct, frozen=True, rename=MOVE_KEYS):
    """The move of one partition. It has no delta if the topic is a new one."""

    partition: int
    current: int | None
    new: int | None
    delta: int | None
    reapplied: int = 0  # number of offsets that will be applied again
    clamped_from: int | None = None  # the requested offset, if the log does not hold it
    skipped: tuple[int, int] | None = None  # first and last record that will not be applied
    expired_before: int | None = None  # of the skipped records, those below are not in the log
    diverged: str | None = None  # the evidence that the log is not the one that was applied


class RewindPlan(msgspec.Struct, frozen=True, rename=PLAN_KEYS):
    """What a rewind would change."""

    pipeline: str
    topic: str
    to: str
    new_topic: bool
    archived_as: str | None  # the topic name under which the data of overwritten offsets is kept
    moves: list[LedgerMove]
    notes: list[str]

    @property
    def needs_reason(self) -> bool:
        """Return whether records would never be applied."""
        return any(move.skipped for move in self.moves)


class Prepared(msgspec.Struct, frozen=True):
    """A plan, with what its execution needs."""

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
    """Plan the move of these partitions, or of all if none is named."""
    with _open_sink(name, pipeline) as sink, sink.translated():
        ledger = sink.ledger.positions()
    if not ledger:
        raise errors.SettingsError(
            f"pipeline {name!r} has no ledger yet: it will begin at the `start` of its settings",
            f"set start, then: instep run {shlex.quote(name)}",
        )
    topic = continuity.describe(cluster, continuity.pipeline(name), pipeline.topic, ledger)
    new_topic = any(continuity.is_other(topic, position) for position in ledger.values())
    if not accept_new_topic:
        continuity.refuse_replaced(continuity.pipeline(name), topic, ledger)
    elif partitions:
        raise errors.SettingsError(
            "--accept-new-topic moves every partition", "leave out --partition"
        )
    unknown = sorted(set(partitions) - set(topic.partitions))
    if unknown:
        raise errors.SettingsError(
            f"topic {topic.name!r} has no partition {_listed(unknown)}",
            f"it has {_listed(topic.partitions)}",
        )
    selected = sorted(partitions or topic.partitions)
    new = places.resolve(cluster, topic.name, selected, place)
    first = offsets.earliest(cluster, topic.name, selected)
    end = offsets.latest(cluster, topic.name, selected)
    # Positions in the log that the ledger follows; offsets of another topic mean nothing here.
    known = {} if new_topic else {p: ledger[p] for p in selected if p in ledger}
    diverged = continuity.diverged(cluster, topic, known)
    last_applied = {p: new[p] - 1 for p in selected if new[p] > first[p]}
    digests = continuity.digests(cluster, topic, last_applied)
    epoch = max(position.epoch for position in ledger.values())
    rows = {}
    moves = []
    for p in selected:
        rows[p] = Position(p, new[p], epoch, topic.cluster_id, topic.id, digests.get(p))
        moves.append(
            _move(p, new, (first[p], end[p]), known.get(p), diverged.get(p), ledger.get(p))
        )
    removed = sorted(set(ledger) - set(topic.partitions))
    moves += [LedgerMove(p, ledger[p].next_offset, None, None) for p in removed]
    archived_as = _archive_name(topic.name, ledger, new_topic) if new_topic or diverged else None
    plan = RewindPlan(name, topic.name, str(place), new_topic, archived_as, moves, [])
    described = msgspec.structs.replace(plan, notes=list(_describe(plan, pipeline)))
    return Prepared(described, ledger, rows)


def execute(
    name: str, pipeline: settings.Pipeline, prepared: Prepared, *, actor: str, reason: str | None
) -> None:
    """Execute the plan in one transaction. Raise if the ledger has moved since it was made.

    A pipeline that runs moves its ledger forward. A move back stays what the plan shows.
    """
    plan = prepared.plan
    if plan.needs_reason and not reason:
        raise errors.SettingsError(
            "records would be skipped without being applied", "give the reason: --why TEXT"
        )
    with _open_sink(name, pipeline) as sink, sink.transaction():
        ledger = sink.ledger.positions(lock=True)
        if not _holds(prepared, ledger):
            raise errors.SettingsError(
                f"the ledger of {name!r} has moved since the plan was made, because the pipeline is"
                " running; nothing was changed",
                "stop the pipeline first, or choose a place behind it",
            )
        plan = msgspec.structs.replace(plan, moves=[_from_here(one, ledger) for one in plan.moves])
        applied: AppliedRanges = {}
        if not plan.new_topic:
            applied = _applied(sink.ledger.applied_ranges(), plan.moves, ledger)
        sink.ledger.replace_applied_ranges(applied)
        for move in plan.moves:
            if plan.archived_as and (plan.new_topic or move.diverged):
                sink.journal.archive_positions(
                    plan.archived_as, move.partition, 0 if plan.new_topic else move.new or 0
                )
            _write(sink, move, prepared.rows.get(move.partition), ledger)
        decisions = [_decision(move, actor, reason) for move in plan.moves if _is_move(move)]
        sink.journal.add_decisions(decisions, datetime.now(UTC))


def _applied(
    before: AppliedRanges, moves: Collection[LedgerMove], ledger: Mapping[int, Position]
) -> AppliedRanges:
    """Return the ranges that were applied before the move.

    If the log has diverged, only ranges below the new offset count: the rest was another log.
    """
    after = {partition: list(ranges) for partition, ranges in before.items()}
    for move in filter(_is_move, moves):
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
    resolved: places.Resolved,
    bounds: tuple[int, int],
    known: Position | None,
    diverged: str | None,
    row: Position | None,
) -> LedgerMove:
    new, (first, end) = resolved[partition], bounds
    # Without a position in this topic, the partition would begin at its first record.
    expected, delta, reapplied = first, None, 0
    if known is not None:
        expected, delta = known.next_offset, new - known.next_offset
        reapplied = max(0, min(known.next_offset, end) - new)
    skipped, expired_before = None, None
    if new > expected:
        skipped = (expected, new - 1)
        expired_before = first if first > expected else None
    return LedgerMove(
        partition,
        row.next_offset if row else None,
        new,
        delta,
        reapplied,
        resolved.clamped.get(partition),
        skipped,
        expired_before,
        diverged,
    )


def _is_move(move: LedgerMove) -> bool:
    return move.delta != 0 or move.diverged is not None


def _decision(move: LedgerMove, actor: str, reason: str | None) -> Decision:
    """Return the decision. Its offset is the old one if that belongs to the same log."""
    current = "nowhere" if move.current is None else move.current
    new = "nowhere" if move.new is None else move.new
    same_log = move.delta is not None and not move.diverged
    offset = (move.current if same_log else move.new) or 0
    outcome = f"from {current} to {new}"
    return Decision(move.partition, offset, Action.REWOUND.value, outcome, actor, reason)


def _archive_name(topic: str, ledger: Mapping[int, Position], new_topic: bool) -> str:
    """Return the topic name under which data of records that the log no longer holds is kept.

    It ends in the id of the old topic, or in the current time if only the log has diverged.
    """
    suffix = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
    if new_topic:
        suffix = next(iter(ledger.values())).topic_id
    return f"{topic[: TOPIC_CHARACTERS_MAX - len(suffix) - 1]}~{suffix}"


def stays(planned: int | None, now: int | None, new: int | None) -> bool:
    """Return whether a move to `new` stays what was planned while the ledger was elsewhere.

    It does if the ledger has only moved forward, away from a place behind it.
    """
    if planned == now:
        return True
    return None not in (planned, now, new) and new <= planned <= now  # type: ignore[operator]


def _holds(prepared: Prepared, ledger: Mapping[int, Position]) -> bool:
    """Return whether a plan holds for the ledger as it is now."""
    before = prepared.ledger
    topic_ids = {number: row.topic_id for number, row in before.items()}
    if topic_ids != {number: row.topic_id for number, row in ledger.items()}:
        return False
    for move in prepared.plan.moves:
        if move.partition in ledger:
            planned = before[move.partition].next_offset
            now = ledger[move.partition].next_offset
            is_same_log = not (prepared.plan.new_topic or move.diverged)
            if now != planned and not (is_same_log and stays(planned, now, move.new)):
                return False
    return True


def _from_here(move: LedgerMove, ledger: Mapping[int, Position]) -> LedgerMove:
    """Return a move from where the ledger is now."""
    if move.delta is None or move.new is None:
        return move
    now = ledger[move.partition].next_offset
    return msgspec.structs.replace(move, current=now, delta=move.new - now)


@contextmanager
def _open_sink(name: str, pipeline: settings.Pipeline) -> Iterator[Sink]:
    sink = sinks.open_sink(inspection.inspect(name, pipeline))
    try:
        yield sink
    finally:
        sink.close()


# --- the plan as text -----------------------------------------------------------------------------


def _describe(plan: RewindPlan, pipeline: settings.Pipeline) -> Iterator[str]:
    """Yield what the plan means for the table."""
    ordered = pipeline.event.order is not None
    if plan.new_topic:
        yield "the topic is not the one in the ledger: CURRENT shows offsets of the old topic"
        yield (
            "history, quarantine and decisions of the old topic are kept"
            f" under the topic name {plan.archived_as}"
        )
        if ordered:
            yield (
                "the table keeps its order values: events of the new topic with a lower order value"
                " than the stored one will be stale"
            )
    for move in plan.moves:
        yield from _describe_move(plan, move)
    reapplied = sum(move.reapplied for move in plan.moves)
    if reapplied:
        yield f"{_records(reapplied)} will be applied again; their history rows stay as they are"
        if ordered:
            yield "the guard keeps them from overwriting newer values"
        else:
            yield (
                "the pipeline has no order: documents will show older statuses until it has caught"
                " up"
            )
    if not any(map(_is_move, plan.moves)):
        yield "nothing moves: every partition is already there"


def _describe_move(plan: RewindPlan, move: LedgerMove) -> Iterator[str]:
    partition = f"partition {move.partition}"
    if move.new is None:
        yield f"{partition}: no longer in the topic; its row is removed from the ledger"
    if move.diverged:
        yield (
            f"{move.diverged}: history, quarantine and decisions of records from {move.new} on are"
            f" kept under the topic name {plan.archived_as}"
        )
        yield (
            f"{partition}: choose a place before the loss: new records of the log below {move.new}"
            " are not applied"
        )
    if move.skipped:
        start, last = move.skipped
        expired = ""
        if move.expired_before:
            expired = f" ({start} to {min(last, move.expired_before - 1)} are no longer in the log)"
        yield (
            f"{partition}: {start} to {last} will be skipped{expired}: {_records(last - start + 1)}"
            " missing from the table unless applied later (instep replay)"
        )


def _records(count: int) -> str:
    """Return an upper bound: transaction markers use offsets too, and a compacted log has gaps."""
    return f"up to {count:,} record{'s' if count > 1 else ''}"


def _listed(partitions: Collection[int]) -> str:
    return ", ".join(map(str, sorted(partitions)))
