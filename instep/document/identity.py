"""A document's id: read it from an event, and convert it to the values of the key columns.

If the table has one key column of text, integers or UUIDs, the id is its value. Otherwise it is one
text: the values of the key columns, each in one form, joined by the separator. Only the statements
on the table itself use the single columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from instep.document import canonical, kinds
from instep.document.event import ID_CHARACTERS_MAX, utc
from instep.document.mapping import KEY, Mapping, TargetColumn
from instep.document.reasons import Reason, Unfit

Id = str | int | UUID
VALUE_KINDS = (kinds.Text, kinds.Integer, kinds.Uuid)  # of a key column whose value is the id
KINDS = (*VALUE_KINDS, kinds.Date, kinds.Timestamp, kinds.Numeric, kinds.Boolean)
# characters that occur in values of these kinds and therefore cannot be the separator
RESERVED: dict[type[kinds.ColumnKind], str] = {
    kinds.Uuid: "-",
    kinds.Date: "-",
    kinds.Timestamp: "-:.",
    kinds.Numeric: "-.",
}


class KeyPart:
    """One key column: its values from an event's field, from text, and from the database."""

    def __init__(self, column: TargetColumn) -> None:
        self._convert = kinds.converter(column.kind)
        self._is_text = isinstance(column.kind, kinds.Text)
        self._is_padded = isinstance(column.kind, kinds.Text) and column.kind.padded
        self._is_integer = isinstance(column.kind, kinds.Integer)
        self._is_time = isinstance(column.kind, kinds.Timestamp)
        self._from_text = _text_reader(column.kind)
        self.restore = canonical.restorer(column.kind)
        self.read = _reader(column.kind)

    def of(self, raw: Any, name: str, *, as_text: bool) -> Any:
        """Return the column's value from an event's field.

        With `as_text` everything is text, also integers, as in a record's key.
        """
        if type(raw) is int and self._is_text:
            raw = str(raw)  # as the record's key has it
        if self._is_integer and type(raw) is str and as_text:
            raw = _canonical_integer(raw, name)
        if type(raw) is str:
            if not raw:
                raise Unfit(Reason.ID_EMPTY, f"{name} is empty")
            if len(raw) > ID_CHARACTERS_MAX:
                raise Unfit(
                    Reason.ID_TOO_LONG,
                    f"{name} has {len(raw)} characters, but an id has at most {ID_CHARACTERS_MAX}",
                )
            if as_text and self._from_text is not None:
                raw = self._from_text(raw)
        if self._is_time and kinds.is_finer(raw):
            raise Unfit(Reason.TIME_TOO_FINE, f"{name}: finer than a microsecond")
        try:
            value = self._convert(raw)
        except Unfit as unfit:
            reason = Reason.ID_TOO_LONG if unfit.reason is Reason.TEXT_TOO_LONG else unfit.reason
            raise Unfit(reason, f"{name}: {unfit.detail}") from None
        if self._is_padded and str(raw).endswith(" "):
            detail = (
                f"{name} ends with a space, which the CHAR column does not store:"
                " it would be another document's id"
            )
            raise Unfit(Reason.ID_TAKEN_FOR_ANOTHER, detail)
        return value


class Identity:
    """The ids of one pipeline's documents."""

    def __init__(self, mapping: Mapping) -> None:
        self._parts = [KeyPart(column) for column in mapping.keys]
        self._names = [column.name for column in mapping.keys]
        self._fields = [".".join(path) for path in mapping.documents]
        self._are_text = [path == (KEY,) for path in mapping.documents]
        self._separator = mapping.separator
        # The rows of a further table are in none of instep's own tables, which limit an id.
        self._characters_max = None if mapping.lines else ID_CHARACTERS_MAX
        self._is_composite = len(self._parts) > 1
        # whether the id is text that stands for the values of the key columns
        self.is_text_form = self._is_composite or not isinstance(mapping.keys[0].kind, VALUE_KINDS)

    def of_field(self, raw: Any) -> Id:
        """Return the id from the one field that holds it."""
        if self._is_composite:
            return self._of_joined(raw, self._fields[0])
        return self._of_one(raw, self._fields[0], as_text=self._are_text[0])

    def of_fields(self, raws: Sequence[Any]) -> Id:
        """Return the id from its fields: one that holds all of it, or one per key column."""
        if len(raws) == 1:
            return self.of_field(raws[0])
        values = [
            part.of(raw, name, as_text=as_text)
            for part, raw, name, as_text in zip(
                self._parts, raws, self._fields, self._are_text, strict=True
            )
        ]
        return self.joined(values)

    def of_text(self, text: str, name: str = "the key") -> Id:
        """Return the id from a record's key, or from what a person wrote."""
        if self._is_composite:
            return self._of_joined(text, name)
        return self._of_one(text, name, as_text=True)

    def of_kept(self, text: str) -> Id:
        """Return the id from its text in instep's own tables."""
        return text if self.is_text_form else self._parts[0].restore(text)

    def of_columns(self, values: Sequence[Any]) -> Id:
        """Return the id of a row from its key columns as the database returns them."""
        read = [part.read(value) for part, value in zip(self._parts, values, strict=True)]
        return self._separator.join(map(_shown, read)) if self.is_text_form else read[0]

    def columns(self, document: Id) -> tuple[Any, ...]:
        """Return the values of the key columns."""
        if not self.is_text_form:
            return (document,)
        texts = str(document).split(self._separator) if self._is_composite else [str(document)]
        return tuple(part.restore(text) for part, text in zip(self._parts, texts, strict=True))

    def joined(self, values: Sequence[Any]) -> str:
        """Return the text that the values of the key's columns make."""
        texts = [_shown(value) for value in values]
        if not self._is_composite:
            return texts[0]
        for text, name in zip(texts, self._names, strict=True):
            if self._separator in text:
                raise Unfit(
                    Reason.ID_PARTS_WRONG,
                    f"the value {kinds.shown(text)} of key column {name}"
                    f" contains the key_separator {self._separator!r}",
                )
        whole = self._separator.join(texts)
        if self._characters_max is not None and len(whole) > self._characters_max:
            raise Unfit(
                Reason.ID_TOO_LONG,
                f"the id's parts have {len(whole)} characters together,"
                f" but an id has at most {ID_CHARACTERS_MAX}",
            )
        return whole

    def _of_one(self, raw: Any, name: str, *, as_text: bool) -> Id:
        """Return the id from the value of the only key column."""
        document = self._parts[0].of(raw, name, as_text=as_text)
        return _shown(document) if self.is_text_form else document

    def _of_joined(self, raw: Any, name: str) -> str:
        if type(raw) is not str:
            raise Unfit(
                Reason.WRONG_TYPE,
                f"{name}: the id of a composite key is text: {self._separator.join(self._names)}",
            )
        texts = raw.split(self._separator)
        if len(texts) != len(self._parts):
            raise Unfit(
                Reason.ID_PARTS_WRONG,
                f"{name} is {kinds.shown(raw)}, but the key has {len(self._parts)} columns:"
                f" expected {self._separator.join(self._names)}",
            )
        parts = zip(self._parts, texts, self._names, strict=True)
        return self.joined(
            [part.of(text, f"{name}, {column}", as_text=True) for part, text, column in parts]
        )


def _shown(value: Any) -> str:
    match value:
        case datetime():
            return kinds.iso(value)
        case date():
            return value.isoformat()
        case bool():
            return "true" if value else "false"
        case Decimal():
            return canonical.number_text(value)
        case _:
            return str(value)


def _text_reader(kind: kinds.ColumnKind) -> Callable[[str], Any] | None:
    """Return the function from text to what the kind's converter takes, if that is not text."""
    match kind:
        case kinds.Numeric():
            return kinds.exact_number
        case kinds.Boolean():
            return _boolean
        case _:
            return None


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise Unfit(Reason.WRONG_TYPE, f"{kinds.shown(text)} is neither true nor false")
    return text == "true"


def _reader(kind: kinds.ColumnKind) -> Callable[[Any], Any]:
    """Return the function from a key value as the database returns it to the column's value."""
    match kind:
        case kinds.Integer():
            return lambda value: int(value) if isinstance(value, Decimal) else value
        case kinds.Uuid():
            return lambda value: value if isinstance(value, UUID) else UUID(value)
        case kinds.Timestamp():
            return _in_utc
        case kinds.Boolean():
            return bool
        case _:
            return lambda value: value


def _in_utc(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value  # MySQL's zero date
    return utc(value)


def _canonical_integer(text: str, name: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20) or str(int(text)) != text:
        raise Unfit(Reason.WRONG_TYPE, f"{name} is not an integer, but the key column is")
    return int(text)
