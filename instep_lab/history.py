"""What a trial saw: every operation of every client, one line each, only ever added to.

An operation ends ok, failed, or unknown: the answer did not come, or the client died first. Unknown is neither: a send
whose answer was lost may be in the log, so its record may be read or not, and neither is an anomaly.

A record is named by its key and its number: numbers of a key count up in the order in which they were sent. Clients are named by
group and member, so that "read by this group" can be asked.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from instep import errors


class OperationKind(enum.StrEnum):
    """What was done. A record is sent, read (handed to the program) and worked (its effect is there, say a row)."""

    SEND = "send"
    READ = "read"
    WORK = "work"
    COMMIT = "commit"
    ASSIGN = "assign"
    REVOKE = "revoke"
    FAULT = "fault"


class OperationStatus(enum.StrEnum):
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation, noted when it ended, or when it was given up. Times are of the monotonic clock of one machine."""

    kind: OperationKind
    outcome: OperationStatus = OperationStatus.OK
    at_ns: int = 0
    took_ns: int = 0
    group: str = ""
    member: str = ""
    key: str | None = None
    number: int | None = None
    partition: int | None = None
    offset: int | None = None
    transaction: str | None = None
    note: str = ""

    @property
    def record(self) -> tuple[str | None, int | None]:
        return self.key, self.number


class HistoryWriter:
    """A history being written: to a file, by any thread, each operation at once, so that it outlives its writer's end."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        self._stream = file.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()
        self._counts: Counter[tuple[OperationKind, OperationStatus]] = Counter()

    def note(self, operation: Operation) -> None:
        """Write it down; one without a time has just ended."""
        timed = (
            operation
            if operation.at_ns
            else msgspec.structs.replace(operation, at_ns=time.monotonic_ns())
        )
        line = self._encoder.encode(timed) + b"\n"
        with self._lock:
            self._stream.write(line)
            self._counts[operation.kind, operation.outcome] += 1

    def count(self, kind: OperationKind, outcome: OperationStatus = OperationStatus.OK) -> int:
        """How many of these were noted here so far, without reading them again."""
        return self._counts[kind, outcome]

    def close(self) -> None:
        with self._lock:
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read(file: Path) -> list[Operation]:
    """The operations of a file. A last line that breaks off was being written when the writer died, and is left out."""
    lines = file.read_bytes().split(b"\n")
    decoder = msgspec.json.Decoder(Operation)
    found = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            found.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.InstepError(
                f"{file}, line {number}, is no operation: {error}",
                "the history was changed: run it again",
            ) from error
    return found


def joined(histories: Iterable[Sequence[Operation]]) -> list[Operation]:
    """Histories of several processes of one machine as one, in the order of time; those of one process keep theirs."""
    return sorted(
        (operation for one in histories for operation in one), key=lambda operation: operation.at_ns
    )


def of(
    history: Iterable[Operation],
    kind: OperationKind,
    outcome: OperationStatus | None = OperationStatus.OK,
    group: str | None = None,
) -> Iterator[Operation]:
    """The operations of a kind."""
    for operation in history:
        if (
            operation.kind is kind
            and outcome in (None, operation.outcome)
            and group in (None, operation.group)
        ):
            yield operation
