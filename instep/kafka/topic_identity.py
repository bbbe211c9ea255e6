"""Confirm a topic's id before every commit, at little cost.

The admin client takes half a millisecond of CPU time for this question: it creates a future, passes
the answer through two threads and turns it into many objects. A transaction with one event takes
little more. So the question is one request of our own (Metadata) on a connection of our own, with
the same bytes every time, and an answer that has the expected id confirms it. Any other answer, an
error or a silence confirms nothing: the caller then asks the admin client, which knows the reasons.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import struct
import time
from collections.abc import Callable

from instep import errors, settings
from instep.kafka import connection, faults, topics

METADATA, VERSION = 3, 12  # this version answers with topic ids; Kafka has it since 3.1
NO_ID = bytes(16)
TIMEOUT_S = 1.0
PAUSE_S = 30.0  # how long only the admin client asks after a failure
ANSWER_BYTES_MAX = 16 * 1024 * 1024
LENGTH = struct.Struct(">i")
DOUBT_S = 2.0  # a broker that has just started may not know its topics yet


class TopicIdentity:
    """Asks one broker for the id of one topic. Not for use by several threads."""

    def __init__(
        self,
        kafka: settings.Kafka,
        bootstrap: str,
        topic: str,
        topic_id: str,
        partitions: int | None = None,
    ) -> None:
        """Take the topic, and its id as the client writes it.

        With `partitions`, this number of partitions is confirmed as well.
        """
        self.topic, self.topic_id = topic, topic_id
        self._security = kafka.security
        self._addresses = faults.addresses(bootstrap)
        # It does not log in: for clusters that demand it, the admin client asks.
        self._is_usable = kafka.security.mechanism is None
        name = _compact(topic.encode())
        client = b"instep"
        header = struct.pack(">hhih", METADATA, VERSION, 0, len(client)) + client + b"\0"
        # One topic, not to be created; no list of permitted operations. The zeros are empty tags.
        body = header + b"\2" + NO_ID + name + b"\0" + b"\0" + b"\0" + b"\0"
        self._request = LENGTH.pack(len(body)) + body
        # Of the answer: no error, the name, and the id.
        self._expected = b"\0\0" + name + base64.b64decode(topic_id + "==")
        if partitions is not None:
            self._expected += b"\0" + _length(partitions)  # not internal; then the partitions
        self._socket: socket.socket | None = None
        self._is_asked = False
        self._failed_at = float("-inf")

    def ask(self) -> None:
        """Send the request."""
        if not self._is_usable or time.monotonic() < self._failed_at + PAUSE_S:
            return
        if self._is_asked:  # the last answer was not read, because its transaction failed
            self.close()
        try:
            if self._socket is None:
                self._socket = self._connect()
            self._socket.sendall(self._request)
            self._is_asked = True
        except OSError:
            self._fail()

    def is_confirmed(self) -> bool:
        """Wait for the answer, and return whether it has the expected id."""
        if self._socket is None or not self._is_asked:
            return False
        self._is_asked = False
        try:
            return self._expected in self._receive(self._socket)
        except OSError:
            self._fail()
            return False

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        opened, self._socket, self._is_asked = self._socket, None, False
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.close()

    def _fail(self) -> None:
        """Leave the question to the admin client for a while, then try the next address."""
        self.close()
        self._failed_at = time.monotonic()
        self._addresses = [*self._addresses[1:], *self._addresses[:1]]

    def _connect(self) -> socket.socket:
        host, _, port = self._addresses[0].rpartition(":")
        if not port.isdecimal():
            raise ConnectionError("not an address")
        opened = socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._security.protocol.endswith("SSL"):
            tls = connection.files(self._security).context()
            return tls.wrap_socket(opened, server_hostname=host.strip("[]"))
        return opened

    def _receive(self, opened: socket.socket) -> bytes:
        answer = opened.recv(64 * 1024)  # usually all of it
        while len(answer) < LENGTH.size or len(answer) < _size(answer):
            more = opened.recv(64 * 1024)
            if not more:
                raise ConnectionError("the broker closed the connection")
            answer += more
        return answer


class SameTopic:
    """Checks that the records in memory came from the topic that the caller knows.

    The topic's id is requested after the records were read, and the id of a deleted topic never
    comes back. So an equal id proves that they came from this topic, and one answer serves all
    retries. The request is sent at once, and its answer awaited only when the check is called, so
    that the broker's answer and the database's work overlap.
    """

    def __init__(
        self,
        identity: TopicIdentity,
        cluster: Callable[[], connection.Cluster],
        *,
        replaced: Callable[[], errors.InstepError],
        gone: Callable[[], errors.InstepError],
    ) -> None:
        """Send the request.

        `cluster` returns the clients to use if the answer does not confirm the id. `replaced` and
        `gone` return the errors to raise.
        """
        self._identity, self._cluster = identity, cluster
        self._replaced, self._gone = replaced, gone
        self._confirmed = False
        identity.ask()

    def __call__(self) -> None:
        """Raise if the topic was replaced or deleted."""
        self._confirmed = self._confirmed or self._identity.is_confirmed()
        if self._confirmed:
            return
        try:
            topic_id = self._request_id()
        except errors.TopicMissing:
            time.sleep(DOUBT_S)
            topic_id = self._request_again()
        if topic_id != self._identity.topic_id:
            raise self._replaced()
        self._confirmed = True

    def _request_id(self) -> str:
        return topics.request_id(self._cluster(), self._identity.topic)

    def _request_again(self) -> str:
        try:
            return self._request_id()
        except errors.TopicMissing as error:
            raise self._gone() from error


def _size(answer: bytes) -> int:
    """Return the size of a whole answer, of which this is the beginning."""
    size = LENGTH.unpack_from(answer)[0]
    if not 0 <= size <= ANSWER_BYTES_MAX:
        raise ConnectionError("not a Kafka broker")
    return int(size) + LENGTH.size


def _compact(text: bytes) -> bytes:
    """Return a text as Kafka's compact string."""
    return _length(len(text)) + text


def _length(count: int) -> bytes:
    """Return the length of a compact string or array: plus one, in groups of 7 bits."""
    rest, head = count + 1, bytearray()
    while rest > 127:
        head.append(rest & 127 | 128)
        rest >>= 7
    head.append(rest)
    return bytes(head)
