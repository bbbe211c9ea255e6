"""`instep emit`: a file's or stdin's records to a topic, with progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from instep import errors, settings
from instep.emit import files
from instep.emit.publisher import Publisher

STDIN = "-"
PROGRESS_INTERVAL_S = 2.0


def publish_file(kafka: settings.Kafka, bootstrap: str, topic: str, file: str, *, key: str, say: Callable[[str], None]) -> int:
    """Publish every record; returns how many. A bad line ends it there, after those before it were delivered."""
    sent, said_at = 0, time.monotonic()
    with _opened(file) as stream, Publisher(bootstrap, topic, source="instep emit", security=kafka.security) as publisher:
        try:
            for record in files.read(stream, files.format_of(file), key=key, name=file):
                publisher.send_raw(record.key, record.value, list(record.headers) or None)
                sent += 1
                if time.monotonic() - said_at >= PROGRESS_INTERVAL_S:
                    said_at = time.monotonic()
                    say(f"{sent:,} records sent")
        except errors.SettingsError as error:
            publisher.flush()
            raise errors.SettingsError(
                error.what, f"{sent} records before it were published; {error.remedy or 'mend the line'}"
            ) from error
    return sent


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == STDIN:
        yield sys.stdin.buffer
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115 - closed below; only its opening is explained
    except OSError as error:
        raise errors.SettingsError(f"{file} cannot be read: {error.strerror}") from error
    with stream:
        yield stream
