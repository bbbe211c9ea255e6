"""ActiveMQ as a queue, with STOMP.

Durable means persistent messages, one transaction per batch, acknowledged by the reader. Not
durable means neither, and one receipt for the last message.

The frames are written and parsed here, a whole batch at a time: a library that handles one frame
after the other would be measured instead of the server.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlparse

from instep import errors
from instep_lab.queues import system

ANSWER_S = 30.0
READER, LAST = "reader", "last"
RECEIVE_BYTES = 1 << 20
END = b"\n\n"
# The broker loads this many messages into memory at once, and more once some are acknowledged.
PAGE_MESSAGES = 200


class Frame(NamedTuple):
    """A frame of STOMP: its command, its headers, and its body."""

    command: str
    headers: dict[str, str]
    body: bytes


class FrameParser:
    """Cuts what a connection receives into frames."""

    def __init__(self) -> None:
        self._left = b""

    def feed(self, received: bytes) -> list[Frame]:
        """Return the frames that are complete with these bytes."""
        data = self._left + received
        frames = []
        start = self._begin(data, 0)
        while (head_end := data.find(END, start)) >= 0:
            command, *lines = data[start:head_end].decode().split("\n")
            headers: dict[str, str] = {}
            for line in lines:
                name, _, value = line.partition(":")
                headers.setdefault(name, value)  # of a repeated header the first counts
            body = head_end + len(END)
            length = headers.get("content-length")
            end = data.find(b"\0", body) if length is None else body + int(length)
            if end < 0 or end >= len(data):
                break
            frames.append(Frame(command, headers, data[body:end]))
            start = self._begin(data, end + 1)
        self._left = data[start:]
        return frames

    @staticmethod
    def _begin(data: bytes, start: int) -> int:
        """Return where the next frame begins: the broker sends a newline after each."""
        while data[start : start + 1] == b"\n":
            start += 1
        return start


def frame(command: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Return a frame as bytes; the values of the headers need no escapes here."""
    lines = [command, *(f"{name}:{value}" for name, value in headers.items())]
    return b"%b\n\n%b\0" % ("\n".join(lines).encode(), body)


class ActiveQueue:
    """One connection, which is read only while a call waits for it."""

    def __init__(self, url: str, name: str, *, durable: bool) -> None:
        parts = urlparse(url)
        self._durable = durable
        self._destination = f"/queue/{name}"
        self._parser = FrameParser()
        self._messages: deque[Frame] = deque()
        self._receipts = self._sent = 0
        self._server = ""
        self._socket = socket.create_connection((parts.hostname, parts.port), ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send(frame("CONNECT", {"accept-version": "1.2", "host": str(parts.hostname)}))
        while not self._server:
            self._receive(ANSWER_S)

    def enqueue(self, messages: Sequence[bytes]) -> None:
        for number, batch in enumerate(system.batches(messages)):
            headers = {"destination": self._destination}
            if self._durable:
                headers |= {"persistent": "true", "transaction": f"batch-{number}"}
            frames = [
                frame("SEND", {**headers, "content-length": str(len(message))}, message)
                for message in batch
            ]
            if self._durable:
                transaction = {"transaction": f"batch-{number}"}
                frames.insert(0, frame("BEGIN", transaction))
                self._send(b"".join(frames))
                self._request("COMMIT", transaction)
            else:
                self._send(b"".join(frames))
        if not self._durable:
            # A receipt for a later frame: the broker handles the frames of a connection in order.
            self._request("SUBSCRIBE", {"id": LAST, "destination": "/queue/nothing"})
            self._send(frame("UNSUBSCRIBE", {"id": LAST}))

    def dequeue(self, count: int) -> list[bytes]:
        self._send(
            frame(
                "SUBSCRIBE",
                {
                    "id": READER,
                    "destination": self._destination,
                    "ack": "client" if self._durable else "auto",
                    "activemq.prefetchSize": str(2 * system.BATCH_MESSAGES),
                },
            )
        )
        found: list[Frame] = []
        acknowledged = 0
        deadline = time.monotonic() + system.PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            if not self._messages:
                self._receive(max(0.0, deadline - time.monotonic()))
            while self._messages and len(found) < count:
                found.append(self._messages.popleft())
                deadline = time.monotonic() + system.PATIENCE_S
            if self._durable and len(found) - acknowledged >= PAGE_MESSAGES // 2:
                self._acknowledge(found[-1])
                acknowledged = len(found)
        if self._durable and len(found) > acknowledged:
            self._acknowledge(found[-1])
        self._request("UNSUBSCRIBE", {"id": READER})
        self._messages.clear()
        return [one.body for one in found]

    def release(self) -> str:
        return f"{self._server}, STOMP 1.2"

    def close(self) -> None:
        self._socket.close()

    def _acknowledge(self, last: Frame) -> None:
        """Acknowledge all messages up to this one."""
        self._send(frame("ACK", {"id": last.headers["ack"]}))

    def _request(self, command: str, headers: Mapping[str, str]) -> None:
        """Send a frame and wait until the broker has handled it."""
        self._sent += 1
        self._send(frame(command, {**headers, "receipt": str(self._sent)}))
        while self._receipts < self._sent:
            self._receive(ANSWER_S, required=True)

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(ANSWER_S)
            self._socket.sendall(data)
        except OSError as error:
            raise errors.Unreachable(f"ActiveMQ: {error}") from error

    def _receive(self, patience_s: float, *, required: bool = False) -> None:
        """Take up the frames that have arrived; wait for the first of them."""
        try:
            self._socket.settimeout(max(patience_s, 0.001))
            received = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError as error:
            if not required:
                return
            raise errors.Unreachable(f"ActiveMQ: no response within {ANSWER_S:.0f} s") from error
        except OSError as error:
            raise errors.Unreachable(f"ActiveMQ: {error}") from error
        if not received:
            raise errors.Unreachable("ActiveMQ: the connection broke")
        for one in self._parser.feed(received):
            match one.command:
                case "CONNECTED":
                    self._server = one.headers.get("server", "ActiveMQ").replace("/", " ")
                case "RECEIPT":
                    self._receipts += 1
                case "MESSAGE":
                    self._messages.append(one)
                case _:
                    reason = one.headers.get("message", "an error without a message")
                    raise errors.Unreachable(f"ActiveMQ: {reason}")
