"""Test the proxy between real sockets, and between a real client and a real broker."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from instep import settings
from instep.kafka import connection, offsets, topics
from instep.local import ports
from instep.local.broker import Broker
from instep.local.proxy import NetworkFault, Proxy
from tests.support.waiting import wait_until


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while received := self.request.recv(1024):
            self.request.sendall(received)


@pytest.fixture
def echo() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy(echo) as proxy:
        yield proxy


def exchange(opened: socket.socket, text: bytes) -> bytes:
    opened.sendall(text)
    return opened.recv(1024)


def test_bytes_pass_through_the_proxy(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as one:
        assert exchange(one, b"hello") == b"hello"
    assert proxy.counts.connections == 1
    wait_until(lambda: proxy.counts.passed_bytes == 10, "both directions to be counted")


def test_the_proxy_garbles_one_byte_of_a_request(proxy: Proxy) -> None:
    sent = b"." * 300
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as one:
        proxy.inject(NetworkFault(garbles_every=2))
        assert exchange(one, b"short") == b"short"
        assert exchange(one, sent) == sent
        received = exchange(one, sent)
        assert [place for place in range(300) if received[place] != sent[place]] == [270]
        proxy.clear_fault()
        assert exchange(one, sent) == sent
    assert proxy.counts.garbled_chunks == 1


def test_the_proxy_delays_both_directions(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as one:
        proxy.inject(NetworkFault(delay_s=0.2))
        began = time.monotonic()
        assert exchange(one, b"hello") == b"hello"
        assert time.monotonic() - began >= 0.4
    assert proxy.counts.delayed_chunks == 2


def test_a_delay_does_not_reduce_the_throughput(proxy: Proxy) -> None:
    sent = bytes(range(256)) * 8 * 1024
    proxy.inject(NetworkFault(delay_s=0.3))
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as one:
        sending = threading.Thread(target=one.sendall, args=(sent,))
        sending.start()
        received = b""
        while len(received) < len(sent):
            received += one.recv(1 << 20)
        sending.join()
    assert received == sent
    assert proxy.counts.held_most > 1


def test_the_proxy_swallows_only_answers(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as one:
        proxy.inject(NetworkFault(swallows_answers=True))
        one.sendall(b"lost")
        wait_until(lambda: proxy.counts.swallowed_bytes == 4, "the answer to be swallowed")
        proxy.clear_fault()
        assert exchange(one, b"heard") == b"heard"


def test_the_proxy_cuts_and_refuses_connections(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as one:
        assert exchange(one, b"x") == b"x"
        assert proxy.cut() == 1
        with pytest.raises(ConnectionError):
            exchange(one, b"y") or _raise()
    proxy.inject(NetworkFault(refuses=True))
    with (
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as two,
        pytest.raises(ConnectionError),
    ):
        exchange(two, b"z") or _raise()
    assert proxy.counts.cut_connections == 1
    assert proxy.counts.refused_connections == 1


def _raise() -> bytes:
    raise ConnectionError("closed without a word")


def test_a_swallowed_answer_makes_a_client_repeat_its_request() -> None:
    """Reach a broker through the proxy.

    Without idempotence, a record that was written and not acknowledged is written again.
    """
    through = ports.free(1)[0]

    class Behind(Broker):
        def all_properties(self) -> dict[str, str]:
            return {
                **super().all_properties(),
                "advertised.listeners": f"CLIENT://127.0.0.1:{through}",
            }

    with (
        Behind() as broker,
        Proxy(broker.port, through) as proxy,
        connection.Cluster(settings.Kafka(), f"127.0.0.1:{through}") as cluster,
    ):
        topics.create(cluster, "t", 1)
        producer = Producer(
            {"bootstrap.servers": f"127.0.0.1:{through}", "acks": "all", "retry.backoff.ms": 100}
        )
        producer.produce("t", b"first")
        assert producer.flush(30) == 0
        log = broker.root / "data" / "t-0" / "00000000000000000000.log"
        written = log.stat().st_size
        proxy.inject(NetworkFault(swallows_answers=True))
        producer.produce("t", b"second")
        wait_until(
            lambda: producer.flush(0.1) >= 0 and log.stat().st_size > written,
            "the broker to write it",
        )
        wait_until(lambda: proxy.counts.swallowed_bytes > 0, "its answer to be swallowed")
        proxy.clear_fault()
        proxy.cut()
        assert producer.flush(60) == 0
        assert offsets.latest(cluster, "t", [0])[0] == 3
        producer.close()
