"""Results kept as JSON files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from instep import errors

Kept = TypeVar("Kept")


def now() -> str:
    """Return the time as a report shows it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write(file: Path, value: object) -> None:
    """Keep a value as JSON, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_suffix(".new")
    written.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    written.replace(file)


def read(file: Path, kind: type[Kept]) -> Kept:
    """Return a stored value."""
    with explained(file):
        return msgspec.json.decode(file.read_bytes(), type=kind)


@contextmanager
def explained(file: Path) -> Iterator[None]:
    """Turn an error of reading this file into one that says what to do."""
    try:
        yield
    except (OSError, UnicodeDecodeError, RecursionError, msgspec.MsgspecError) as error:
        raise errors.InstepError(
            f"{file} cannot be read: {error}", "the run was changed: run it again"
        ) from error


def exists(file: Path) -> bool:
    """Return whether the file exists and is accessible; False for impossible names."""
    try:
        return file.is_file()
    except OSError:
        return False
