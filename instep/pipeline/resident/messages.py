"""The messages between the driver and its tasks."""

from __future__ import annotations

import pickle
from typing import cast

import msgspec

from instep import errors
from instep.pipeline.apply.batch import Writer
from instep.sinks.target import Target


class Assign(msgspec.Struct, tag=True, frozen=True):
    """Read these partitions of a pipeline, and apply their records under this epoch.

    `ends` are the offsets at which a run with `--once` ends. `plan` is from `encode_plan`.
    """

    pipeline: str
    epoch: int
    plan: bytes
    partitions: list[int]
    ends: dict[int, int] | None = None


class Revoke(msgspec.Struct, tag=True, frozen=True):
    """Stop reading these partitions, and answer Revoked after the current transaction."""

    pipeline: str
    epoch: int
    partitions: list[int]


class StopFlow(msgspec.Struct, tag=True, frozen=True):
    """Stop the pipeline in this task, and answer Stopped after the current transaction."""

    pipeline: str
    epoch: int


class End(msgspec.Struct, tag=True, frozen=True):
    """End the task after the current transactions."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    """The first message of a task: its number among the tasks of the job."""

    task: int


class Alive(msgspec.Struct, tag=True, frozen=True):
    """Sent from time to time, so that the driver notices a task that hangs."""


class Applied(msgspec.Struct, tag=True, frozen=True):
    """What a task committed since its last message."""

    pipeline: str
    epoch: int
    counts: dict[str, int]
    positions: dict[int, int]


class Revoked(msgspec.Struct, tag=True, frozen=True):
    """These partitions are no longer read."""

    pipeline: str
    epoch: int
    partitions: list[int]


class Stopped(msgspec.Struct, tag=True, frozen=True):
    """The pipeline no longer runs in this task."""

    pipeline: str
    epoch: int


class Finished(msgspec.Struct, tag=True, frozen=True):
    """These partitions were applied up to their ends."""

    pipeline: str
    epoch: int
    partitions: list[int]


class Failed(msgspec.Struct, tag=True, frozen=True):
    """A pipeline failed in this task. `kind` is the name of a type in `instep.errors`."""

    pipeline: str
    epoch: int
    kind: str
    what: str
    remedy: str

    def error(self) -> errors.InstepError:
        """Return the error that the task met."""
        kind = getattr(errors, self.kind, errors.InstepError)
        error: errors.InstepError = kind(self.what, self.remedy)
        return error


FromDriver = Assign | Revoke | StopFlow | End
FromTask = Hello | Alive | Applied | Revoked | Stopped | Finished | Failed
FROM_DRIVER: msgspec.msgpack.Decoder[FromDriver] = msgspec.msgpack.Decoder(FromDriver)
FROM_TASK: msgspec.msgpack.Decoder[FromTask] = msgspec.msgpack.Decoder(FromTask)


def encode_plan(target: Target, writer: Writer) -> bytes:
    """Return what a task needs to apply records, without the password in the target's URL."""
    # Pickled, because a value that clears a column may be of any type of the database.
    return pickle.dumps((msgspec.structs.replace(target, url=""), writer))


def decode_plan(plan: bytes, url: str) -> tuple[Target, Writer]:
    """Return the plan with its URL. Only the driver, which has the job's key, can have sent it."""
    target, writer = cast("tuple[Target, Writer]", pickle.loads(plan))  # noqa: S301 - authenticated
    return msgspec.structs.replace(target, url=url), writer
