"""Make Kafka records of outbox rows."""

from __future__ import annotations

import msgspec

from instep.document import event
from instep.kafka import record_writer
from instep.sources.outbox_reader import OutboxRow

OUTBOX_ID = "instep_outbox_id"  # header with the row's id

# JSON that cannot be read: malformed, not UTF-8, nested too deeply
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)

Headers = record_writer.Headers


class RowInvalid(Exception):
    """No record can be made of a row."""


class RecordBuilder:
    """Builds the records of one relay."""

    def __init__(self, relay: str, source_id: str, version: str | None) -> None:
        self._id_prefix = f"{source_id}-".encode()
        self._version = None if version is None else msgspec.json.encode(version)
        self._field = version
        common: Headers = [
            ("ce_specversion", b"1.0"),
            ("ce_source", relay.encode()),
            ("content-type", b"application/json"),
        ]
        self._event_headers: Headers = [*common, ("ce_type", event.EVENT_TYPE.encode())]
        self._delete_headers: Headers = [*common, ("ce_type", event.DELETE_TYPE.encode())]

    def key(self, row: OutboxRow) -> bytes:
        """Return the record's key; raise RowInvalid for an id that no pipeline would accept."""
        try:
            return event.key(row.document)
        except UnicodeEncodeError:
            raise RowInvalid("the document's id is not UTF-8") from None
        except ValueError as failure:
            raise RowInvalid(str(failure)) from None

    def value(self, row: OutboxRow) -> bytes | None:
        """Return the record's value: the row's, with a version if the settings ask for one."""
        value = row.value
        if value is None or self._version is None:
            return value
        if self._version in value and self._has_version(value):
            return value
        body = value.rstrip()
        if not body.endswith(b"}") or not body.lstrip().startswith(b"{"):
            return value
        comma = b"" if body[:-1].rstrip().endswith(b"{") else b","
        return b"%s%s%s:%d}" % (body[:-1], comma, self._version, row.id)

    def headers(self, row: OutboxRow) -> Headers:
        """Return the row's own headers, or ours, and always the row's id.

        Raise RowInvalid if its own are not a JSON object of strings.
        """
        number = b"%d" % row.id
        if row.headers is None:
            common = self._delete_headers if row.value is None else self._event_headers
            return [*common, ("ce_id", self._id_prefix + number), (OUTBOX_ID, number)]
        return [*self._own(row), (OUTBOX_ID, number)]

    def _own(self, row: OutboxRow) -> Headers:
        assert row.headers is not None
        try:
            given = msgspec.json.decode(row.headers, type=dict[str, str])
        except UNREADABLE as failure:
            raise RowInvalid(f"its headers are not a JSON object of strings: {failure}") from None
        return [(name, text.encode()) for name, text in given.items() if name != OUTBOX_ID]

    def _has_version(self, value: bytes) -> bool:
        try:
            decoded = msgspec.json.decode(value)
        except UNREADABLE:
            return True  # not JSON: publish it as it is
        return not isinstance(decoded, dict) or self._field in decoded
