"""What trials send: records that say in their value which they are, from a seed. Pure."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

SEPARATOR = b"#"
PADDING = b"|"


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """The key's name and which of its records this is, counting up in the order of sending."""

    key: str
    number: int
    size: int = 0

    @property
    def value(self) -> bytes:
        """Both in the value, so that they survive a send without a key; filled up to the size."""
        said = self.key.encode() + SEPARATOR + str(self.number).encode() + PADDING
        return said.ljust(self.size, b".")


def parse(value: bytes) -> tuple[str, int]:
    """Key and number of a value; ValueError when it is no value of ours."""
    said, found, _ = value.partition(PADDING)
    key, separated, number = said.rpartition(SEPARATOR)
    if not found or not separated:
        raise ValueError(f"{value[:40]!r} was not sent by this workload")
    return key.decode(), int(number)


def records(
    seed: int | str, count: int, keys: int, size: int = 100, first: int = 0
) -> Iterator[WorkloadRecord]:
    """Records of keys drawn at random; `first` is the number at which each key begins, for a workload that goes on."""
    drawn = random.Random(seed)  # noqa: S311 - a repeatable workload, nothing secret
    numbers: dict[str, int] = defaultdict(lambda: first)
    for _ in range(count):
        key = f"k{drawn.randrange(keys)}"
        yield WorkloadRecord(key, numbers[key], size)
        numbers[key] += 1
