"""A connection between the driver and a task, which both prove with the job's key.

The driver listens, because Spark decides where a task runs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Generic, TypeVar

import msgspec

HANDSHAKE_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 5.0  # a peer that does not read for this long counts as lost
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
LOST = (OSError, EOFError, multiprocessing.AuthenticationError)

Incoming = TypeVar("Incoming")


class Channel(Generic[Incoming]):
    """Typed messages over one connection. Any thread may send; one thread receives."""

    def __init__(self, connection: Connection, incoming: msgspec.msgpack.Decoder[Incoming]) -> None:
        self._connection, self._decoder = connection, incoming
        self._sending = threading.Lock()

    def send(self, message: msgspec.Struct) -> bool:
        """Send a message; return False if the connection is lost."""
        try:
            with self._sending:
                self._connection.send_bytes(msgspec.msgpack.encode(message))
        except OSError:
            self.close()
            return False
        return True

    def receive(self, timeout_s: float | None = None) -> Incoming | None:
        """Return the next message, or None after the timeout. Raise EOFError if it is lost."""
        try:
            if not self._connection.poll(timeout_s):
                return None
            return self._decoder.decode(self._connection.recv_bytes(MESSAGE_BYTES_MAX))
        except (OSError, msgspec.DecodeError) as error:
            raise EOFError from error

    def close(self) -> None:
        """Close the connection; a thread that receives gets EOFError."""
        with contextlib.suppress(OSError):
            _with_socket(self._connection, lambda one: one.shutdown(socket.SHUT_RDWR))


def listen(host: str, port: int = 0) -> socket.socket:
    """Return a socket that listens on this host; port 0 is any free port."""
    return socket.create_server((host, port), family=_family(host), backlog=256)


def accept(
    accepted: socket.socket, key: bytes, incoming: msgspec.msgpack.Decoder[Incoming]
) -> Channel[Incoming]:
    """Return the channel to a client that knows the key; raise one of LOST otherwise."""
    return _proven(_wrapped(accepted), key, incoming, (deliver_challenge, answer_challenge))


def connect(
    address: tuple[str, int], key: bytes, incoming: msgspec.msgpack.Decoder[Incoming]
) -> Channel[Incoming]:
    """Return a channel to the driver; raise one of LOST if it cannot be reached."""
    connection = _wrapped(socket.create_connection(address, HANDSHAKE_TIMEOUT_S))
    return _proven(connection, key, incoming, (answer_challenge, deliver_challenge))


def _proven(
    connection: Connection,
    key: bytes,
    incoming: msgspec.msgpack.Decoder[Incoming],
    steps: Sequence[Callable[[Connection, bytes], None]],
) -> Channel[Incoming]:
    """Let both ends prove that they know the key, in the order that the other end expects."""
    try:
        for step in steps:
            step(connection, key)
    except BaseException:
        connection.close()
        raise
    _set_timeouts(connection, receive_s=0)
    return Channel(connection, incoming)


def _wrapped(connected: socket.socket) -> Connection:
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection = Connection(connected.detach())
    _set_timeouts(connection, receive_s=HANDSHAKE_TIMEOUT_S)
    return connection


def _set_timeouts(connection: Connection, *, receive_s: float) -> None:
    """Bound the time of reads (0: unbounded) and writes, which Connection itself does not."""

    def bound(one: socket.socket) -> None:
        for option, seconds in (
            (socket.SO_RCVTIMEO, receive_s),
            (socket.SO_SNDTIMEO, SEND_TIMEOUT_S),
        ):
            one.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), 0))

    _with_socket(connection, bound)


def _with_socket(connection: Connection, act: Callable[[socket.socket], object]) -> None:
    """Act on the connection's socket, which Connection holds as a file descriptor only."""
    borrowed = socket.socket(fileno=connection.fileno())
    try:
        act(borrowed)
    finally:
        borrowed.detach()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
