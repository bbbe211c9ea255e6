"""The publisher for source systems: status events to a topic, in order per document, and never a silent drop.

    with Publisher("broker:9092", "print-status", source="print-system") as publisher:
        publisher.send(event)                              # fire and forget: leaving the block raises what failed
        publisher.send(event).result()                     # wait: where it stands in the log, or Undelivered
        publisher.send(event, on_delivery=callback)        # callback(error, delivery), from the publisher's own thread

The model. A record is open from `send` until the broker's answer. One thread of the publisher asks the client for
answers, so that waiting never depends on who else calls what. `flush`, leaving the block, the end of the interpreter and
SIGTERM all wait until what was sent before them is settled, or for `flush_timeout_s`.
"""

from __future__ import annotations

import atexit
import functools
import threading
import time
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from instep import errors, settings
from instep.document import event
from instep.emit import deliveries, guarantees, outgoing, termination
from instep.kafka import connection, faults, offsets, topics

POLL_S = 0.05
TOO_LARGE = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
)
GIVEN_UP = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._DESTROY)
AGAIN = "publish them again: a repeated event with the same version changes nothing"


class Publisher:
    """Sends to one topic. Thread-safe. Further keyword arguments are librdkafka settings, `linger_ms=20` for linger.ms."""

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
        **librdkafka: Any,
    ) -> None:
        """Raises SettingsError, BrokerUnreachable, NotAuthorised or TopicMissing, at the latest after `start_timeout_s`."""
        kafka = settings.Kafka(bootstrap=bootstrap, security=security or settings.Security())
        connection.check_files(kafka.security)
        config = {
            **connection.client_config(kafka, bootstrap),
            **guarantees.producer_config(guarantee, librdkafka),
        }
        self.topic = topic
        self.source = source
        self.flush_timeout_s = flush_timeout_s
        self.block_timeout_s = block_timeout_s
        self._operation = faults.Operation(
            f"publish to topic {topic!r}",
            bootstrap,
            faults.who(kafka.security),
            topic,
            right="WRITE",
        )
        self._error_log = faults.ErrorLog()
        self._tally = deliveries.DeliveryCounter()
        self._closing = threading.Lock()
        self._closed = False
        self._stopped = False
        self._released = False
        self._given_up_since = 0.0
        self._termination = termination.Termination(lambda: self._tally.mark, flush_timeout_s)
        # The settings first, for they need no broker; then the topic, which tells every reason why nothing would arrive.
        try:
            self._producer = Producer(
                {**config, "error_cb": self._error_log.add}, logger=faults.log
            )
        except KafkaException as failure:
            raise faults.translate(failure.args[0], self._operation) from failure
        try:
            with connection.Cluster(
                kafka, bootstrap, start_timeout_s, further=guarantees.for_any_client(config)
            ) as cluster:
                partitions = topics.describe(cluster, topic).partitions
                # A broker accepts any first sequence number from a producer that it does not know.
                # On a new topic, a leader that refused the first batch for a moment would
                # therefore take the second before the first is retried: wait until leaders answer.
                offsets.spans(cluster, [(topic, partition) for partition in partitions])
        except errors.InstepError:
            self._producer.close()
            raise
        self._bytes_max = int(config["message.max.bytes"])
        self._thread = threading.Thread(
            target=self._report_deliveries, name=f"instep-publisher-{topic}", daemon=True
        )
        self._thread.start()
        self._termination.install()
        atexit.register(self.close)

    def send(
        self, status_event: event.StatusEvent, *, on_delivery: deliveries.OnDelivery | None = None
    ) -> deliveries.Receipt:
        """Send an event. The future may be ignored: `flush` raises what nobody was told of."""
        return self._send(outgoing.from_event(status_event, self.source), on_delivery)

    def delete(
        self,
        document: str,
        *,
        at: datetime | None = None,
        on_delivery: deliveries.OnDelivery | None = None,
    ) -> deliveries.Receipt:
        """Send a document's deletion: a null value."""
        return self._send(outgoing.from_deletion(document, self.source, at), on_delivery)

    def send_raw(
        self,
        key: bytes,
        value: bytes | None,
        headers: outgoing.Headers | None = None,
        *,
        on_delivery: deliveries.OnDelivery | None = None,
    ) -> deliveries.Receipt:
        """Send ready bytes: the document's id and a JSON object, both in UTF-8."""
        return self._send(outgoing.from_bytes(key, value, headers, self.source), on_delivery)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until what was sent before is settled; raise Undelivered for what failed untold or is still open."""
        mark, since = self._tally.mark, time.monotonic()
        patience_s = self.flush_timeout_s if timeout_s is None else timeout_s
        if not self._tally.wait_settled(mark, patience_s):
            raise self._still_open(self._tally.open_up_to(mark), patience_s, since)
        self._raise_untold()

    def close(self) -> None:
        """Flush and let go of everything. What is still open after `flush_timeout_s` is given up, and told."""
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError(
                "a delivery callback cannot close its publisher: it would wait for itself"
            )
        with self._closing:
            if not self._released:
                since = time.monotonic()
                self._closed = True
                self._tally.wait_settled(self._tally.mark, self.flush_timeout_s)
                self._stopped = True
                self._thread.join()
                self._give_up_open(since)
                self._producer.close()
                atexit.unregister(self.close)
                if self._termination.is_fatal:
                    self._log_lost()
                self._released = True
                self._termination.end()
        self._raise_untold()

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
            # The block's own exception must not be hidden by ours.
            value.add_note(str(failure))
            deliveries.log.error("%s", failure.what)

    # --- on the sender's thread ---------------------------------------------------------------------------

    def _send(
        self, record: outgoing.OutgoingRecord, on_delivery: deliveries.OnDelivery | None
    ) -> deliveries.Receipt:
        if self._termination.is_fatal:
            self._await_the_end()
        if self._closed:
            raise errors.Undelivered(
                f"the publisher to topic {self.topic!r} is closed", "send before the block is left"
            )
        receipt = self._tally.begin(on_delivery)
        report = functools.partial(self._report, receipt)
        deadline = time.monotonic() + self.block_timeout_s
        while True:
            try:
                self._producer.produce(
                    self.topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    on_delivery=report,
                )
            except BufferError as failure:
                self._wait_for_room(receipt, deadline, failure)
            except KafkaException as failure:
                undelivered = self._undelivered(failure.args[0], record.key, record.value)
                undelivered.__cause__ = failure
                if self._error_log.fatal:
                    self._tally.withdraw(receipt)
                    raise undelivered from failure
                self._tally.settle(receipt, undelivered, None)
                return receipt
            except RuntimeError as failure:
                self._tally.withdraw(receipt)
                raise errors.Undelivered(
                    f"the publisher to topic {self.topic!r} is closed"
                ) from failure
            else:
                return receipt

    def _wait_for_room(
        self, receipt: deliveries.Receipt, deadline: float, failure: BufferError
    ) -> None:
        """The queue is full: wait until a record is settled. A callback cannot, as it holds up the settling."""
        in_callback = threading.get_ident() == self._thread.ident
        if in_callback or time.monotonic() > deadline:
            self._tally.withdraw(receipt)
            waited = "" if in_callback else f" after {self.block_timeout_s:g} s"
            raise errors.Undelivered(
                f"no room in the queue to topic {self.topic!r}{waited}{self._last_heard(0)}",
                "send slower, raise queue.buffering.max.messages, or wait for the broker",
            ) from failure
        self._tally.wait_change(POLL_S)

    def _await_the_end(self) -> None:
        """SIGTERM came: what is sent now would die with the process, so it is not taken any more."""
        if threading.get_ident() != self._thread.ident:
            threading.Event().wait(self.flush_timeout_s + 1.0)
        raise errors.Undelivered(
            f"the process is ending: nothing more is sent to topic {self.topic!r}"
        )

    def _raise_untold(self) -> None:
        count, first = self._tally.take_untold()
        if first is not None:
            records = "1 record was" if count == 1 else f"{count} records were"
            raise errors.Undelivered(
                f"{records} not delivered to topic {self.topic!r}: {first.what}", first.remedy
            ) from first

    def _still_open(self, count: int, patience_s: float, since: float) -> errors.Undelivered:
        records = "1 record is" if count == 1 else f"{count} records are"
        return errors.Undelivered(
            f"{records} not confirmed by topic {self.topic!r} after {patience_s:g} s{self._last_heard(since)}",
            "flush again when the broker is back; what stays unconfirmed at the end, publish again",
        )

    def _give_up_open(self, since: float) -> None:
        if not self._tally.open_up_to(self._tally.mark):
            return
        self._given_up_since = since
        self._producer.purge()
        while self._tally.open_up_to(self._tally.mark):
            self._poll()

    # --- on the publisher's own thread --------------------------------------------------------------------

    def _report_deliveries(self) -> None:
        self._tally.reporter = threading.get_ident()
        while not self._stopped:
            self._poll()
            if self._termination.is_due(self._tally.is_settled):
                if self._termination.is_fatal:
                    self._log_lost()
                self._termination.go_on()

    def _poll(self) -> None:
        """Let the client report. A fatal error comes as an exception; it leaves records unanswered, so they are given up."""
        try:
            self._producer.poll(POLL_S)
        except KafkaException as failure:
            self._error_log.add(failure.args[0])
            self._producer.purge()

    def _report(
        self, receipt: deliveries.Receipt, error: KafkaError | None, message: Message
    ) -> None:
        if error is None:
            place = deliveries.Delivery(
                self.topic, message.partition() or 0, message.offset() or 0, message.timestamp()[1]
            )
            self._tally.settle(receipt, None, place)
        else:
            undelivered = self._undelivered(error, message.key() or b"", message.value())
            undelivered.__cause__ = KafkaException(error)
            self._tally.settle(receipt, undelivered, None)

    def _log_lost(self) -> None:
        """The process dies next: nobody else will be able to tell."""
        still_open = self._tally.open_up_to(self._tally.mark)
        count, first = self._tally.take_untold()
        if still_open or count:
            reason = first.what if first else f"not confirmed{self._last_heard(0)}"
            deliveries.log.error(
                "SIGTERM: %d records not delivered to topic %r: %s",
                still_open + count,
                self.topic,
                reason,
            )

    def _undelivered(
        self, error: KafkaError, key: bytes, value: bytes | None
    ) -> errors.Undelivered:
        """The broker's or the client's refusal of one record, in our words."""
        record = f"the record of document {key.decode('utf-8', 'replace')!r}"
        if faults.MEANING.get((self._error_log.fatal or error).code()) is errors.NotAuthorised:
            refusal = faults.translate(self._error_log.fatal or error, self._operation)
            return errors.Undelivered(
                f"{record} was not taken: {refusal.what}",
                f"have WRITE on topic {self.topic!r} granted by the cluster's administrator, then make a new publisher",
            )
        if self._error_log.fatal is not None:
            return errors.Undelivered(
                f"{record} was not taken: the publisher cannot go on: {faults.readable(self._error_log.fatal)}"
                f" ({self._error_log.fatal.name()})",
                "close it and make a new one",
            )
        if error.code() in TOO_LARGE:
            return errors.Undelivered(
                f"{record} is too large: {len(key) + len(value or b''):,} bytes; the publisher's message.max.bytes is"
                f" {self._bytes_max:,}, and the topic's max.message.bytes may be less",
                "make it smaller, or raise both; if only some of many small records fail so, lower batch.size",
            )
        if error.code() in GIVEN_UP:
            return errors.Undelivered(
                f"{record} was not confirmed within {self.flush_timeout_s:g} s{self._last_heard(self._given_up_since)}",
                AGAIN,
            )
        return errors.Undelivered(
            f"{record} was not taken: {faults.readable(error)} ({error.name()})", AGAIN
        )

    def _last_heard(self, since: float) -> str:
        last = self._error_log.last(since)
        return f" (last: {faults.readable(last)})" if last else ""
