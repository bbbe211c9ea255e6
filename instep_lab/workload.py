"""The records that trials send, generated from a seed; each value identifies its record. Pure."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

SEPARATOR = b"#"
PADDING = b"|"


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


def records(
    seed: int | str, count: int, keys: int, size: int = 100, first: int = 0
) -> Iterator[WorkloadRecord]:
    """Yield records with random keys.

    `first` is the number at which each key starts, for a workload that continues another.
    """
    generator = random.Random(seed)  # noqa: S311 - a repeatable workload, nothing secret
    numbers: dict[str, int] = defaultdict(lambda: first)
    for _ in range(count):
        key = f"k{generator.randrange(keys)}"
        yield WorkloadRecord(key, numbers[key], size)
        numbers[key] += 1
