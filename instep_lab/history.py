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
    row). POSITION is the end of a partition, which a consumer has reached.
    END is the last operation of a consumer that was not killed.
    """

    SEND = "send"
    READ = "read"
    WORK = "work"
    COMMIT = "commit"
    ASSIGN = "assign"
    REVOKE = "revoke"
    FAULT = "fault"
    POSITION = "position"
    END = "end"


class OperationStatus(enum.StrEnum):
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


class ClientOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation, recorded when it ended or was given up.

    Times are those of the monotonic clock of one machine. `sender` is the producer that handed the
    record over, as its `sequence`-th one; a reader finds both in the record, and its timestamp.
    Of a send, the timestamp is the time of day at which the record was handed over.
    """

    kind: OperationKind
    outcome: OperationStatus = OperationStatus.OK
    at_ns: int = 0
    took_ns: int = 0
    group: str = ""
    member: str = ""
    key: str | None = None
    number: int | None = None
    topic: str = ""
    partition: int | None = None
    offset: int | None = None
    sender: str = ""
    sequence: int | None = None
    transaction: str | None = None
    timestamp_ms: int | None = None
    note: str = ""

    @property
    def record(self) -> tuple[str | None, int | None]:
        return self.key, self.number


class HistoryWriter:
    """Appends operations to a history file; safe to use from any thread.

    Every operation is written at once, so that the history survives the death of the process.
    With `sampled`, only the first and the last operation of each kind are written, the last when
    the writer closes: to write every operation would slow down a client that is measured.
    """

    def __init__(self, file: Path, *, sampled: bool = False) -> None:
        self._lock = threading.Lock()
        self._stream = file.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()
        self._counts: Counter[tuple[OperationKind, OperationStatus]] = Counter()
        self._sampled = sampled
        self._last: dict[OperationKind, ClientOperation | None] = {}  # those not yet written

    def note(self, operation: ClientOperation) -> None:
        """Write an operation; one without a time gets the current time."""
        if not operation.at_ns:
            operation = msgspec.structs.replace(operation, at_ns=time.monotonic_ns())
        with self._lock:
            self._counts[operation.kind, operation.outcome] += 1
            if self._sampled and operation.kind in self._last:
                self._last[operation.kind] = operation
                return
            self._last[operation.kind] = None
            self._write(operation)

    def _write(self, operation: ClientOperation) -> None:
        # One unbuffered write per line: kill -9 leaves at most the last line incomplete.
        self._stream.write(self._encoder.encode(operation) + b"\n")

    def count(self, kind: OperationKind, outcome: OperationStatus = OperationStatus.OK) -> int:
        """Return how many of these were written so far, without reading the file."""
        return self._counts[kind, outcome]

    def close(self) -> None:
        with self._lock:
            for operation in filter(None, self._last.values()):
                self._write(operation)
            self._last.clear()
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


class HistoryTail:
    """Reads what another process appends to its history."""

    def __init__(self, file: Path) -> None:
        self._stream = file.open("rb")
        self._rest = b""
        self._decoder = msgspec.json.Decoder(ClientOperation)

    def read(self) -> list[ClientOperation]:
        """Return the operations since the last call."""
        *lines, self._rest = (self._rest + self._stream.read()).split(b"\n")
        return [self._decoder.decode(line) for line in lines]

    def close(self) -> None:
        self._stream.close()


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


def around(
    history: Sequence[ClientOperation],
    record: str,
    neighbours: int = 5,
    *,
    any_key: bool = False,
) -> list[str]:
    """Return what happened to a record, with the operations before and after it, as lines.

    `record` is a key and a number, such as k3#17. The neighbours are operations of the same kind
    by the same client on the same key, or on any key.
    """
    mine = _of_record(history, record)
    if not mine:
        return []
    last = history[mine[-1]]
    alike = [
        index
        for index, one in enumerate(history)
        if (one.kind, one.group, one.member) == (last.kind, last.group, last.member)
        and (any_key or one.key == last.key)
    ]
    place = alike.index(mine[-1])
    near = alike[max(0, place - neighbours) : place + neighbours + 1]
    return _lines(history, {*mine, *near}, in_topic=any_key)


def around_unread(
    history: Sequence[ClientOperation], record: str, group: str, neighbours: int = 5
) -> list[str]:
    """Return how a record was sent, and what a group that did not read it did around that time.

    These are the group's operations on the partition of the record, and those on no partition.
    """
    mine = _of_record(history, record)
    if not mine:
        return []
    partition = history[mine[0]].partition
    of_group = [
        index
        for index, one in enumerate(history)
        if one.group == group and one.partition in (None, partition)
    ]
    before = [index for index in of_group if index < mine[0]]
    after = [index for index in of_group if index > mine[0]]
    return _lines(history, {mine[0], *before[-neighbours:], *after[:neighbours]})


def excerpt(history: Sequence[ClientOperation], chosen: Iterable[ClientOperation]) -> list[str]:
    """Return chosen operations of a history as lines, by time."""
    wanted = {id(one) for one in chosen}
    return _lines(history, (index for index, one in enumerate(history) if id(one) in wanted))


def _of_record(history: Sequence[ClientOperation], record: str) -> list[int]:
    return [
        index
        for index, one in enumerate(history)
        if one.key and f"{one.key}#{one.number}" == record
    ]


def _lines(
    history: Sequence[ClientOperation], indexes: Iterable[int], *, in_topic: bool = False
) -> list[str]:
    began = history[0].at_ns
    return [_line(history[index], began, in_topic=in_topic) for index in sorted(indexes)]


def _line(one: ClientOperation, began_ns: int, *, in_topic: bool) -> str:
    """Return an operation as a line; `in_topic` adds the place in the order of the sender."""
    where = "" if one.partition is None else f"partition {one.partition}"
    if one.offset is not None and one.offset >= 0:
        where += f" offset {one.offset}"
    if in_topic and one.sequence is not None:
        where += f" sent as number {one.sequence}"
    words = (
        f"{(one.at_ns - began_ns) / 1e9:9.4f} s",
        "/".join(name for name in (one.group, one.member) if name),
        str(one.kind),
        str(one.outcome),
        f"{one.key}#{one.number}" if one.key else "",
        where,
        one.note,
    )
    return "  ".join(word for word in words if word)
