"""The records that trials send, generated from a seed; each value identifies its record. Pure."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SEPARATOR = b"#"
PADDING = b"|"
SENDER, SEQUENCE = "sender", "sequence"


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """The name of a key, and the record's number within it, in the order of sending."""

    key: str
    number: int
    size: int = 0

    @property
    def value(self) -> bytes:
        """Key and number as bytes, padded to the size.

        The value contains the key, so that a record sent without one can still be identified.
        """
        text = self.key.encode() + SEPARATOR + str(self.number).encode() + PADDING
        return text.ljust(self.size, b".")


def parse(value: bytes) -> tuple[str, int]:
    """Return the key and number of a value; ValueError if this workload did not make it."""
    text, padded, _ = value.partition(PADDING)
    key, separated, number = text.rpartition(SEPARATOR)
    if not padded or not separated:
        raise ValueError(f"{value[:40]!r} was not sent by this workload")
    return key.decode(), int(number)


def headers(sender: str, sequence: int) -> list[tuple[str, str | bytes | None]]:
    """Return the headers that say which producer handed a record over, and when in its order."""
    return [(SENDER, sender.encode()), (SEQUENCE, str(sequence).encode())]


def parse_headers(
    found: Mapping[str, Any] | Iterable[tuple[str, Any]] | None,
) -> tuple[str, int | None]:
    """Return the sender and its sequence number, if the record has them."""
    values = dict(found or ())
    if SENDER not in values or SEQUENCE not in values:
        return "", None
    return values[SENDER].decode(), int(values[SEQUENCE])


def records(
    seed: int | str, count: int, keys: int, size: int = 100, first: int = 0, first_key: int = 0
) -> Iterator[WorkloadRecord]:
    """Yield records with random keys.

    `first` is the number at which each key starts, for a workload that continues another. The keys
    are k0, k1, …, or begin with another number.
    """
    generator = random.Random(seed)  # noqa: S311 - a repeatable workload, nothing secret
    numbers: dict[str, int] = defaultdict(lambda: first)
    for _ in range(count):
        key = f"k{first_key + generator.randrange(keys)}"
        yield WorkloadRecord(key, numbers[key], size)
        numbers[key] += 1
