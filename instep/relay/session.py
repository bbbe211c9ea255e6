"""One session of a relay: from the fence in Kafka until anything is in doubt.

    1. init_transactions of both ids: no older process of this relay can commit any more.
    2. Commit a mark, and read the position up to it. Compare it with the source and the topic; a
       named stop if they disagree.
    3. Repeat: read rows, publish them and the position behind them in one transaction. While there
       is a backlog, the next rows are read meanwhile.

An error of Kafka ends the session, because only a new one can find out what became of the last
transaction. An error of the source does not: nothing is in doubt then, so the session connects
again and compares again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from instep import errors, settings, sources
from instep.kafka import connection, output_topic, position_topic, record_writer, topics
from instep.kafka.output_topic import KnownTopic
from instep.kafka.record_writer import RecordRefused, RecordWriter
from instep.kafka.topic_identity import TopicIdentity
from instep.relay import position as positions
from instep.relay.position import RelayPosition
from instep.relay.records import RecordBuilder, RowInvalid
from instep.sources.connection import OpenConnections
from instep.sources.lease import INTERVAL_S, Lease, LeaseRow
from instep.sources.outbox_reader import Batch, LastTransaction, OutboxReader, OutboxRow, restored

PAUSE_S = 0.002  # the first pause if there is nothing to publish
# For a while after the last rows, more are likely to come: pauses stay short.
ACTIVE_S, ACTIVE_PAUSE_S = 1.0, 0.005
INTERVAL_LEAST_S = 0.01  # between the beginnings of two transactions, if there is no backlog
RECONNECT_S = 0.5
ROWS_LEAST = 200  # of a batch, before the backlog shows how many there are
# Without an answer for so long, the session ends and gives up its lease: another process may reach
# the brokers.
KAFKA_SILENCE_MAX_S = 30.0
DOCUMENT_SHOWN = 255  # characters
BYTES_PER_ID = 40  # of a position, at most
# A server that does not flush every commit loses about a second of them in a crash, and with them
# renewals. What was published is on disk.
BEATS_LOST_MAX = 2

OTHER_SOURCE = (
    "it is another database, its tables were created again, or this relay has stopped before"
    " because it is older"
)

Say = Callable[[str], None]


class RelayProgress(msgspec.Struct):
    """What a relay reports while it runs."""

    state: str = "starting"
    rows: int = 0  # published by this process
    transactions: int = 0
    dead: int = 0
    position: dict[str, Any] | None = None  # of the reader, as it was published last
    caught_up_at: float | None = None  # when nothing was left to publish; None before a session


class LeaseKeeper:
    """Renews the lease in a thread of its own, and notices a source that was restored meanwhile."""

    def __init__(self, name: str, lease: Lease) -> None:
        self._name, self._lease = name, lease
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="instep-relay-lease", daemon=True)
        self.beat = 0
        self.published_rows: int | None = None  # not known before the position is read
        self._source_id = ""
        self._is_compared = False
        self._failure: errors.LeaseLost | errors.SourceRestored | None = None

    def start(self) -> None:
        row = self._lease.renew(self.published_rows, is_counted=False)
        self.beat, self._source_id = row.beat, row.source_id
        self._thread.start()

    def count(self, row: LeaseRow) -> None:
        """Count renewals from now on: the source was compared with the position."""
        self.beat, self._is_compared = row.beat, True

    def check(self) -> None:
        """Raise LeaseLost or SourceRestored if the session must end."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop, and give the lease back."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if not isinstance(self._failure, errors.LeaseLost):
            self._lease.release(self.published_rows)
        self._lease.close()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            is_counted = self._is_compared
            try:
                row = self._lease.renew(self.published_rows, is_counted=is_counted)
                if is_counted:
                    self._refuse_restored(row)
                self.beat = max(self.beat, row.beat)
            except (errors.LeaseLost, errors.SourceRestored) as failure:
                self._failure = failure
                return
            except errors.InstepError:
                continue  # the session meets the same error, or the lease expires

    def _refuse_restored(self, row: LeaseRow) -> None:
        if row.source_id != self._source_id:
            raise restored(self._name, OTHER_SOURCE)
        if row.beat <= self.beat - BEATS_LOST_MAX:
            raise restored(
                self._name,
                f"its lease was renewed {row.beat} times, and {self.beat} times a moment ago",
                fades=True,
            )


class RelaySession:
    """One session. `run` returns when it is asked to stop, or at the end of `once`."""

    def __init__(
        self,
        name: str,
        relay: settings.Relay,
        cluster: connection.Cluster,
        keeper: LeaseKeeper,
        *,
        stop: threading.Event,
        say: Say,
        progress: RelayProgress,
        connections: OpenConnections | None = None,
    ) -> None:
        self._connections = connections
        self._name, self._relay, self._cluster = name, relay, cluster
        self._keeper, self._stop, self._say = keeper, stop, say
        self.progress = progress
        self._position: RelayPosition
        self._following: RelayPosition  # the position behind the batch that is being published

    def run(self, lease: Lease, *, once: bool) -> None:
        """Publish until asked to stop; with `once`, until the outbox is empty."""
        with ExitStack() as resources:
            bytes_max = record_writer.record_bytes_max(self._cluster, self._relay.topic)
            self._rows_max = max(1, min(self._relay.batch_rows_max, bytes_max // BYTES_PER_ID))
            self._rows_least = self._limit = min(ROWS_LEAST, self._rows_max)
            writer = RecordWriter(
                self._cluster,
                position_topic.of_relay(self._name),
                self._relay.topic,
                guarantee=self._relay.guarantee,
                record_bytes_max=bytes_max,
                is_stopped=self._stop.is_set,
                silence_max_s=KAFKA_SILENCE_MAX_S,
            )
            resources.callback(writer.close)
            self._writer = writer
            writer.start()
            self._topic = topics.describe(self._cluster, self._relay.topic)
            self._identity = TopicIdentity(
                self._cluster.kafka,
                self._cluster.bootstrap,
                self._topic.name,
                self._topic.id,
                len(self._topic.partitions),
            )
            resources.callback(self._identity.close)
            try:
                self._while_reachable(lambda: self._find_position(lease))
                self._while_reachable(lambda: self._publish_all(lease, once=once))
            except errors.SourceRestored as stop:
                if stop.fades:
                    with suppress(errors.InstepError):  # the stop is what counts
                        lease.mark_restored()
                raise

    def _while_reachable(self, work: Callable[[], None]) -> None:
        """Do the work; begin again if the source was not reachable."""
        while not self._stop.is_set():
            self._keeper.check()
            try:
                work()
            except (errors.Unreachable, errors.Transient) as error:
                if isinstance(error, errors.BrokerUnreachable):
                    raise errors.SessionEnded(error.what) from error
                self._writer.abort()
                self.progress.state = "waiting for the source"
                self._say(f"{self._name}: {error.what}; trying again")
                self._stop.wait(RECONNECT_S)
            else:
                return

    # --- the position --------------------------------------------------------------------------

    def _find_position(self, lease: Lease) -> None:
        """Read the position; a relay that never published gets its first one."""
        row = lease.read()
        found = self._read_position(row)
        if found is not None:
            self._position = positions.decode(found, self._name)
            self._check_topic()
            self._check_source(row)  # before anything is written to a wrong source
        elif row.started:
            raise self._position_missing("has no position")
        else:
            reader = sources.open_reader(self._relay, self._name, self._connections)
            try:
                self._position = positions.new(
                    row,
                    self._topic,
                    reader.first_position(),
                    sequence=row.sequence,
                    beat=self._keeper.beat,
                )
            finally:
                reader.close()
            self._writer.begin()
            self._writer.commit(positions.encode(self._position))
        if not row.started:
            # Only now may rows be published: a missing position is a loss from here on.
            lease.mark_started()
        self._keeper.published_rows = self._position.rows
        self.progress.position = self._position.reader
        self.progress.caught_up_at = time.monotonic()
        self._keeper.count(lease.renew(self._position.rows, is_counted=True))

    def _read_position(self, row: LeaseRow) -> bytes | None:
        place = position_topic.of_relay(self._name)
        try:
            return position_topic.read(self._cluster, place, self._writer.mark)
        except errors.TopicMissing as failure:
            if row.started:
                raise self._position_missing("does not exist") from failure
            raise

    def _position_missing(self, why: str) -> errors.PositionMissing:
        topic = position_topic.of_relay(self._name).topic
        return errors.PositionMissing(
            f"relay {self._name!r} has published before, but topic {topic!r} {why}"
        )

    def _check_topic(self) -> None:
        known = self._position
        output_topic.refuse_changed(
            f"relay {self._name!r}",
            KnownTopic(known.cluster_id, known.topic_id, known.partitions),
            self._topic,
        )

    def _check_source(self, row: LeaseRow) -> None:
        if row.source_id != self._position.source_id:
            raise restored(self._name, OTHER_SOURCE)
        if row.beat < self._position.beat:
            raise restored(
                self._name,
                f"its lease was renewed {row.beat} times, and {self._position.beat} times when"
                " the relay last published",
                fades=True,
            )

    # --- publishing ----------------------------------------------------------------------------

    def _publish_all(self, lease: Lease, *, once: bool) -> None:
        row = lease.read()
        self._check_source(row)
        with ExitStack() as resources:
            reader = sources.open_reader(self._relay, self._name, self._connections)
            resources.callback(reader.close)
            self._recover(reader)
            self._builder = RecordBuilder(self._name, row.source_id, self._relay.version)
            pool = ThreadPoolExecutor(1, "instep-relay-reader")
            resources.callback(pool.shutdown)
            self._publish(reader, pool, once=once)

    def _recover(self, reader: OutboxReader) -> None:
        """Continue behind the position, unless a newer session has fenced this one.

        Its transactions are in the source by now, and look like those of another source.
        """
        try:
            reader.recover(LastTransaction(self._position.sequence, self._position.reader))
        except errors.SourceRestored:
            self._writer.mark()  # which ends the session if it is fenced
            raise

    def _publish(self, reader: OutboxReader, pool: ThreadPoolExecutor, *, once: bool) -> None:
        pause_s, published_at = PAUSE_S, -ACTIVE_S
        cleaning: Future[None] | None = None
        batch = reader.next(self._limit)
        while not self._stop.is_set():
            self._keeper.check()
            if batch is None:
                if once:
                    self._writer.complete()  # a pipeline that runs next must see all rows
                    break
                self.progress.state, self.progress.caught_up_at = "idle", time.monotonic()
                self._stop.wait(pause_s)
                pause_s = min(pause_s * 2, self._pause_max_s(published_at))
                if pool.submit(reader.has_news).result():
                    batch = pool.submit(reader.next, self._limit).result()
                continue
            pause_s, began = PAUSE_S, time.monotonic()
            self.progress.state = "publishing"
            durable = pool.submit(reader.wait_durable, batch)
            if self._relay.guarantee == "at-least-once":
                durable.result()  # nothing takes a record back once it is handed over
            self._following = self._behind(batch)
            published = self._add(batch, reader, pool)
            # Rows that are read now wait for this commit, and rows that come meanwhile for the
            # next one: worth it only if there are many.
            following = pool.submit(reader.next, self._limit) if self._adapt(batch) else None
            try:
                if cleaning is not None:
                    cleaning.result()  # the batch before this one must be deleted by now
                self._commit(published, durable)
            except BaseException:
                if following is not None:
                    following.cancel()
                raise
            if following is None:
                # Rows that come meanwhile share a transaction: a broker takes milliseconds for one.
                self._stop.wait(max(0.0, began + INTERVAL_LEAST_S - time.monotonic()))
                following = pool.submit(reader.next, self._limit)
            published_at = time.monotonic()
            batch = following.result()
            cleaning = pool.submit(reader.done, self._position.sequence)
        if cleaning is not None:
            cleaning.result()

    def _pause_max_s(self, published_at: float) -> float:
        """Return the longest pause, by the time at which rows were last published."""
        pause_s = self._relay.poll_ms_max / 1_000
        if time.monotonic() - published_at < ACTIVE_S:
            return min(pause_s, ACTIVE_PAUSE_S)
        return pause_s

    def _adapt(self, batch: Batch) -> bool:
        """Read more rows at once while there is a backlog; return whether there is one."""
        count, limit = len(batch.rows), self._limit
        if count >= limit:
            self._limit = min(limit * 4, self._rows_max)
        elif count < limit // 8 and not batch.is_full:
            self._limit = max(limit // 2, self._rows_least)
        return batch.is_full

    def _add(self, batch: Batch, reader: OutboxReader, pool: ThreadPoolExecutor) -> int:
        """Add the rows to a new transaction; return how many were not refused."""
        self._writer.begin(positions.encode(self._following))
        add, builder = self._writer.add, self._builder
        build_key, build_value, build_headers = builder.key, builder.value, builder.headers
        published = 0
        for row in batch.rows:
            try:
                add(build_key(row), build_value(row), build_headers(row))
                published += 1
            except (RecordRefused, RowInvalid) as refused:
                self._refuse(row, refused, reader, pool)
        return published

    def _refuse(
        self,
        row: OutboxRow,
        refused: RecordRefused | RowInvalid,
        reader: OutboxReader,
        pool: ThreadPoolExecutor,
    ) -> None:
        shown = row.document[:DOCUMENT_SHOWN]
        named = f"row {row.id} of document {shown!r}{'…' if shown != row.document else ''}"
        if isinstance(refused, RowInvalid):
            what = f"no record can be made of {named}: {refused}"
            if self._relay.invalid == "stop":
                raise errors.OutboxRowInvalid(what) from None
        else:
            what = (
                f"{named} has {len(row.value or b''):,} bytes, which topic {self._relay.topic!r}"
                f" does not accept: {refused}"
            )
            if self._relay.too_large == "stop":
                raise errors.OutboxRowTooLarge(what) from None
        pool.submit(reader.keep_dead, row, what).result()
        self.progress.dead += 1
        self._say(f"{self._name}: {what}; kept in instep_outbox_dead")

    def _behind(self, batch: Batch) -> RelayPosition:
        """Return the position behind a batch of which no row is refused."""
        return msgspec.structs.replace(
            self._position,
            sequence=self._position.sequence + 1,
            rows=self._position.rows + len(batch.rows),
            beat=self._keeper.beat,
            highest_id=max(self._position.highest_id, *(row.id for row in batch.rows)),
            reader=batch.position,
        )

    def _commit(self, published: int, durable: Future[None]) -> None:
        following = msgspec.structs.replace(
            self._following, rows=self._position.rows + published, beat=self._keeper.beat
        )
        if self.progress.transactions < self._writer.clients:
            # Only now does this client know the partitions. They are confirmed below.
            self._writer.settle()
        self._identity.ask()

        def confirm() -> None:
            if not self._identity.is_confirmed():
                self._topic = topics.describe(self._cluster, self._relay.topic)
                self._check_topic()
            durable.result()
            self._keeper.check()

        self._writer.commit(positions.encode(following), confirm)
        self._position = following
        self._keeper.published_rows = following.rows
        self.progress.position = following.reader
        self.progress.rows += published
        self.progress.transactions += 1
