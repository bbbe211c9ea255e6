"""Reasons of quarantine: stable codes, kept with each dead letter and each parked event."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Reason(StrEnum):
    """Why an event is in quarantine. The codes are stored, used as filters and documented."""

    KEY_MISSING = "KEY_MISSING"
    KEY_NOT_UTF8 = "KEY_NOT_UTF8"
    RECORD_TOO_LARGE = "RECORD_TOO_LARGE"
    TRANSFORMATION_FAILED = "TRANSFORMATION_FAILED"
    ID_EMPTY = "ID_EMPTY"
    ID_TOO_LONG = "ID_TOO_LONG"
    ID_PARTS_WRONG = "ID_PARTS_WRONG"
    NOT_UTF8 = "NOT_UTF8"
    NOT_JSON = "NOT_JSON"
    NOT_AN_OBJECT = "NOT_AN_OBJECT"
    NESTED_TOO_DEEP = "NESTED_TOO_DEEP"
    FIELD_MISSING = "FIELD_MISSING"
    FIELD_REPEATED = "FIELD_REPEATED"
    WRONG_TYPE = "WRONG_TYPE"
    NULL_NOT_ALLOWED = "NULL_NOT_ALLOWED"
    NUL_IN_TEXT = "NUL_IN_TEXT"
    TEXT_TOO_LONG = "TEXT_TOO_LONG"
    NOT_IN_CHARACTER_SET = "NOT_IN_CHARACTER_SET"
    NUMBER_OUT_OF_RANGE = "NUMBER_OUT_OF_RANGE"
    NOT_A_TIME = "NOT_A_TIME"
    TIME_OUT_OF_RANGE = "TIME_OUT_OF_RANGE"
    TIME_TOO_FINE = "TIME_TOO_FINE"
    NOT_A_CHOICE = "NOT_A_CHOICE"
    STATUS_UNKNOWN = "STATUS_UNKNOWN"
    TRANSITION_NOT_ALLOWED = "TRANSITION_NOT_ALLOWED"
    DOCUMENT_MISSING = "DOCUMENT_MISSING"
    DELETE_NOT_ALLOWED = "DELETE_NOT_ALLOWED"
    ID_TAKEN_FOR_ANOTHER = "ID_TAKEN_FOR_ANOTHER"
    LINE_KEY_UNFIT = "LINE_KEY_UNFIT"
    PARENT_MISSING = "PARENT_MISSING"
    REFUSED_BY_TARGET = "REFUSED_BY_TARGET"
    WAITS_BEHIND = "WAITS_BEHIND"
    ROW_UNREADABLE = "ROW_UNREADABLE"
    UNFORESEEN = "UNFORESEEN"


EXPLANATIONS = {
    Reason.KEY_MISSING: (
        "the record has no key, so neither its partition nor its order is tied to a document"
    ),
    Reason.KEY_NOT_UTF8: "the record's key is not UTF-8 text",
    Reason.RECORD_TOO_LARGE: (
        "the record is larger than the target database accepts in one statement;"
        " only its beginning is kept"
    ),
    Reason.TRANSFORMATION_FAILED: (
        "the pipeline's transformation failed on this record, or yields too many rows of it"
    ),
    Reason.ID_EMPTY: "the document's id is empty",
    Reason.ID_TOO_LONG: "the document's id is longer than 255 characters or than the key column",
    Reason.ID_PARTS_WRONG: (
        "the document's id does not have one part for each column of the composite key,"
        " or a part contains the separator"
    ),
    Reason.NOT_UTF8: "the value is not UTF-8 text",
    Reason.NOT_JSON: (
        "the value is not exactly one JSON value: it is empty, truncated, followed by other data,"
        " or not JSON"
    ),
    Reason.NOT_AN_OBJECT: "the value is JSON, but not an object",
    Reason.NESTED_TOO_DEEP: "the value is nested too deeply",
    Reason.FIELD_MISSING: "the document, the status or the order value is not in the record",
    Reason.FIELD_REPEATED: "a mapped field occurs more than once in its object",
    Reason.WRONG_TYPE: "a field's type does not match its column",
    Reason.NULL_NOT_ALLOWED: "a field is null, but its column does not allow null",
    Reason.NUL_IN_TEXT: "a string contains a NUL character, which databases cannot store",
    Reason.TEXT_TOO_LONG: (
        "a string is longer than its column, or a status is longer than 255 characters"
    ),
    Reason.NOT_IN_CHARACTER_SET: (
        "a string has a character that the column's character set does not contain"
    ),
    Reason.NUMBER_OUT_OF_RANGE: "a number does not fit its column",
    Reason.NOT_A_TIME: "a string that should be a time is not ISO 8601",
    Reason.TIME_OUT_OF_RANGE: "a time is outside the range of its column",
    Reason.TIME_TOO_FINE: (
        "an order value that is a time is finer than a microsecond,"
        " or than the unit of the guard's integer column"
    ),
    Reason.NOT_A_CHOICE: "a string is not one of the column's enumeration values",
    Reason.STATUS_UNKNOWN: "the status is not in the settings' transitions",
    Reason.TRANSITION_NOT_ALLOWED: (
        "the settings do not allow this status after the document's current one"
    ),
    Reason.DOCUMENT_MISSING: (
        'the table does not have the document, and the settings say `missing = "park"`'
    ),
    Reason.DELETE_NOT_ALLOWED: (
        'the record deletes the document, and the settings say `deletes = "park"`'
    ),
    Reason.ID_TAKEN_FOR_ANOTHER: (
        "the table has a row with another id that the key column's collation treats as equal"
        " (a and A, for example)"
    ),
    Reason.LINE_KEY_UNFIT: (
        "a value that a further table needs for its key (`line_key`) or for its order is missing,"
        " or does not fit a key"
    ),
    Reason.PARENT_MISSING: (
        "a foreign key of the target table refuses the row:"
        " the row that it refers to does not exist yet"
    ),
    Reason.REFUSED_BY_TARGET: "the target table refuses the row: a constraint or a trigger",
    Reason.WAITS_BEHIND: "an earlier event of the document is parked, and this one waits behind it",
    Reason.ROW_UNREADABLE: (
        "a line of a loaded file is not a row: it is not valid JSON or CSV, or has another number"
        " of cells than the header"
    ),
    Reason.UNFORESEEN: "decoding the record failed with an unexpected error: please report it",
}

# The event was understood, but a value does not fit its column. The document waits until the table
# or the event is corrected.
COLUMN_REFUSES = frozenset(
    {
        Reason.TEXT_TOO_LONG,
        Reason.NOT_IN_CHARACTER_SET,
        Reason.NUMBER_OUT_OF_RANGE,
        Reason.TIME_OUT_OF_RANGE,
        Reason.NOT_A_CHOICE,
        Reason.NULL_NOT_ALLOWED,
    }
)
PARKS = COLUMN_REFUSES | {
    Reason.STATUS_UNKNOWN,
    Reason.TRANSITION_NOT_ALLOWED,
    Reason.DOCUMENT_MISSING,
    Reason.DELETE_NOT_ALLOWED,
    Reason.ID_TAKEN_FOR_ANOTHER,
    Reason.LINE_KEY_UNFIT,
    Reason.PARENT_MISSING,
    Reason.REFUSED_BY_TARGET,
    Reason.WAITS_BEHIND,
}

# An INSERT of another writer solves these: a running pipeline retries them for a while.
RETRIED = frozenset({Reason.DOCUMENT_MISSING, Reason.PARENT_MISSING})


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why an event that was understood must not be applied: its document is parked."""

    reason: Reason
    detail: str


class Unfit(Exception):
    """A record or a value cannot be used; the reason is kept in quarantine."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
