"""ZeroMQ as a queue, without a server.

Messages that were sent but not yet received are in the memory of the sending or the receiving
process. The sender never learns the fate of a message, so ZeroMQ is never durable. A kill hits the
sending process.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Self

import zmq

from instep import errors
from instep.local import keeper_client, ports
from instep.waiting import wait_until
from instep_lab.queues import system

SENT = "sent all"
ANSWER_S = 30.0
LENGTH = struct.Struct(">I")


class ZeroQueue:
    """PUSH to PULL over TCP, both ends in this process, with unlimited buffers."""

    def __init__(self, address: str, *, sending: bool = True) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._receiver = self._context.socket(zmq.PULL)
        self._receiver.set_hwm(0)
        self._receiver.bind(address)
        self._sender = connect(self._context, address) if sending else None

    def enqueue(self, messages: Sequence[bytes]) -> None:
        if self._sender:
            send(self._sender, messages)

    def dequeue(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        # A timeout of the socket: asking whether a message is there, for each message, takes
        # longer than receiving it.
        self._receiver.setsockopt(zmq.RCVTIMEO, int(system.PATIENCE_S * 1000))
        with contextlib.suppress(zmq.Again):
            while len(found) < count:
                found.append(self._receiver.recv())
        return found

    def release(self) -> str:
        return f"libzmq {zmq.zmq_version()}, pyzmq {zmq.pyzmq_version()}"

    def close(self) -> None:
        self._context.destroy(linger=0)  # do not wait for messages that nobody receives


class ZeroMQSender:
    """A process that has sent every message before a receiver connects."""

    def __init__(self, address: str, messages: Sequence[bytes]) -> None:
        self.address = address
        work = Path(tempfile.mkdtemp(prefix="instep-zeromq-"))
        self._keeper = keeper_client.KeeperClient(temporary=work)
        try:
            _write(work / "messages", messages)
            self._keeper.launch(
                [sys.executable, "-m", __name__, address], log=work / "log", given=work / "messages"
            )
            _wait_sent(self._keeper, work / "log")
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return self._keeper.alive and self._keeper.poll() is None

    def kill(self) -> None:
        self._keeper.kill()

    def close(self) -> None:
        self._keeper.close()


class ZeroMQ:
    """ZeroMQ: the last sending process holds the messages, and they are gone after a restart."""

    name = "zeromq"
    durable = False

    def __init__(self) -> None:
        self._sender: ZeroMQSender | None = None

    @property
    def holder(self) -> Self:
        return self

    @property
    def alive(self) -> bool:
        return self._sender is not None and self._sender.alive

    def kill(self) -> None:
        if self._sender:
            self._sender.kill()

    def start(self) -> None:
        """Do nothing: there is no server, and a new sender would have other messages."""

    def open(self, queue: str) -> ZeroQueue:  # noqa: ARG002 - queues have no names without a server
        return ZeroQueue(_address())

    def hand_over(self, queue: str, messages: Sequence[bytes]) -> ZeroMQSender:  # noqa: ARG002
        self._sender = ZeroMQSender(_address(), messages)
        return self._sender

    def take_up(self, queue: str) -> ZeroQueue:
        if self._sender is None:
            raise errors.InstepError(f"no messages were handed over to {queue}")
        return ZeroQueue(self._sender.address, sending=False)


def connect(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    sender = context.socket(zmq.PUSH)
    sender.set_hwm(0)
    sender.connect(address)
    return sender


def send(sender: zmq.Socket[bytes], messages: Sequence[bytes]) -> None:
    for message in messages:
        sender.send(message)


def _address() -> str:
    return f"tcp://{ports.HOST}:{ports.free()[0]}"


def _wait_sent(keeper: keeper_client.KeeperClient, log: Path) -> None:
    def output() -> str:
        return log.read_text(encoding="utf-8", errors="replace")

    wait_until(lambda: SENT in output() or keeper.poll() is not None, ANSWER_S, interval_s=0.01)
    if SENT not in output():
        raise errors.InstepError(f"the ZeroMQ sender failed: {output().strip() or 'no output'}")


def _write(file: Path, messages: Sequence[bytes]) -> None:
    with file.open("wb") as stream:
        for message in messages:
            stream.write(LENGTH.pack(len(message)) + message)


def _read(stream: BinaryIO) -> Iterator[bytes]:
    while head := stream.read(LENGTH.size):
        yield stream.read(LENGTH.unpack(head)[0])


def main(arguments: list[str]) -> None:
    """Send the messages on standard input to the address, report that, and wait to be killed."""
    sender = connect(zmq.Context(), arguments[0])
    send(sender, list(_read(sys.stdin.buffer)))
    sys.stdout.write(f"{SENT}\n")
    sys.stdout.flush()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1:])
