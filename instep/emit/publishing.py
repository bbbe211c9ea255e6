"""`instep emit`: publish the records of a file or stdin with progress, and deletes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from instep import errors, settings
from instep.document import mapping
from instep.emit import files, outgoing
from instep.emit.publisher import Publisher

STDIN = "-"
SOURCE = "instep emit"
PROGRESS_INTERVAL_S = 0.1


def key_of(declared: settings.Settings, topic: str) -> files.Key:
    """Return the fields of the id that the topic's pipelines read, else `doc_id`."""
    following = [one for one in declared.pipelines.values() if one.topic == topic]
    named = {
        (one.event.documents, one.key_separator)
        for one in following
        if one.event.documents != (mapping.KEY,)
    }
    if len(named) > 1:
        fields = sorted("+".join(documents) for documents, _ in named)
        raise errors.SettingsError(
            f"the pipelines of topic {topic!r} read the document's id from different fields:"
            f" {', '.join(fields)}",
            "name the field of the record's key with --key FIELD, or several: --key FIELD,FIELD",
        )
    return files.Key(*named.pop()) if named else files.USUAL_KEY


def publish_file(
    kafka: settings.Kafka,
    bootstrap: str,
    topic: str,
    file: str,
    *,
    key: files.Key,
    progress: Callable[[int, int], None],
) -> int:
    """Publish every record and return their number; a wrong line raises after those before it.

    `progress` gets the number of records that were sent, and of bytes that were read for them.
    """
    sent, reported_at = 0, time.monotonic()
    with (
        _opened(file) as stream,
        Publisher(bootstrap, topic, source=SOURCE, security=kafka.security) as publisher,
    ):
        try:
            for record in files.read(stream, files.format_of(file), key=key, name=file):
                publisher.send_raw(record.key, record.value, list(record.headers) or None)
                sent += 1
                if time.monotonic() - reported_at >= PROGRESS_INTERVAL_S:
                    reported_at = time.monotonic()
                    progress(sent, 0 if file == STDIN else stream.tell())
        except errors.SettingsError as error:
            publisher.flush()
            raise errors.SettingsError(
                error.what,
                f"{sent} records before it were published; {error.remedy or 'correct the line'}",
            ) from error
    return sent


def publish_deletions(
    kafka: settings.Kafka, bootstrap: str, topic: str, documents: Sequence[str]
) -> int:
    """Publish a delete for each document and return their number; check all ids first."""
    for document in documents:
        outgoing.document_key(document)
    with Publisher(bootstrap, topic, source=SOURCE, security=kafka.security) as publisher:
        for document in documents:
            publisher.delete(document)
    return len(documents)


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == STDIN:
        yield sys.stdin.buffer
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise errors.SettingsError(
            f"{file} cannot be read: {error.strerror}", "name a file that this user can read"
        ) from error
    with stream:
        yield stream
