"""The source system: events for many documents, from a plain and a transactional publisher."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.support import model

PARTITIONS = 3
ALIVE = 80  # documents that get events at the same time; older ones get none
ROUND = 120  # records of a topic in one round
PAUSE_S = 0.8
SLOTS = 30  # per partition; documents take them from each other
TRANSACTION_MS = 10_000
STATUSES = sorted(model.STATUSES)


@dataclass
class Stream:
    """The events of one topic.

    Even documents are calm: full events only. Odd documents get every kind of event. In a topic
    with an order, calm documents move to other partitions when it grows; see the package's
    docstring.
    """

    topic: str
    ordered: bool
    dice: random.Random
    partitions: int = PARTITIONS
    newest: int = ALIVE
    sent: int = 0
    homes: dict[int, int] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    calm_events: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def next_round(self) -> list[tuple[str, bytes | None, int]]:
        """Return key, value and partition of the next records.

        Every third round has calm documents only, as most real batches do.
        """
        calm_only = self.dice.random() < 0.33
        return [self._record(calm_only) for _ in range(ROUND)]

    def _record(self, calm_only: bool) -> tuple[str, bytes | None, int]:
        self.newest += self.dice.random() < 0.05
        number = self.dice.randrange(self.newest - ALIVE, self.newest)
        if number % 2 and calm_only:
            number -= 1
        self.sent += 1
        home = self.homes.setdefault(number, number % self.partitions)
        if number % 2 == 0:
            partition = number // 2 % self.partitions if self.ordered else home
            return f"d{number}", json.dumps(self._calm(number)).encode(), partition
        return f"d{number}", self._wild(number, home), home

    def _calm(self, number: int) -> dict[str, Any]:
        """Return a new event with every field, or sometimes an earlier one unchanged."""
        before = self.calm_events.setdefault(number, [])
        if before and self.dice.random() < 0.1:
            return self.dice.choice(before[-4:])
        before.append(
            self._body(number, 1)
            | {"pages": self.dice.choice((1, 2, 40)), "place": "Rome", "note": "n", "slot": None}
        )
        return before[-1]

    def _wild(self, number: int, home: int) -> bytes | None:
        kinds = ("good", "late", "delete", "refused", "not json", "wrong type")
        match self.dice.choices(kinds, (78, 8, 8, 2, 2, 2))[0]:
            case "delete":
                return None
            case "not json":
                return b'{"doc_id": "'
            case "wrong type":
                body = self._body(number, 1) | {"note": ["x"]}
            case "late":
                body = self._body(number, self.dice.choice((0, 0, -1, -3)))
            case "refused":
                odd: list[dict[str, Any]] = [
                    {"place": "x" * 21},
                    {"pages": model.UNLUCKY_PAGES},
                    {"status": "QUEUED", "pages": 99},
                ]
                body = self._body(number, 1) | self.dice.choice(odd)
            case _:
                body = self._body(number, 1) | self._some(home)
        return json.dumps(body).encode()

    def _body(self, number: int, later_by: int) -> dict[str, Any]:
        version = self.versions.get(number, 0) + later_by
        self.versions[number] = max(version, self.versions.get(number, 0))
        status = self.dice.choice(STATUSES)
        return {
            "doc_id": f"d{number}",
            "status": status,
            "version": version,
            "uid": f"{number}.{self.sent}",
        }

    def _some(self, home: int) -> dict[str, Any]:
        """Return the optional fields of an event.

        No slot is used in two partitions: which document is first would be random.
        """
        slots = (None, None, *(100 * home + number for number in range(SLOTS)))
        choices = {
            "pages": (1, 2, 40, None),
            "place": ("Rome", "Oslo", None),
            "note": ("n", "", None),
        }
        some = {
            name: self.dice.choice(values)
            for name, values in choices.items()
            if self.dice.random() < 0.3
        }
        return {**some, "slot": self.dice.choice(slots)} if self.dice.random() < 0.1 else some


class Publisher:
    """A publisher that sends rounds of each stream until stopped, and waits for the broker."""

    def __init__(self, bootstrap: str, streams: list[Stream], dice: random.Random) -> None:
        self.streams, self.dice = streams, dice
        self.committed = self.aborted = 0
        self._bootstrap = bootstrap
        self._plain = Producer({**self._config(), "enable.idempotence": True})
        self._transactional: Producer | None = None
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def grow(self, partitions: int) -> None:
        """Use all partitions that the topics have now. Call this after the topics have grown."""
        with self._turn:
            for stream in self.streams:
                while (
                    len(self._plain.list_topics(stream.topic, 10).topics[stream.topic].partitions)
                    < partitions
                ):
                    self._over.wait(0.1)
                stream.partitions = partitions
            self._transactional = None  # a new producer knows the new partitions

    def stop(self) -> None:
        """Flush, and abort a transaction that is still open."""
        self._over.set()
        self._thread.join()
        if self._failure:
            raise self._failure
        if self._plain.flush(60):
            raise AssertionError("the broker did not take all records within 60 s")
        self._transactions()

    def _run(self) -> None:
        try:
            while not self._over.wait(PAUSE_S):
                with self._turn:
                    for stream in self.streams:
                        self._send(stream)
        except BaseException as failure:
            self._failure = failure

    def _send(self, stream: Stream) -> None:
        records = stream.next_round()
        how = self.dice.choices(("plain", "commit", "abort"), (60, 25, 15))[0]
        if how == "plain":
            self._produce(self._plain, stream.topic, records)
            self._plain.flush(5)
            return
        try:
            producer = self._transactions()
            producer.begin_transaction()
            self._produce(producer, stream.topic, records)
            if how == "commit":
                producer.commit_transaction(10)
                self.committed += 1
            else:
                producer.flush(5)  # so that the aborted records are in the log
                producer.abort_transaction(10)
                self.aborted += 1
        except KafkaException:  # the broker is down: the log has the outcome of the transaction
            self._transactional = None

    def _produce(
        self, producer: Producer, topic: str, records: list[tuple[str, bytes | None, int]]
    ) -> None:
        for key, value, partition in records:
            while True:
                try:
                    producer.produce(topic, value, key, partition)
                except BufferError:
                    producer.poll(0.1)
                else:
                    break
        producer.poll(0)

    def _transactions(self) -> Producer:
        if self._transactional is None:
            config = {
                **self._config(),
                "transactional.id": "campaign",
                "transaction.timeout.ms": TRANSACTION_MS,
            }
            made = Producer(config)
            made.init_transactions(30)
            self._transactional = made
        return self._transactional

    def _config(self) -> dict[str, Any]:
        quiet = {"log_level": 0, "error_cb": lambda _: None}
        return {
            "bootstrap.servers": self._bootstrap,
            "linger.ms": 5,
            "topic.metadata.refresh.interval.ms": 1_000,
            **quiet,
        }


def settle(publisher: Publisher) -> None:
    """Stop the publisher. Retry, since a restarted broker may refuse the first attempt."""
    for _ in range(2):
        with contextlib.suppress(KafkaException):
            publisher.stop()
            return
    publisher.stop()
