"""Test the publisher on a real broker: three ways to send, and what happens on failure."""

from __future__ import annotations

import concurrent.futures
import json
import logging
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Message

from instep import errors, settings
from instep.emit import Delivery, Publisher, StatusEvent
from instep.kafka import connection, offsets, topics
from instep.local import broker as local_broker
from instep.local import ports
from instep.waiting import retrying

Read = Callable[..., list[Message]]
Bootstrap = local_broker.LocalCluster


def event(number: int, document: str = "d-1") -> StatusEvent:
    return StatusEvent(document=document, status="PRINTED", version=number)


def versions(messages: list[Message]) -> list[int]:
    return [json.loads(message.value() or b"{}")["version"] for message in messages]


def test_events_sent_without_waiting_arrive_when_the_block_ends(
    broker: Bootstrap, topic: str, read_all: Read
) -> None:
    with Publisher(broker.bootstrap, topic) as publisher:
        for number in range(1000):
            publisher.send(event(number))
    assert versions(read_all(topic)) == list(range(1000))


def test_order_holds_from_the_first_record_of_a_new_topic(
    broker: Bootstrap, read_all: Read
) -> None:
    """Send small batches, which show reordering if the new topic's leaders refuse the first one."""
    topic, documents = f"emit-{uuid.uuid4().hex}", [f"d-{number}" for number in range(100)]
    with connection.Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        topics.create(cluster, topic, 50)
    with Publisher(broker.bootstrap, topic, linger_ms=0, batch_num_messages=1) as publisher:
        for number in range(5):
            for document in documents:
                publisher.send(event(number, document))
    found: dict[bytes | None, list[int]] = {}
    for message in read_all(topic):
        found.setdefault(message.key(), []).extend(versions([message]))
    assert found == {document.encode(): [0, 1, 2, 3, 4] for document in documents}


def test_a_publisher_waits_for_a_leader_that_does_not_answer_yet(
    broker: Bootstrap, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hide the answer of one partition at first, as a broker does that is not its leader yet."""
    spans = offsets.spans
    answers: list[tuple[int, int]] = []

    def late(cluster: connection.Cluster, pairs: Any) -> Any:
        found = spans(cluster, pairs)
        if len(answers) < 3:
            found.popitem()
        answers.append((len(found), len(pairs)))
        return found

    monkeypatch.setattr(offsets, "spans", late)
    Publisher(broker.bootstrap, topic).close()
    assert len(answers) == 4
    assert answers[-1][0] == answers[-1][1]


def test_waiting_returns_the_place_in_the_log(
    broker: Bootstrap, topic: str, read_all: Read
) -> None:
    with Publisher(broker.bootstrap, topic) as publisher:
        places = [publisher.send(event(number)).result(60) for number in range(3)]
    assert [(place.topic, place.offset) for place in places] == [(topic, 0), (topic, 1), (topic, 2)]
    assert {place.partition for place in places} == {
        message.partition() for message in read_all(topic)
    }
    assert [place.timestamp_ms for place in places] == [
        message.timestamp()[1] for message in read_all(topic)
    ]


def test_a_callback_gets_every_delivery_in_order(broker: Bootstrap, topic: str) -> None:
    reported: list[tuple[errors.Undelivered | None, Delivery | None]] = []
    with Publisher(broker.bootstrap, topic) as publisher:
        for number in range(100):
            publisher.send(
                event(number),
                on_delivery=lambda error, delivery: reported.append((error, delivery)),
            )
        publisher.flush()
        assert [delivery.offset for _, delivery in reported if delivery] == list(range(100))
    assert all(error is None for error, _ in reported)


def test_a_callback_may_send(broker: Bootstrap, topic: str, read_all: Read) -> None:
    with Publisher(broker.bootstrap, topic) as publisher:

        def send_next(error: errors.Undelivered | None, delivery: Delivery | None) -> None:
            publisher.send(event(1))

        publisher.send(event(0), on_delivery=send_next)
        publisher.flush()
    assert versions(read_all(topic)) == [0, 1]


def test_records_arrive_in_the_wire_format(broker: Bootstrap, topic: str, read_all: Read) -> None:
    at = datetime(2026, 11, 1, 8, tzinfo=UTC)
    with Publisher(broker.bootstrap, topic, source="print-system") as publisher:
        publisher.send(
            StatusEvent(document="Vertrag № 7 🖨️", status="gedruckt ✅", at=at, fields={"pages": 3})
        )
        publisher.delete("Vertrag № 7 🖨️", at=at)
        publisher.send_raw("Vertrag № 7 🖨️".encode(), b"{}", [("mine", b"1")])
    sent, deletion, raw = read_all(topic)
    assert sent.key() == "Vertrag № 7 🖨️".encode()
    assert json.loads(sent.value() or b"") == {
        "doc_id": "Vertrag № 7 🖨️",
        "status": "gedruckt ✅",
        "updated_at": "2026-11-01T08:00:00Z",
        "pages": 3,
    }
    headers: dict[str, Any] = dict(sent.headers() or [])
    uuid.UUID(headers.pop("ce_id").decode())
    assert headers == {
        "ce_specversion": b"1.0",
        "ce_source": b"print-system",
        "ce_type": b"instep.status",
        "ce_time": b"2026-11-01T08:00:00+00:00",
        "content-type": b"application/json",
    }
    assert deletion.value() is None
    assert dict(deletion.headers() or [])["ce_type"] == b"instep.delete"
    assert raw.headers() == [("mine", b"1")]


def test_a_record_of_a_megabyte_arrives(broker: Bootstrap, topic: str, read_all: Read) -> None:
    noise = json.dumps({"x": random.Random(1).randbytes(499_990).hex()}).encode()
    assert len(noise) > 999_980
    with Publisher(broker.bootstrap, topic) as publisher:
        publisher.send_raw(b"big", noise)
    assert read_all(topic)[0].value() == noise


def test_a_record_that_is_too_large_fails_alone(
    broker: Bootstrap, topic: str, read_all: Read
) -> None:
    with Publisher(broker.bootstrap, topic) as publisher:
        before = publisher.send(event(1))
        refused = publisher.send_raw(b"big", b"x" * 2_000_000)
        after = publisher.send(event(2))
        with pytest.raises(
            errors.Undelivered, match=r"document 'big' is too large: 2,000,003 bytes"
        ):
            refused.result(60)
        assert (before.result(60).offset, after.result(60).offset) == (0, 1)
    assert versions(read_all(topic)) == [1, 2]


def test_a_record_too_large_for_the_topic_is_reported_in_the_same_way(
    broker: Bootstrap, new_topic: Callable[..., str], read_all: Read
) -> None:
    topic = new_topic(1, max_message_bytes="2000")
    with Publisher(broker.bootstrap, topic) as publisher:
        publisher.send(event(1)).result(60)
        with pytest.raises(errors.Undelivered, match="document 'big' is too large"):
            publisher.send_raw(b"big", random.Random(1).randbytes(5_000)).result(60)
        publisher.send(event(2)).result(60)
    assert versions(read_all(topic)) == [1, 2]


def test_an_ignored_failure_is_raised_once_by_flush(broker: Bootstrap, topic: str) -> None:
    with Publisher(broker.bootstrap, topic) as publisher:
        publisher.send_raw(b"a", b"x" * 2_000_000)
        publisher.send_raw(b"b", b"x" * 2_000_000)
        publisher.send(event(1))
        with pytest.raises(
            errors.Undelivered, match=r"2 records were not delivered.*document 'a' is too large"
        ):
            publisher.flush()
        publisher.flush()


def test_an_ignored_failure_is_raised_when_the_block_ends(broker: Bootstrap, topic: str) -> None:
    with (
        pytest.raises(errors.Undelivered, match=r"1 record was not delivered"),
        Publisher(broker.bootstrap, topic) as publisher,
    ):
        publisher.send_raw(b"a", b"x" * 2_000_000)


def test_a_failure_given_to_a_callback_is_not_raised_again(broker: Bootstrap, topic: str) -> None:
    reported: list[errors.Undelivered | None] = []
    with Publisher(broker.bootstrap, topic) as publisher:
        publisher.send_raw(
            b"a", b"x" * 2_000_000, on_delivery=lambda error, _: reported.append(error)
        )
    assert [type(error) for error in reported] == [errors.Undelivered]


def test_an_exception_in_the_block_is_not_hidden(
    broker: Bootstrap, topic: str, read_all: Read
) -> None:
    def fail() -> None:
        with Publisher(broker.bootstrap, topic) as publisher:
            publisher.send(event(1))
            publisher.send_raw(b"a", b"x" * 2_000_000)
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        fail()
    assert "1 record was not delivered" in caught.value.__notes__[0]
    assert versions(read_all(topic)) == [1]


def test_a_full_queue_holds_the_sender_back(broker: Bootstrap, topic: str, read_all: Read) -> None:
    with Publisher(broker.bootstrap, topic, queue_buffering_max_messages=10) as publisher:
        for number in range(500):
            publisher.send(event(number))
    assert versions(read_all(topic)) == list(range(500))


def test_a_callback_does_not_wait_for_space(broker: Bootstrap, topic: str) -> None:
    refused: list[errors.Undelivered] = []
    with Publisher(broker.bootstrap, topic, queue_buffering_max_messages=1) as publisher:

        def send_two(error: errors.Undelivered | None, delivery: Delivery | None) -> None:
            try:
                for number in (1, 2):
                    publisher.send(event(number))
            except errors.Undelivered as failure:
                refused.append(failure)

        publisher.send(event(0), on_delivery=send_two)
        publisher.flush()
    assert "no space in the queue" in refused[0].what


def test_many_threads_may_send(broker: Bootstrap, topic: str, read_all: Read) -> None:
    with Publisher(broker.bootstrap, topic, queue_buffering_max_messages=50) as publisher:

        def send(thread: int) -> None:
            for number in range(100):
                future = publisher.send(event(number, f"d-{thread}"))
                if number % 10 == 0:
                    future.result(60)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(send, range(8)))
    by_document: dict[bytes, list[Message]] = {}
    for message in read_all(topic):
        by_document.setdefault(message.key() or b"", []).append(message)
    assert len(by_document) == 8
    assert all(versions(messages) == list(range(100)) for messages in by_document.values())


def test_a_closed_publisher_sends_nothing(broker: Bootstrap, topic: str) -> None:
    publisher = Publisher(broker.bootstrap, topic)
    publisher.close()
    publisher.close()
    with pytest.raises(errors.Undelivered, match="is closed"):
        publisher.send(event(1))


def test_a_record_that_the_client_refuses_is_not_waited_for(
    broker: Bootstrap, topic: str, read_all: Read
) -> None:
    wrong: Any = [("number", 1)]
    with Publisher(broker.bootstrap, topic, flush_timeout_s=30) as publisher:
        with pytest.raises(TypeError):
            publisher.send_raw(b"d-1", b'{"version": 1}', wrong)
        with pytest.raises(TypeError):
            publisher.send_raw(b"d-1", b'{"version": 2}', 5)  # type: ignore[arg-type]
        assert publisher.metrics().open == 0
        publisher.send(event(3))
    assert versions(read_all(topic)) == [3]


def test_a_missing_topic_is_named_at_once_and_not_created(broker: Bootstrap, topic: str) -> None:
    with pytest.raises(errors.TopicMissing, match=f"did you mean '{topic}'"):
        Publisher(broker.bootstrap, topic[:-1])
    with connection.Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        assert topic[:-1] not in topics.names(cluster)


def test_an_unreachable_broker_is_named_in_bounded_time() -> None:
    address = f"{ports.HOST}:{ports.free(1)[0]}"
    began, threads = time.monotonic(), threading.active_count()
    with pytest.raises(errors.BrokerUnreachable, match=f"at {address}: tried for 1 s"):
        Publisher(address, "any", start_timeout_s=1)
    assert time.monotonic() - began < 30  # bounded, however busy the machine is
    assert threading.active_count() <= threads


def test_settings_are_refused_before_a_broker_is_contacted() -> None:
    with pytest.raises(errors.SettingsError, match="acks=1 breaks the guarantee exactly-once"):
        Publisher("nowhere:1", "any", acks=1)
    with pytest.raises(errors.SettingsError, match=r"no\.such\.setting"):
        Publisher("nowhere:1", "any", no_such_setting=1)


def test_settings_may_be_text(broker: Bootstrap, topic: str) -> None:
    with Publisher(
        broker.bootstrap, topic, message_max_bytes="2000", acks="all", socket_timeout_ms="5000"
    ) as publisher:
        with pytest.raises(errors.Undelivered, match=r"message\.max\.bytes is 2,000"):
            publisher.send_raw(b"a", b"x" * 3000).result(60)
        publisher.send(event(1)).result(60)


def test_an_interrupted_close_can_be_repeated(
    broker: Bootstrap, topic: str, read_all: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(broker.bootstrap, topic, linger_ms=300)
    publisher.send(event(1))

    def interrupt(mark: int, timeout_s: float) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(publisher._counter, "wait_settled", interrupt)
        with pytest.raises(KeyboardInterrupt):
            publisher.close()
    publisher.close()
    assert versions(read_all(topic)) == [1]


def test_events_are_sent_with_weaker_guarantees_too(
    broker: Bootstrap, topic: str, read_all: Read
) -> None:
    with Publisher(
        broker.bootstrap, topic, guarantee="at-least-once", enable_idempotence=False
    ) as publisher:
        publisher.send(event(1))
    assert set(versions(read_all(topic))) == {1}
    # without an answer it is unknown whether a send arrived, and one may be lost: send until one
    # has arrived
    deadline = time.monotonic() + 90
    while 2 not in versions(read_all(topic)):
        assert time.monotonic() < deadline, "nothing sent with acks=0 ever arrived"
        with Publisher(broker.bootstrap, topic, guarantee="at-most-once", acks=0) as publisher:
            publisher.send(event(2))


@pytest.fixture(scope="module")
def mortal() -> Iterator[local_broker.LocalCluster]:
    """Start a broker that tests may kill."""
    with local_broker.LocalCluster(properties={"auto.create.topics.enable": "true"}) as own:
        with connection.Cluster(settings.Kafka(), own.bootstrap) as cluster:
            topics.create(cluster, "dies", 1)
            topics.create(cluster, "comes-back", 1)
            # once the leader answers, it takes the first batch at the first attempt
            offsets.latest(cluster, "comes-back", [0])
        yield own


def test_a_broker_that_comes_back_gets_everything_once_and_in_order(
    mortal: local_broker.LocalCluster, read_all: Read
) -> None:
    """Let another publisher give up during the outage, and continue after it."""
    impatient = Publisher(mortal.bootstrap, "dies", message_timeout_ms=1000, flush_timeout_s=120)
    retrying(  # a broker that has just started may take longer to give the client an id
        lambda: impatient.send(event(0)).result(60),
        lambda error: isinstance(error, errors.Undelivered),
        timeout_s=90,
    )
    with Publisher(mortal.bootstrap, "comes-back", flush_timeout_s=120) as publisher:
        for number in range(50):
            publisher.send(event(number))
        mortal.kill()
        for number in range(50, 100):
            publisher.send(event(number))
        given_up = [impatient.send(event(number)) for number in (1, 2)]
        with pytest.raises(
            errors.Undelivered, match=r"not confirmed within 1 s \(message\.timeout\.ms\) \(last: "
        ):
            given_up[0].result(60)
        mortal.start()
        last = publisher.send(event(100)).result(120)
        assert retrying(  # an attempt may begin before the client has connected again
            lambda: impatient.send(event(3)).result(60),
            lambda error: isinstance(error, errors.Undelivered),
            timeout_s=90,
        ).offset
        with pytest.raises(errors.Undelivered, match=r"not delivered to topic 'dies'"):
            impatient.close()
    assert last.offset == 100
    assert versions(read_all("comes-back", mortal)) == list(range(101))
    # what was not confirmed in time may be there all the same
    assert list(dict.fromkeys(versions(read_all("dies", mortal)))) == [0, 3]


def test_a_deleted_topic_is_reported_and_not_created(
    mortal: local_broker.LocalCluster, read_all: Read, caplog: pytest.LogCaptureFixture
) -> None:
    """Use a broker that would create topics by itself, with another number of partitions."""
    with connection.Cluster(settings.Kafka(), mortal.bootstrap) as cluster:
        topics.create(cluster, "deleted", 3)
        publisher = Publisher(
            mortal.bootstrap, "deleted", topic_metadata_propagation_max_ms=500, flush_timeout_s=60
        )
        publisher.send(event(0)).result(150)
        topics.delete(cluster, "deleted")
        for number in (1, 2):
            with pytest.raises(errors.Undelivered, match="topic 'deleted' does not exist any more"):
                publisher.send(event(number)).result(150)
        assert "deleted" not in topics.names(cluster)
        topics.create(cluster, "deleted", 3)
        with caplog.at_level(logging.WARNING, "instep.emit"):
            place = retrying(
                lambda: publisher.send(event(3)).result(150),
                lambda error: isinstance(error, errors.Undelivered),
                timeout_s=90,
            )
        publisher.close()
    assert place.offset == 0
    assert "now continues at offset 0: the topic was deleted and created again" in caplog.text
    assert versions(read_all("deleted", mortal)) == [3]


def test_a_broker_that_dies_is_reported_in_bounded_time(mortal: local_broker.LocalCluster) -> None:
    publisher = Publisher(
        mortal.bootstrap,
        "dies",
        flush_timeout_s=1.5,
        block_timeout_s=0.5,
        queue_buffering_max_messages=5,
    )
    publisher.send(event(0)).result(60)
    mortal.kill()
    futures = [publisher.send(event(number)) for number in range(1, 6)]
    with pytest.raises(errors.Undelivered, match=r"no space in the queue.*after 0\.5 s"):
        publisher.send(event(6))
    with pytest.raises(errors.Undelivered, match=r"5 records are not confirmed .* after 0\.2 s"):
        publisher.flush(0.2)
    with pytest.raises(concurrent.futures.TimeoutError):
        futures[0].result(0.01)
    began = time.monotonic()
    with pytest.raises(
        errors.Undelivered, match=r"5 records were not delivered.*not confirmed within 1\.5 s"
    ):
        publisher.close()
    assert time.monotonic() - began < 30  # bounded, however busy the machine is
    assert all(isinstance(future.exception(0), errors.Undelivered) for future in futures)


def test_a_fatal_error_ends_sending(broker: Bootstrap, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1, max_message_bytes="2000")
    publisher = Publisher(broker.bootstrap, topic, enable_gapless_guarantee=True)
    with pytest.raises(errors.Undelivered):
        publisher.send_raw(b"big", random.Random(1).randbytes(5_000)).result(60)
    with pytest.raises(errors.Undelivered, match=r"cannot continue: .*\(_GAPLESS_GUARANTEE\)"):
        publisher.send(event(2))
    publisher.close()


CHILD = """
import sys, time
from instep.emit import Publisher, StatusEvent
publisher = Publisher(sys.argv[1], sys.argv[2], linger_ms=int(sys.argv[3]))
for number in range(int(sys.argv[4])):
    publisher.send(StatusEvent(document="d-1", status="A", version=number))
    if number == 99:
        print("sending", flush=True)
print("sent", flush=True)
time.sleep(float(sys.argv[5]))
"""


FORKED = """
import os, signal, sys
from instep import errors
from instep.emit import Publisher, StatusEvent
from instep.emit.event_ids import IDS
def event(number):
    return StatusEvent(document="d-1", status="A", version=number)
with Publisher(sys.argv[1], sys.argv[2], linger_ms=500) as publisher:
    receipt = publisher.send(event(0))
    child = os.fork()
    if child == 0:
        for use in (lambda: publisher.send(event(1)), publisher.flush, receipt.result):
            try:
                use()
            except errors.Undelivered as error:
                print(error.what, "|", error.remedy)
        print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, IDS.next(), flush=True)
        sys.exit(3)
    print(IDS.next(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    publisher.send(event(2))
print(receipt.result().offset)
"""


def test_a_forked_process_cannot_use_the_publisher_and_does_not_disturb_it(
    broker: Bootstrap, topic: str, read_all: Read
) -> None:
    process = child(broker, topic, script=FORKED)
    output, error_output = process.communicate(timeout=60)
    *refused, child_state, parent_state, offset = output.splitlines()
    assert len(refused) == 3, error_output
    for line in refused:
        assert re.search(r"was created in process \d+, and this is process \d+", line)
        assert line.endswith("| create a publisher in each process, after the fork")
    is_default, child_id = child_state.split()
    parent_id, status = parent_state.split()
    assert (is_default, status, offset, process.returncode) == ("True", "3", "0", 0)
    assert child_id[:20] != parent_id[:20]  # the two processes give events different ids
    assert versions(read_all(topic)) == [0, 2]


def test_metrics_count_records_and_measure_acknowledgements(broker: Bootstrap, topic: str) -> None:
    with Publisher(broker.bootstrap, topic, source="print", linger_ms=200) as publisher:
        empty = publisher.metrics()
        assert (empty.topic, empty.source, empty.sent) == (topic, "print", 0)
        assert (empty.latency_p50_ms, empty.last_error) == (None, None)
        receipts = [publisher.send_raw(b"d-1", b'{"version": 1}') for _ in range(3)]
        waiting = publisher.metrics()
        assert (waiting.sent, waiting.open, waiting.open_bytes) == (3, 3, 3 * 17)
        for receipt in receipts:
            receipt.result(60)
        assert publisher.send_raw(b"a", b"x" * 2_000_000).exception(60)
        done = publisher.metrics()
    assert (done.sent, done.delivered, done.failed) == (4, 3, 1)
    assert (done.open, done.open_bytes) == (0, 0)
    assert "'a' is too large" in (done.last_error or "")
    assert 200 <= (done.latency_p50_ms or 0) <= (done.latency_p99_ms or 0)
    text = done.prometheus()
    assert f'instep_publisher_delivered_total{{source="print",topic="{topic}"}} 3.0' in text
    assert 'quantile="0.99"' in text


def child(
    broker: Bootstrap, topic: str, *arguments: object, script: str = CHILD
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, broker.bootstrap, topic, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_sigterm_delivers_what_was_sent_and_then_ends_the_process(
    broker: Bootstrap, topic: str, read_all: Read
) -> None:
    process = child(broker, topic, 500, 2000, 600)
    assert process.stdout is not None
    while process.stdout.readline() != "sent\n":
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, error_output = process.communicate(timeout=90)
    assert process.returncode == -signal.SIGTERM
    assert error_output == ""
    assert versions(read_all(topic)) == list(range(2000))


def test_sigterm_in_the_middle_of_sending_leaves_no_gap(
    broker: Bootstrap, topic: str, read_all: Read
) -> None:
    process = child(broker, topic, 5, 10_000_000, 0)
    assert process.stdout is not None
    assert process.stdout.readline() == "sending\n"
    process.send_signal(signal.SIGTERM)
    _, error_output = process.communicate(timeout=90)
    assert process.returncode == -signal.SIGTERM
    assert error_output == ""
    found = versions(read_all(topic))
    assert len(found) >= 100
    assert found == list(range(len(found)))


def test_an_unclosed_publisher_flushes_when_the_interpreter_ends(
    broker: Bootstrap, topic: str, read_all: Read
) -> None:
    process = child(broker, topic, 500, 200, 0)
    _, error_output = process.communicate(timeout=90)
    assert (process.returncode, error_output) == (0, "")
    assert versions(read_all(topic)) == list(range(200))


HANDLED = """
import signal, sys, time
from instep.emit import Publisher, StatusEvent
running = True
def stop(number, frame):
    global running
    running = False
    print("stopping", flush=True)
signal.signal(signal.SIGTERM, stop)
with Publisher(sys.argv[1], sys.argv[2]) as publisher:
    number = 0
    while running:
        publisher.send(StatusEvent(document="d-1", status="A", version=number))
        number += 1
        if number == 100:
            print("sending", flush=True)
assert signal.getsignal(signal.SIGTERM) is stop
print(number, flush=True)
"""


def test_the_users_signal_handler_is_called_and_restored(
    broker: Bootstrap, topic: str, read_all: Read
) -> None:
    process = child(broker, topic, script=HANDLED)
    assert process.stdout is not None
    assert process.stdout.readline() == "sending\n"
    process.send_signal(signal.SIGTERM)
    output, error_output = process.communicate(timeout=90)
    assert (process.returncode, error_output) == (0, "")
    stopping, number = output.split()
    assert stopping == "stopping"
    assert versions(read_all(topic)) == list(range(int(number)))


LOST = """
import sys, time
from instep.emit import Publisher, StatusEvent
publisher = Publisher(sys.argv[1], sys.argv[2], flush_timeout_s=0.5)
other = Publisher(sys.argv[1], sys.argv[2])
publisher.send_raw(b"big", b"x" * 2_000_000)
print("sent", flush=True)
time.sleep(600)
"""


def test_losses_at_sigterm_are_reported_on_stderr_and_two_publishers_end_in_turn(
    broker: Bootstrap, topic: str
) -> None:
    process = child(broker, topic, script=LOST)
    assert process.stdout is not None
    assert process.stdout.readline() == "sent\n"
    process.send_signal(signal.SIGTERM)
    _, error_output = process.communicate(timeout=90)
    assert process.returncode == -signal.SIGTERM
    assert "SIGTERM: 1 records not delivered" in error_output
    assert "'big' is too large" in error_output


def test_closing_restores_the_previous_handler(broker: Bootstrap, topic: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Publisher(broker.bootstrap, topic):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_no_handler_is_installed_off_the_main_thread(broker: Bootstrap, topic: str) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def publish() -> object:
        with Publisher(broker.bootstrap, topic) as publisher:
            publisher.send(event(1))
            return signal.getsignal(signal.SIGTERM)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(publish).result(60) == before
