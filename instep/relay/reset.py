"""Give a relay a new position: a person decides which rows are published."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Literal

import msgspec

from instep import errors, settings, sources
from instep.kafka import connection, position_topic, record_writer, topics
from instep.relay import position as positions
from instep.relay.position import RelayPosition
from instep.sources.lease import Lease, LeaseRow
from instep.sources.outbox_reader import OutboxReader

Place = Literal["start", "end", "current"]
CONSEQUENCES: dict[Place, str] = {
    "start": "every row in the outbox is published, including rows that were published before",
    "end": "rows now in the outbox are skipped; only rows added later are published",
    "current": "the relay continues at its position and accepts the topic as it is now",
}


class ResetPlan(msgspec.Struct, frozen=True):
    """What a reset changes."""

    relay: str
    to: Place
    published_rows: int
    consequence: str


NOTHING_LOST = "the source counts as complete, whatever server it is now"


def plan(name: str, relay: settings.Relay, to: Place, *, nothing_lost: bool = False) -> ResetPlan:
    """Return what a reset would do; refuse it while a process is active."""
    if nothing_lost and to != "current":
        raise errors.SettingsError(
            f"--nothing-lost says that the relay may continue, and --to {to} that it may not",
            "use --to current, or leave --nothing-lost out",
        )
    lease = Lease(relay, name)
    try:
        _refuse_working(lease, name)
        row = lease.read()
    finally:
        lease.close()
    consequence = f"{CONSEQUENCES[to]}; {NOTHING_LOST}" if nothing_lost else CONSEQUENCES[to]
    return ResetPlan(name, to, row.published_rows, consequence)


def execute(
    name: str,
    relay: settings.Relay,
    cluster: connection.Cluster,
    to: Place,
    *,
    nothing_lost: bool = False,
) -> None:
    """Write the new position. A process that is active meanwhile is fenced by this.

    With `nothing_lost`, the position is continued although the source is another server.
    """
    lease = Lease(relay, name)
    try:
        _refuse_working(lease, name)
        if not lease.claim():
            raise _working(name, lease.read().holder)
        writer = record_writer.RecordWriter(
            cluster,
            position_topic.of_relay(name),
            relay.topic,
            guarantee=relay.guarantee,
            record_bytes_max=record_writer.record_bytes_max(cluster, relay.topic),
            is_stopped=lambda: False,
        )
        try:
            writer.start()
            row = lease.read()
            found = position_topic.read(cluster, position_topic.of_relay(name), writer.mark)
            new_positions = (
                _accepted(name, relay, cluster, row, found)
                if nothing_lost
                else _positions(name, relay, cluster, row, found, to)
            )
            for new in new_positions:
                lease.renew(None, is_counted=False)
                writer.begin()
                writer.commit(positions.encode(new))
        finally:
            writer.close()
        lease.mark_started()
    finally:
        lease.release()
        lease.close()


def _positions(
    name: str,
    relay: settings.Relay,
    cluster: connection.Cluster,
    row: LeaseRow,
    found: bytes | None,
    to: Place,
) -> Iterator[RelayPosition]:
    """Yield the positions to write, one after the other."""
    topic = topics.describe(cluster, relay.topic)
    if to == "current":
        yield _current(name, topic, found)
        return
    reader = sources.open_reader(relay, name)
    try:
        reader.adopt()
        highest_id = _raise_ids(name, found, row, reader)
        new = functools.partial(positions.new, row, topic, beat=row.beat, highest_id=highest_id)
        if to == "start":
            yield new(reader.first_position(), sequence=row.sequence)
            return
        for sequence, skipped in enumerate(reader.skip(), start=row.sequence + 1):
            yield new(skipped, sequence=sequence)
            # As after any transaction. If this one is interrupted, the next session does it.
            reader.done(sequence)
    finally:
        reader.close()


def _current(name: str, topic: topics.Topic, found: bytes | None) -> RelayPosition:
    """Return the position, as one that belongs to the topic as it is now."""
    if found is None:
        raise errors.SettingsError(f"relay {name!r} has no position", "use --to start or --to end")
    return msgspec.structs.replace(
        positions.decode(found, name),
        cluster_id=topic.cluster_id,
        topic_id=topic.id,
        partitions=len(topic.partitions),
    )


def _accepted(
    name: str,
    relay: settings.Relay,
    cluster: connection.Cluster,
    row: LeaseRow,
    found: bytes | None,
) -> list[RelayPosition]:
    """Return the position, as one that belongs to the source and the topic as they are now.

    What the source itself shows still stops the relay: transactions or rows that it has not.
    """
    known = _current(name, topics.describe(cluster, relay.topic), found)
    reader = sources.open_reader(relay, name)
    try:
        accepted = reader.accept(known.reader)
    finally:
        reader.close()
    return [msgspec.structs.replace(known, source_id=row.source_id, beat=row.beat, reader=accepted)]


def _raise_ids(name: str, found: bytes | None, row: LeaseRow, reader: OutboxReader) -> int:
    """Return the highest id that was published; let a restored source continue above it."""
    try:
        known = None if found is None else positions.decode(found, name)
    except errors.PositionMissing:
        known = None
    if known is None:
        return 0
    last_id = reader.last_id()
    is_restored = row.source_id != known.source_id or row.beat < known.beat
    if last_id is not None and (is_restored or last_id < known.highest_id):
        reader.raise_ids(known.highest_id)
    return known.highest_id


def _refuse_working(lease: Lease, name: str) -> None:
    if lease.is_held():
        raise _working(name, lease.read().holder)


def _working(name: str, holder: str | None) -> errors.SettingsError:
    return errors.SettingsError(
        f"relay {name!r} is being run by {holder}", "stop that process first, then reset again"
    )
