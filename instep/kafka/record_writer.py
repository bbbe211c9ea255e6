"""Write records and the position behind them: in one transaction, or one after the other.

Relays and streams publish with it. Where the position is kept is said in position_topic.py.

A broker answers a commit before it has written the transaction's markers, and until then it refuses
the next transaction of the same transactional id: the client waits and asks again. So a writer has
two ids and uses them in turn: a transaction begins when the commit before it was answered, while
the brokers still complete that one. These rules keep what one id guarantees:

    1. `start` runs `init_transactions` for the first id, then for the second; only then may the
       position be read. Both have waited until older transactions are complete. `mark` shows the
       reader how far it must read: a broker that was the leader before may not know the end.
    2. The first transaction of a writer uses the first id.
    3. The other id has its turn only after a commit that was answered.

If a later writer has taken over both ids, every commit of the earlier one came before the later one
read the position. If two writers start at the same time, the one that was first at the first id and
second at the second id can never commit, by rule 2; the other one ends at its second transaction.
So between a writer's look at the position and its last commit, no other writer commits.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

from instep import errors, settings
from instep.kafka import connection, faults, position_topic
from instep.kafka.output_topic import TimestampBounds
from instep.kafka.position_topic import PositionPlace

TRANSACTION_TIMEOUT_MS = 60_000
CALL_TIMEOUT_S = 1.0  # of one attempt, so short that a stop is noticed
# Of the first attempts to fence. A client that has no connection yet looks again after half a
# second, unless it is asked again.
START_ATTEMPTS_S = (0.03, 0.05, 0.1, 0.2)
RECORD_BYTES_LEAST = 1_000  # the client accepts no lower limit
BATCH_BYTES = 256  # of a batch besides its records; the topic's limit includes them
ABORT_TIMEOUT_S = 3.0
# The client's answers are taken while records are added. Otherwise the commit takes all of them,
# each with Python's lock (the GIL), for which the thread that reads the next rows competes.
TAKEN_EVERY = 500  # records

Headers = list[tuple[str, str | bytes | None]]  # as the client takes them, without a copy


class RecordRefused(Exception):
    """The topic does not accept a record of this size. The transaction is still usable."""


def record_bytes_max(cluster: connection.Cluster, topic: str) -> int:
    """Return the size of the largest record that the topic accepts in any case."""
    return int(_settings_of(cluster, topic).get("max.message.bytes", 1_048_588)) - BATCH_BYTES


def timestamp_bounds(cluster: connection.Cluster, topic: str) -> TimestampBounds:
    """Return which timestamps the topic accepts."""
    found = _settings_of(cluster, topic)
    # Before version 3.6, Kafka has one setting for both.
    both = found.get("message.timestamp.difference.max.ms", str(2**63 - 1))
    return TimestampBounds(
        int(found.get("message.timestamp.before.max.ms", both)),
        int(found.get("message.timestamp.after.max.ms", both)),
    )


def _settings_of(cluster: connection.Cluster, topic: str) -> dict[str, str]:
    """Return the settings of a topic that have a value."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

    def request() -> dict[str, str]:
        answer = cluster.admin.describe_configs([resource], request_timeout=cluster.timeout_s)
        operation = cluster.operation(
            f"read the settings of topic {topic!r}", topic=topic, right="DESCRIBE_CONFIGS"
        )
        config = cluster.wait(answer[resource], operation)
        return {name: entry.value for name, entry in config.items() if entry.value}

    return cluster.retry(request)


class RecordWriter:
    """Writes batches of records to a topic, each with the position behind it.

    After an error other than RecordRefused, the writer must not be used again.
    """

    def __init__(
        self,
        cluster: connection.Cluster,
        place: PositionPlace,
        topic: str,
        *,
        guarantee: settings.RelayGuarantee,
        record_bytes_max: int,
        is_stopped: Callable[[], bool],
        silence_max_s: float | None = None,
    ) -> None:
        """Wait for the brokers for ever, or only until they are silent for `silence_max_s`."""
        self._topic, self._place = topic, place
        self._silence_max_s = silence_max_s
        self._is_transactional = guarantee == "exactly-once"
        self._is_stopped = is_stopped
        self._operation = faults.Operation(
            f"publish to topic {topic!r}",
            cluster.bootstrap,
            cluster.identity,
            topic,
            right="WRITE",
        )
        self._error_log = faults.ErrorLog()
        self._failed: KafkaError | None = None
        self._begun: list[Producer] = []  # those with an open transaction
        self._position: bytes | None = None  # that is already part of the open transaction
        self._added = self._commits = 0
        config: dict[str, Any] = {
            **connection.client_config(cluster.kafka, cluster.bootstrap),
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
            "linger.ms": 1,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
            # The client's own limit: a record that the topic would refuse fails in `produce`,
            # where its transaction can go on without it.
            "message.max.bytes": max(record_bytes_max, RECORD_BYTES_LEAST),
            "delivery.report.only.error": True,  # else a call for every record that is delivered
            "error_cb": self._error_log.add,
        }
        if self._is_transactional:
            # A record that fails makes the commit fail, so nobody has to look at each delivery.
            config["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
            configs = [{**config, "transactional.id": id_} for id_ in place.transactional_ids]
        else:
            config["on_delivery"] = self._delivered
            config["message.timeout.ms"] = 0  # no limit
            configs = [config]
        try:
            self._producers = [Producer(one, logger=faults.log) for one in configs]
        except KafkaException as failure:
            raise faults.translate(failure.args[0], self._operation) from failure
        self._producer = self._producers[0]

    @property
    def clients(self) -> int:
        """How many clients take turns. Each learns the topic's partitions by its first records."""
        return len(self._producers)

    def start(self) -> None:
        """Fence older writers of this position, and end their open transactions."""
        if not self._is_transactional:
            return
        for producer in self._producers:
            attempts_s = iter(START_ATTEMPTS_S)
            self._retry(partial(_init_transactions, producer, attempts_s))

    def mark(self) -> bytes:
        """Write a mark behind all positions of older writers; return what it contains.

        The position is known once the mark was read too.
        """
        value = uuid.uuid4().hex.encode()
        self.begin()
        self._write(position_topic.MARK, value)
        if self._is_transactional:
            self._commit_transaction()
        else:
            self.settle()
        return value

    def begin(self, position: bytes | None = None) -> None:
        """Begin a transaction.

        A position that is known before its records is on its way with them, so that the commit
        does not wait for it. `commit` adds another one if the position has become another. In the
        first transaction of each client, only `commit` adds it.
        """
        if not self._is_transactional:
            return
        self._call(self._producer.begin_transaction)
        self._begun.append(self._producer)
        self._position = None
        # In its first transaction a client learns the partitions of one topic after the other, and
        # that of the records would have to wait. The first transaction of all had only the mark.
        if position is not None and self._commits > self.clients:
            self._write(position_topic.KEY, position)
            self._position = position

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        topic: str | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        """Add a record, by default to the writer's topic and with the time of now (0).

        Raise RecordRefused if the topic does not accept its size.
        """
        self._added += 1
        if self._added % TAKEN_EVERY == 0:
            self._wait(lambda: self._producer.poll(0))
        while True:
            try:
                self._producer.produce(
                    topic or self._topic, value, key, timestamp=timestamp_ms, headers=headers
                )
            except BufferError:
                self._wait(lambda: self._producer.poll(0.05))
            except KafkaException as failure:
                if failure.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise RecordRefused(failure.args[0].str()) from None
                raise self._ended(failure) from failure
            else:
                return

    def commit(self, position: bytes, confirm: Callable[[], None] = lambda: None) -> None:
        """Commit the records together with the position behind them.

        `confirm` raises if that must not happen. It is called while the records are on their way.
        """
        if self._is_transactional:
            if position != self._position:
                self._write(position_topic.KEY, position)
            confirm()
            self._commit_transaction()
        else:
            self.settle()
            confirm()
            self._write(position_topic.KEY, position)
            self.settle()

    def complete(self) -> None:
        """Wait until committed readers see every record that was committed.

        A broker accepts an id's next transaction only once it has written the markers of the last
        one. The position that is added here is given up.
        """
        if not self._is_transactional:
            return
        used = self._producers[: self._commits]
        for producer in used:
            self._producer = producer
            self.begin()
            self._write(position_topic.KEY, b"")
        for producer in used:
            self._producer = producer
            self.settle()
        self.abort()

    def abort(self) -> None:
        """Give up the records of open transactions, if there are any.

        Try all of them, then raise the first failure.
        """
        begun, self._begun = self._begun, []
        failures = []
        for producer in reversed(begun):
            try:
                producer.abort_transaction(ABORT_TIMEOUT_S)
            except KafkaException as failure:
                failures.append(failure)
                self._begun.append(producer)  # `close` tries again
        if failures:
            raise self._ended(failures[0]) from failures[0]

    def close(self) -> None:
        """Abort what is not committed, because an open transaction holds up the topic's readers.

        If the brokers do not answer, the next session's start aborts it.
        """
        with contextlib.suppress(errors.InstepError):
            self.abort()
        for producer in self._producers:
            producer.purge()

    def settle(self) -> None:
        """Wait until every record is acknowledged. The client keeps the order of a key."""
        silence = _Silence(self._producer, self._silence_max_s)
        while self._wait(lambda: self._producer.flush(CALL_TIMEOUT_S)):
            silence.check()
            if self._is_stopped():
                raise errors.SessionEnded("the session was stopped before the broker answered")
        if self._failed is not None:
            raise self._translated(self._failed)

    def _commit_transaction(self) -> None:
        self._retry(self._producer.commit_transaction)
        self._begun.clear()
        self._commits += 1
        self._producer = self._producers[self._commits % len(self._producers)]

    def _write(self, key: bytes, value: bytes) -> None:
        """Add a record to the partition of the position."""
        try:
            self._producer.produce(self._place.topic, value, key, self._place.partition)
        except (BufferError, KafkaException) as failure:
            raise errors.SessionEnded(f"the position cannot be written: {failure}") from failure

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed = self._failed or error

    def _retry(self, call: Callable[[float], None]) -> None:
        """Repeat a call while its error is temporary."""
        refused_since = time.monotonic()
        silence = _Silence(self._producer, self._silence_max_s)
        while True:
            try:
                call(CALL_TIMEOUT_S)
            except KafkaException as failure:
                if not failure.args[0].retriable():
                    raise self._ended(failure) from failure
                if self._error_log.refused_by_all(refused_since):
                    raise self._translated(failure.args[0]) from failure
                silence.check()
                if self._is_stopped():
                    raise errors.SessionEnded(
                        "the session was stopped before the broker answered"
                    ) from failure
            else:
                return

    def _wait(self, call: Callable[[], int]) -> int:
        """Let the client work. It raises here that it was fenced, too."""
        try:
            return call()
        except KafkaException as failure:
            raise self._ended(failure) from failure

    def _call(self, call: Callable[[], None]) -> None:
        try:
            call()
        except KafkaException as failure:
            raise self._ended(failure) from failure

    def _ended(self, failure: KafkaException) -> errors.InstepError:
        """Return why the session cannot go on. Nobody decides here what became of a commit."""
        error = failure.args[0]
        ours = self._translated(error)
        if isinstance(ours, errors.NotAuthorised | errors.SettingsError):
            return ours
        return errors.SessionEnded(f"Kafka ended the session: {error.str()}")

    def _translated(self, error: KafkaError) -> errors.InstepError:
        return faults.translate(error, self._operation, self._error_log)


def _init_transactions(producer: Producer, attempts_s: Iterator[float], timeout_s: float) -> None:
    """Call `init_transactions` with the time of the next attempt, or else with `timeout_s`."""
    producer.init_transactions(next(attempts_s, timeout_s))


class _Silence:
    """How long the brokers have not answered: neither to a call, nor for any record."""

    def __init__(self, producer: Producer, max_s: float | None) -> None:
        self._producer, self._max_s = producer, max_s
        self._waiting, self._since = len(producer), time.monotonic()

    def check(self) -> None:
        """Raise SessionEnded if it is too long."""
        if len(self._producer) < self._waiting:
            self._waiting, self._since = len(self._producer), time.monotonic()
        if self._max_s is not None and time.monotonic() > self._since + self._max_s:
            raise errors.SessionEnded(f"Kafka has not answered for {self._max_s:.0f} seconds")
