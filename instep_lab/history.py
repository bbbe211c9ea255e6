"""The history of a trial: every operation of every client, one line each, append-only.

The status of an operation is ok, fail or unknown. Unknown means that no answer came or that the
client died first. A send with an unknown status may be in the log: its record may be read or not,
and neither is an anomaly.

A record is identified by its key and its number. The numbers of a key increase in the order in
which they were sent. Clients are identified by group and member, so that checkers can look at the
operations of one group.
"""

from __future__ import annotations

import enum
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec

from instep import errors


class OperationKind(enum.StrEnum):
    """The kind of an operation.

    A record is sent, read (handed to the program) and worked (its effect is visible, such as a
    row).
    """

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


class ClientOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation, recorded when it ended or was given up.

    Times are those of the monotonic clock of one machine.
    """

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
    """Appends operations to a history file; safe to use from any thread.

    Every operation is written at once, so that the history survives the death of the process.
    """

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        self._stream = file.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()
        self._counts: Counter[tuple[OperationKind, OperationStatus]] = Counter()

    def note(self, operation: ClientOperation) -> None:
        """Write an operation; one without a time gets the current time."""
        if not operation.at_ns:
            operation = msgspec.structs.replace(operation, at_ns=time.monotonic_ns())
        # One unbuffered write per line: kill -9 leaves at most the last line incomplete.
        line = self._encoder.encode(operation) + b"\n"
        with self._lock:
            self._stream.write(line)
            self._counts[operation.kind, operation.outcome] += 1

    def count(self, kind: OperationKind, outcome: OperationStatus = OperationStatus.OK) -> int:
        """Return how many of these were written so far, without reading the file."""
        return self._counts[kind, outcome]

    def close(self) -> None:
        with self._lock:
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(file: Path) -> list[ClientOperation]:
    """Return the operations of a file.

    An incomplete last line is ignored: it was being written when the writer died.
    """
    lines = file.read_bytes().split(b"\n")
    decoder = msgspec.json.Decoder(ClientOperation)
    operations = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            operations.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.InstepError(
                f"{file}, line {number} is not an operation: {error}",
                "the history file was modified: run the claim again",
            ) from error
    return operations


def merge(histories: Iterable[Sequence[ClientOperation]]) -> list[ClientOperation]:
    """Merge the histories of several processes of one machine by time.

    Operations of one process keep their order.
    """
    operations = itertools.chain.from_iterable(histories)
    return sorted(operations, key=lambda operation: operation.at_ns)


def of(
    history: Iterable[ClientOperation],
    kind: OperationKind,
    outcome: OperationStatus | None = OperationStatus.OK,
    group: str | None = None,
) -> Iterator[ClientOperation]:
    """Yield the operations of one kind; None as outcome or group matches any."""
    for operation in history:
        if (
            operation.kind is kind
            and outcome in (None, operation.outcome)
            and group in (None, operation.group)
        ):
            yield operation
