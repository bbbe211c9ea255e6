"""Read files as records for `instep emit`; `document/lines.py` parses the lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from instep import errors
from instep.document import lines
from instep.document.lines import USUAL_KEY, Format, Key, format_of
from instep.emit import outgoing

__all__ = ["USUAL_KEY", "Format", "Key", "format_of", "read"]


def read(
    stream: BinaryIO, file_format: Format, *, key: Key = USUAL_KEY, name: str = "-"
) -> Iterator[outgoing.OutgoingRecord]:
    """Return the records one by one; raise at a wrong line, with file name and line number."""
    for line in lines.read(stream, file_format, key=key, name=name):
        try:
            yield outgoing.OutgoingRecord(outgoing.document_key(line.document), line.value)
        except errors.SettingsError as failure:
            raise lines.wrong(name, line.number, failure.what, failure.remedy) from failure
