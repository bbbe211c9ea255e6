"""A resident task: it runs in a Python worker of Spark until the driver ends it.

The driver sends it partitions of any job; each flow has a thread here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

import msgspec

from instep import errors
from instep.pipeline import failures
from instep.pipeline.resident import channel
from instep.pipeline.resident.assignments import FlowKey
from instep.pipeline.resident.messages import (
    FROM_DRIVER,
    Alive,
    Assign,
    End,
    FromDriver,
    Hello,
    Revoke,
    Revoked,
    StopFlow,
    Stopped,
)
from instep.pipeline.resident.share import Send, Share

ALIVE_INTERVAL_S = 2.0
STOP_PATIENCE_S = 30.0


class OpenShare(Protocol):
    """Opens the part of a flow that one task does. Spark carries it to the tasks."""

    def __call__(self, key: FlowKey, plan: bytes, send: Send, /) -> Share:
        """Return the thread, not started."""


class ResidentJob(msgspec.Struct, frozen=True):
    """What every task of the job is given by Spark, secrets included.

    Spark transports it as it does all tasks, encrypted if it is set up so; messages between
    driver and tasks contain no secrets.
    """

    address: tuple[str, int]
    key: bytes
    open_share: OpenShare


def serve(job: ResidentJob, numbers: Iterator[int]) -> None:
    """Run one task. It ends when the driver says so, or when the driver is gone."""
    for number in numbers:
        try:
            driver = channel.connect(job.address, job.key, FROM_DRIVER)
        except channel.LOST as error:
            host, port = job.address
            raise failures.TaskFailed(
                errors.InstepError(
                    f"a task cannot reach the driver at {host}:{port}: {error}",
                    "let executors connect to that port: set spark.driver.host and"
                    " spark.instep.port in [spark] conf to an address that they reach",
                )
            ) from error
        ResidentTask(job, driver).run(number)


class ResidentTask:
    """The flows of one task."""

    def __init__(self, job: ResidentJob, driver: channel.Channel[FromDriver]) -> None:
        self._job, self._driver = job, driver
        self._shares: dict[tuple[str, int], Share] = {}

    def run(self, number: int) -> None:
        """Follow the driver's orders until the end."""
        self._driver.send(Hello(number))
        try:
            while not isinstance(message := self._driver.receive(ALIVE_INTERVAL_S), End):
                if message is None:
                    self._driver.send(Alive())
                else:
                    self._pass_on(message)
        except EOFError:
            pass  # the driver is gone, or has given this task's partitions to another
        finally:
            self._stop()
            self._driver.close()

    def _pass_on(self, instruction: Assign | Revoke | StopFlow) -> None:
        key = (instruction.job, instruction.epoch)
        self._shares = {known: share for known, share in self._shares.items() if share.is_alive()}
        share = self._shares.get(key)
        if isinstance(instruction, StopFlow):
            if share is None:
                self._driver.send(Stopped(*key))
            else:
                share.stop()
        elif isinstance(instruction, Revoke) and share is None:
            self._driver.send(Revoked(*key, instruction.partitions))
        else:
            (share or self._started(key, instruction)).instruct(instruction)

    def _started(self, key: tuple[str, int], instruction: Assign | Revoke) -> Share:
        assert isinstance(instruction, Assign)
        share = self._job.open_share(key, instruction.plan, self._driver.send)
        self._shares[key] = share
        share.start()
        return share

    def _stop(self) -> None:
        """Stop the threads after their transactions; the epoch keeps later ones harmless."""
        deadline = time.monotonic() + STOP_PATIENCE_S
        for share in self._shares.values():
            share.stop()
        for share in self._shares.values():
            share.join(max(0.0, deadline - time.monotonic()))
