"""Test the connection between driver and tasks: messages, strangers, lost peers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from instep import errors
from instep.pipeline.resident import channel, messages
from instep.pipeline.resident.channel import Channel
from instep.pipeline.resident.messages import FromDriver, FromTask

KEY = b"k" * 32


class Driver:
    """A listener that accepts one task in a thread."""

    def __init__(self) -> None:
        self.listener = channel.listen("127.0.0.1")
        self.address: tuple[str, int] = self.listener.getsockname()
        self.accepted: Channel[FromTask] | None = None
        self.refused: BaseException | None = None
        self.thread = threading.Thread(target=self._accept)
        self.thread.start()

    def _accept(self) -> None:
        connected, _ = self.listener.accept()
        try:
            self.accepted = channel.accept(connected, KEY, messages.FROM_TASK)
        except channel.LOST as error:
            self.refused = error


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.thread.join(30)
    made.listener.close()


def pair(driver: Driver) -> tuple[Channel[FromTask], Channel[FromDriver]]:
    task = channel.connect(driver.address, KEY, messages.FROM_DRIVER)
    driver.thread.join(30)
    assert driver.accepted is not None
    return driver.accepted, task


def test_messages_arrive_in_order_and_typed(driver: Driver) -> None:
    at_driver, at_task = pair(driver)
    orders: list[FromDriver] = [
        messages.Assign("p", 3, b"plan", [0, 1], {0: 5, 1: 7}),
        messages.Revoke("p", 3, [0]),
        messages.StopFlow("p", 3),
        messages.End(),
    ]
    for order in orders:
        assert at_driver.send(order)
    assert [at_task.receive(30) for _ in orders] == orders
    answer = messages.Applied("p", 3, {"records": 2}, {0: 2})
    assert at_task.send(answer)
    assert at_driver.receive(30) == answer
    assert at_driver.receive(0) is None


def test_a_peer_that_is_gone_is_noticed(driver: Driver) -> None:
    at_driver, at_task = pair(driver)
    at_task.close()
    with pytest.raises(EOFError):
        at_driver.receive(30)
    at_driver.close()
    assert not at_driver.send(messages.End())


def test_a_stranger_without_the_key_is_refused(driver: Driver) -> None:
    with pytest.raises(channel.LOST):
        channel.connect(driver.address, b"another key", messages.FROM_DRIVER)
    driver.thread.join(30)
    assert driver.refused is not None


def test_a_stranger_that_speaks_something_else_is_refused(driver: Driver) -> None:
    with socket.create_connection(driver.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        driver.thread.join(30)
    assert driver.refused is not None


def test_an_error_keeps_its_type() -> None:
    failed = messages.Failed("p", 3, "DatabaseUnreachable", "it is away", "start it")
    error = failed.error()
    assert type(error) is errors.DatabaseUnreachable
    assert (error.what, error.remedy) == ("it is away", "start it")
