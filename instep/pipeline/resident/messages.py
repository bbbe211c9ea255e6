"""The messages between the driver and its tasks."""

from __future__ import annotations

import msgspec

from instep import errors


class Assign(msgspec.Struct, tag=True, frozen=True):
    """Read these partitions for a job, and apply their records under this epoch.

    `ends` are the offsets at which a run with `--once` ends. `plan` says what to do with records.
    """

    job: str
    epoch: int
    plan: bytes
    partitions: list[int]
    ends: dict[int, int] | None = None


class Revoke(msgspec.Struct, tag=True, frozen=True):
    """Stop reading these partitions, and answer Revoked after the current transaction."""

    job: str
    epoch: int
    partitions: list[int]


class StopFlow(msgspec.Struct, tag=True, frozen=True):
    """Stop the flow in this task, and answer Stopped after the current transaction."""

    job: str
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

    job: str
    epoch: int
    counts: dict[str, int]
    positions: dict[int, int]


class Revoked(msgspec.Struct, tag=True, frozen=True):
    """These partitions are no longer read."""

    job: str
    epoch: int
    partitions: list[int]


class Stopped(msgspec.Struct, tag=True, frozen=True):
    """The flow no longer runs in this task."""

    job: str
    epoch: int


class Finished(msgspec.Struct, tag=True, frozen=True):
    """These partitions were applied up to their ends."""

    job: str
    epoch: int
    partitions: list[int]


class Failed(msgspec.Struct, tag=True, frozen=True):
    """A flow failed in this task. `kind` is the name of a type in `instep.errors`."""

    job: str
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
