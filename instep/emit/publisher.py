"""The publisher for source systems: status events to a topic, in order per document.

It never drops a record silently.

    with Publisher("broker:9092", "print-status", source="print-system") as publisher:
        # fire and forget: leaving the block raises if a record failed
        publisher.send(event)
        # wait: returns the position in the log, or raises Undelivered
        publisher.send(event).result()
        # callback(error, delivery), on the publisher's own thread
        publisher.send(event, on_delivery=callback)

A record is open from `send` until the broker's answer. A thread of the publisher polls the client
for answers, so that waiting never depends on other calls. `flush`, leaving the block, the end of
the interpreter and SIGTERM all wait until the records sent before are settled, or for
`flush_timeout_s`.

A publisher belongs to the process that created it: its connection and its thread do not exist in
a forked process, where every use of it raises.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from instep import errors, settings
from instep.document import event
from instep.emit import deliveries, guarantees, metrics, outgoing, termination
from instep.kafka import connection, faults, offsets, topics
from instep.waiting import wait_until

POLL_S = 0.05
ANY_PARTITION, NOW = -1, 0  # the client's own defaults
# While records are sent this fast, their answers are taken in turns with the senders.
BUSY_RECORDS = 50  # between two polls
TURN_PAUSE_S = 0.005
TOO_LARGE = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
)
LEADERS_TIMEOUT_S = 5.0
GIVEN_UP = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._DESTROY)
PUBLISH_AGAIN = "publish them again: a repeated event with the same version changes nothing"
AFTER_FORK = "create a publisher in each process, after the fork"


def _wait_for_leaders(cluster: connection.Cluster, topic: str, timeout_s: float) -> str:
    """Wait until the leader of every partition answers, and return the topic's id.

    Raise TopicMissing without a topic.

    A broker accepts any first sequence number from a producer that it does not know. On a new
    topic, a leader that refused the first batch for a moment would therefore take the second, and
    then take the first, which is sent again, for a repetition: acknowledged and lost. A partition
    that has no leader for longer refuses all batches alike, so it is not waited for.
    """
    found = topics.describe(cluster, topic)
    pairs = [(topic, partition) for partition in found.partitions]
    wait_until(lambda: len(offsets.spans(cluster, pairs)) == len(pairs), timeout_s)
    return found.id


class Publisher:
    """Sends to one topic. Thread-safe.

    Further keyword arguments are librdkafka settings: `linger_ms=20` for linger.ms.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        source: str = "instep",
        security: settings.Security | None = None,
        guarantee: settings.Guarantee = "exactly-once",
        flush_timeout_s: float = 30.0,
        block_timeout_s: float = 60.0,
        start_timeout_s: float = connection.TIMEOUT_S,
        outcomes: deliveries.Outcomes | None = None,
        **librdkafka: Any,
    ) -> None:
        """Check the topic and the access to it, for at most `start_timeout_s`.

        With `outcomes`, receipts can tell what the pipeline did with their records.

        Raises SettingsError, BrokerUnreachable, NotAuthorised or TopicMissing.
        """
        kafka = settings.Kafka(bootstrap=bootstrap, security=security or settings.Security())
        connection.check_files(kafka.security)
        config = {
            **connection.client_config(kafka, bootstrap),
            **guarantees.producer_config(guarantee, librdkafka),
        }
        self.topic = topic
        self.source = source
        self._outcomes = outcomes
        self.flush_timeout_s = flush_timeout_s
        self.block_timeout_s = block_timeout_s
        self._operation = faults.Operation(
            f"publish to topic {topic!r}",
            bootstrap,
            faults.identity(kafka.security),
            topic,
            right="WRITE",
        )
        self._error_log = faults.ErrorLog()
        self._counter = deliveries.DeliveryCounter()
        self._counter.on_answer = self._report
        self._closing = threading.Lock()
        # What sending has to do first: None, or a function that raises.
        self._obstacle: Callable[[], None] | None = None
        self._process = os.getpid()
        self._ends: dict[int, int] = {}
        self._stopped = False
        self._released = False
        self._given_up_since = 0.0
        self._termination = termination.Termination(
            lambda: self._counter.mark, flush_timeout_s, self._block_sending
        )
        # First the settings, which need no broker; then the topic, which shows whether records
        # can be delivered.
        try:
            self._producer = Producer(
                {**config, "error_cb": self._error_log.add}, logger=faults.log
            )
        except KafkaException as failure:
            raise faults.translate(failure.args[0], self._operation) from failure
        self._produce = self._producer.produce
        try:
            with connection.Cluster(
                kafka, bootstrap, start_timeout_s, extra_config=guarantees.for_any_client(config)
            ) as cluster:
                self._topic_id = _wait_for_leaders(
                    cluster, topic, min(start_timeout_s, LEADERS_TIMEOUT_S)
                )
        except errors.InstepError:
            self._producer.close()
            raise
        self._bytes_max = int(config["message.max.bytes"])
        self._delivery_timeout_s = int(config.get("message.timeout.ms", 300_000)) / 1000
        self._thread = threading.Thread(
            target=self._report_deliveries, name=f"instep-publisher-{topic}", daemon=True
        )
        self._thread.start()
        self._termination.install()
        atexit.register(self.close)
        _living.add(self)

    def send(
        self, status_event: event.StatusEvent, *, on_delivery: deliveries.OnDelivery | None = None
    ) -> deliveries.Receipt:
        """Send an event. The future may be ignored: `flush` raises unreported failures."""
        record = outgoing.from_event(status_event, self.source)
        # the body of `_send`, since a call would take longer than all that it does
        receipt = self._try_send(record, on_delivery)
        return self._send_when_possible(record, on_delivery) if receipt is None else receipt

    def delete(
        self,
        document: str,
        *,
        at: datetime | None = None,
        on_delivery: deliveries.OnDelivery | None = None,
    ) -> deliveries.Receipt:
        """Send a delete: a record without a value."""
        return self._send(outgoing.from_deletion(document, self.source, at), on_delivery)

    def send_raw(
        self,
        key: bytes,
        value: bytes | None,
        headers: outgoing.Headers | None = None,
        *,
        on_delivery: deliveries.OnDelivery | None = None,
    ) -> deliveries.Receipt:
        """Send encoded bytes: the document's id and a JSON object, both in UTF-8."""
        record = outgoing.from_bytes(key, value, headers, self.source)
        # as in `send`
        receipt = self._try_send(record, on_delivery)
        return self._send_when_possible(record, on_delivery) if receipt is None else receipt

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the records sent before are settled.

        Raises Undelivered for unreported failures, and for records that are still open.
        """
        self._settle(timeout_s)
        deliveries.raise_undelivered(self._counter, self.topic)

    def _settle(self, timeout_s: float | None) -> None:
        """Wait until the records sent before are settled; raise if some are still open."""
        if self._is_inherited:
            self._refuse_inherited()
        mark, since = self._counter.mark, time.monotonic()
        timeout_s = self.flush_timeout_s if timeout_s is None else timeout_s
        if not self._counter.wait_settled(mark, timeout_s):
            raise self._still_open(self._counter.open_up_to(mark), timeout_s, since)

    def metrics(self) -> metrics.PublisherMetrics:
        """Return the counts of records so far, and how long acknowledgements took."""
        client_error = self._error_log.last(self._counter.last_failure_at or -1.0)
        last_error = None if client_error is None else faults.readable(client_error)
        return metrics.measured(self.topic, self.source, self._counter, last_error)

    def close(self) -> None:
        """Flush and close. Records that are open after `flush_timeout_s` count as failures.

        In a forked process this does nothing: the records belong to the process that sent them.
        """
        if self._is_inherited:
            return
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError(
                "a delivery callback cannot close its publisher: it would wait for itself"
            )
        with self._closing:
            if not self._released:
                since = time.monotonic()
                self._obstacle = self._refuse_closed
                self._counter.wait_settled(self._counter.mark, self.flush_timeout_s)
                self._stopped = True
                self._thread.join()
                self._give_up_open(since)
                self._producer.close()
                atexit.unregister(self.close)
                if self._termination.is_fatal:
                    self._log_lost()
                self._released = True
                self._termination.end()
        deliveries.raise_undelivered(self._counter, self.topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except errors.Undelivered as failure:
            if value is None:
                raise
            add_to_exception(value, failure)

    # --- on the sender's thread ----------------------------------------------------------------

    def _send(
        self, record: outgoing.OutgoingRecord, on_delivery: deliveries.OnDelivery | None
    ) -> deliveries.Receipt:
        receipt = self._try_send(record, on_delivery)
        if receipt is None:
            receipt = self._send_when_possible(record, on_delivery)
        return receipt

    def _try_send(
        self, record: outgoing.OutgoingRecord, on_delivery: deliveries.OnDelivery | None
    ) -> deliveries.Receipt | None:
        """Send a record without waiting; return None if the queue is full."""
        if self._obstacle is not None:
            self._obstacle()
        key, value, headers = record.key, record.value, record.headers
        size = len(key) if value is None else len(key) + len(value)
        followed = None
        if self._outcomes is not None:
            followed = deliveries.FollowedRecord(self._outcomes, record, self._topic_id)
        given: Any = headers if isinstance(headers, list) else list(headers)
        receipt = self._counter.begin(on_delivery, followed, size)
        try:
            # By position: with names, the call would take a third longer.
            self._produce(self.topic, value, key, ANY_PARTITION, receipt, None, NOW, given)
        except BufferError:
            self._counter.withdraw(receipt)
            return None
        except KafkaException as failure:
            undelivered = self._undelivered(failure.args[0], key, value)
            undelivered.__cause__ = failure
            if self._error_log.fatal:
                self._counter.withdraw(receipt)
                raise undelivered from failure
            self._counter.settle(receipt, undelivered, None)
        except RuntimeError as failure:
            self._counter.withdraw(receipt)
            raise closed(self.topic) from failure
        except Exception:  # such as TypeError for a header that is neither text nor bytes
            self._counter.withdraw(receipt)
            raise
        return receipt

    def _send_when_possible(
        self, record: outgoing.OutgoingRecord, on_delivery: deliveries.OnDelivery | None
    ) -> deliveries.Receipt:
        """Wait until the full queue has space. A callback cannot wait: it blocks the deliveries."""
        if threading.get_ident() == self._thread.ident:
            raise self._queue_full()
        deadline = time.monotonic() + self.block_timeout_s
        while True:
            # Wait for half the queue: to be woken for each record would cost more than to send it,
            # since two threads would compete for Python's lock (the GIL) all the time.
            self._counter.wait_space(self._counter.open // 2, POLL_S)
            receipt = self._try_send(record, on_delivery)
            if receipt is not None:
                return receipt
            if time.monotonic() > deadline:
                raise self._queue_full(self.block_timeout_s)

    def _queue_full(self, waited_s: float | None = None) -> errors.Undelivered:
        """Return the error for a record that found no space in the queue."""
        return full_queue(self.topic, waited_s, self._last_error(0))

    def _block_sending(self) -> None:
        self._obstacle = self._wait_for_termination

    def _wait_for_termination(self) -> None:
        """Refuse records after SIGTERM: they would be lost with the process."""
        if threading.get_ident() != self._thread.ident:
            threading.Event().wait(self.flush_timeout_s + 1.0)
        raise errors.Undelivered(
            f"the process is ending: no more records are sent to topic {self.topic!r}"
        )

    def _refuse_closed(self) -> None:
        raise closed(self.topic)

    def _refuse_inherited(self) -> None:
        raise self._inherited()

    def _inherited(self) -> errors.Undelivered:
        return errors.Undelivered(
            f"the publisher to topic {self.topic!r} was created in process {self._process},"
            f" and this is process {os.getpid()}: it cannot send or wait here",
            AFTER_FORK,
        )

    @property
    def _is_inherited(self) -> bool:
        return self._obstacle == self._refuse_inherited

    def _enter_child(self) -> None:
        """Give up the publisher in a forked process: it has neither thread nor connection here."""
        self._obstacle = self._refuse_inherited
        atexit.unregister(self.close)
        self._termination.abandon()
        self._counter.abandon(self._inherited())
        # Destroying the client would wait for threads that do not exist here, so it is never freed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._producer))

    def _still_open(self, count: int, timeout_s: float, since: float) -> errors.Undelivered:
        records = "1 record is" if count == 1 else f"{count} records are"
        return errors.Undelivered(
            f"{records} not confirmed by topic {self.topic!r} after {timeout_s:g} s"
            f"{self._last_error(since)}",
            "flush again when the broker is back;"
            " publish again any records that are still unconfirmed at the end",
        )

    def _give_up_open(self, since: float) -> None:
        if not self._counter.open_up_to(self._counter.mark):
            return
        self._given_up_since = since
        self._producer.purge()
        while self._counter.open_up_to(self._counter.mark):
            self._poll()

    # --- on the publisher's own thread ---------------------------------------------------------

    def _report_deliveries(self) -> None:
        self._counter.reporter = threading.get_ident()
        polled_at = 0
        while not self._stopped:
            is_busy = self._counter.mark - polled_at > BUSY_RECORDS
            polled_at = self._counter.mark
            if is_busy:
                self._counter.pause(TURN_PAUSE_S)
                with self._counter.hold_senders():
                    self._poll(0)
            else:
                self._poll()
            if self._termination.is_due(self._counter.is_settled):
                if self._termination.is_fatal:
                    self._log_lost()
                self._termination.resume()

    def _poll(self, timeout_s: float = POLL_S) -> None:
        """Let the client call the delivery callbacks.

        A fatal error is an exception; records without an answer are given up.
        """
        try:
            self._producer.poll(timeout_s)
        except KafkaException as failure:
            self._error_log.add(failure.args[0])
            self._producer.purge()

    def _report(
        self, receipt: deliveries.Receipt, error: KafkaError | None, message: Message
    ) -> None:
        if error is not None:
            undelivered = self._undelivered(error, message.key() or b"", message.value())
            undelivered.__cause__ = KafkaException(error)
            self._counter.settle(receipt, undelivered, None)
            return
        partition, offset = message.partition() or 0, message.offset()
        if offset is None:  # the broker gives none without acknowledgements
            offset = 0
        else:
            ends = self._ends
            if offset < ends.get(partition, 0):
                self._log_replaced(partition, offset)
            ends[partition] = offset + 1
        counter = self._counter
        counter.latencies_s.append(message.latency() or 0.0)
        delivery = deliveries.Delivery(self.topic, partition, offset, message.timestamp()[1])
        counter.settle(receipt, None, delivery)

    def _log_replaced(self, partition: int, offset: int) -> None:
        """Log that offsets start again: the records before are gone with the former topic."""
        deliveries.log.warning(
            "partition %d of topic %r had %d records and now continues at offset %d: the topic was"
            " deleted and created again, or its log was cut off",
            partition,
            self.topic,
            self._ends[partition],
            offset,
        )

    def _log_lost(self) -> None:
        """Log undelivered records before the process ends: nobody else can report them."""
        still_open = self._counter.open_up_to(self._counter.mark)
        count, first = self._counter.take_undelivered()
        if still_open or count:
            reason = f"not confirmed{self._last_error(0)}"
            if first is not None:
                reason = first.what
            deliveries.log.error(
                "SIGTERM: %d records not delivered to topic %r: %s",
                still_open + count,
                self.topic,
                reason,
            )

    def _undelivered(
        self, error: KafkaError, key: bytes, value: bytes | None
    ) -> errors.Undelivered:
        """Return the error for a record that the broker or the client refused."""
        record = f"the record of document {key.decode('utf-8', 'replace')!r}"
        if faults.MEANING.get((self._error_log.fatal or error).code()) is errors.NotAuthorised:
            refusal = faults.translate(self._error_log.fatal or error, self._operation)
            return errors.Undelivered(
                f"{record} was not accepted: {refusal.what}",
                f"have the cluster's administrator grant WRITE on topic {self.topic!r},"
                " then create a new publisher",
            )
        if self._error_log.fatal is not None:
            return errors.Undelivered(
                f"{record} was not accepted: the publisher cannot continue:"
                f" {faults.readable(self._error_log.fatal)} ({self._error_log.fatal.name()})",
                "close it and create a new one",
            )
        if error.code() in TOO_LARGE:
            return errors.Undelivered(
                f"{record} is too large: {len(key) + len(value or b''):,} bytes;"
                f" the publisher's message.max.bytes is {self._bytes_max:,},"
                " and the topic's max.message.bytes may be less",
                "make it smaller, or increase both;"
                " if only some of many small records fail like this, reduce batch.size",
            )
        if faults.MEANING.get(error.code()) is errors.TopicMissing:
            return errors.Undelivered(
                f"{record} was not accepted: topic {self.topic!r} does not exist any more, or has"
                f" fewer partitions than before ({error.name()})",
                "create the topic again with as many partitions as before, then publish them again",
            )
        if error.code() == KafkaError._MSG_TIMED_OUT:
            return errors.Undelivered(
                f"{record} was not confirmed within {self._delivery_timeout_s:g} s"
                f" (message.timeout.ms){self._last_error(0)}",
                PUBLISH_AGAIN,
            )
        if error.code() in GIVEN_UP:
            return errors.Undelivered(
                f"{record} was not confirmed within {self.flush_timeout_s:g} s"
                f"{self._last_error(self._given_up_since)}",
                PUBLISH_AGAIN,
            )
        return errors.Undelivered(
            f"{record} was not accepted: {faults.readable(error)} ({error.name()})", PUBLISH_AGAIN
        )

    def _last_error(self, since: float) -> str:
        last = self._error_log.last(since)
        if last is None:
            return ""
        return f" (last: {faults.readable(last)})"


def closed(topic: str) -> errors.Undelivered:
    """Return the error for a record that is sent after the end."""
    return errors.Undelivered(
        f"the publisher to topic {topic!r} is closed", "send before leaving the `with` block"
    )


def full_queue(topic: str, waited_s: float | None, last_error: str = "") -> errors.Undelivered:
    """Return the error for a record that found no space in the queue."""
    waited = "" if waited_s is None else f" after {waited_s:g} s"
    return errors.Undelivered(
        f"no space in the queue to topic {topic!r}{waited}{last_error}",
        "send more slowly, increase queue.buffering.max.messages, or wait for the broker",
    )


def add_to_exception(value: BaseException, failure: errors.Undelivered) -> None:
    """Report a failure beside the exception that ends a block, which it must not hide."""
    value.add_note(str(failure))
    deliveries.log.error("%s", failure.what)


_living: weakref.WeakSet[Publisher] = weakref.WeakSet()


def _enter_child() -> None:
    for publisher in list(_living):
        publisher._enter_child()


os.register_at_fork(after_in_child=_enter_child)
