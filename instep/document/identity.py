"""A document's id: from an event's field or a record's key, and to the values of the table's key columns.

Of a table with one key column, the id is that column's value. Of a composite key, it is one text: the values of the key
columns, joined by the separator. Everything but the statements on the table itself knows only the id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from instep.document import canonical, kinds
from instep.document.event import ID_CHARACTERS_MAX
from instep.document.mapping import KEY, Mapping, TargetColumn
from instep.document.reasons import Reason, Unfit

Id = str | int | UUID
KINDS = (kinds.Text, kinds.Integer, kinds.Uuid)
PART_KINDS = (*KINDS, kinds.Date, kinds.Timestamp)  # of the columns of a composite key
# characters that values of these kinds have, which then cannot separate the parts
RESERVED: dict[type[kinds.ColumnKind], str] = {
    kinds.Uuid: "-",
    kinds.Date: "-",
    kinds.Timestamp: "-:.",
}


class KeyPart:
    """One key column: its values from an event's field, from text, and from the database."""

    def __init__(self, column: TargetColumn) -> None:
        self._convert = kinds.converter(column.kind)
        self._is_text = isinstance(column.kind, kinds.Text)
        self._is_padded = isinstance(column.kind, kinds.Text) and column.kind.padded
        self._is_integer = isinstance(column.kind, kinds.Integer)
        self._is_time = isinstance(column.kind, kinds.Timestamp)
        self.restore = canonical.restorer(column.kind)
        self.read = _reader(column.kind)

    def of(self, raw: Any, name: str, *, as_text: bool) -> Any:
        """The column's value of what an event holds. `as_text`: all of it is text there, integers too, as in a record's key."""
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
                    f"{name} has {len(raw)} characters, an id has at most {ID_CHARACTERS_MAX}",
                )
        if self._is_time and kinds.is_finer(raw):
            raise Unfit(Reason.TIME_TOO_FINE, f"{name}: finer than a microsecond")
        try:
            value = self._convert(raw)
        except Unfit as unfit:
            reason = Reason.ID_TOO_LONG if unfit.reason is Reason.TEXT_TOO_LONG else unfit.reason
            raise Unfit(reason, f"{name}: {unfit.detail}") from None
        if self._is_padded and str(raw).endswith(" "):
            detail = f"{name} ends with a space, which the CHAR column does not keep: it would be another document's id"
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
        self.is_composite = len(self._parts) > 1
        self.is_joined = self.is_composite and len(self._fields) == 1

    def of_field(self, raw: Any) -> Id:
        """The id in the one field that holds it whole."""
        if self.is_composite:
            return self._of_joined(raw, self._fields[0])
        return self._parts[0].of(raw, self._fields[0], as_text=self._are_text[0])  # type: ignore[no-any-return]

    def of_fields(self, raws: Sequence[Any]) -> Id:
        """The id in its fields: one that holds it whole, or one for each key column."""
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
        """The id in a record's key, or in what a person writes."""
        if self.is_composite:
            return self._of_joined(text, name)
        return self._parts[0].of(text, name, as_text=True)  # type: ignore[no-any-return]

    def of_kept(self, text: str) -> Id:
        """The id in the text that instep's own tables have of it."""
        return text if self.is_composite else self._parts[0].restore(text)

    def of_columns(self, values: Sequence[Any]) -> Id:
        """The id of a row, from the values of its key columns as the database gives them: SQLite keeps anything in any column."""
        read = [part.read(value) for part, value in zip(self._parts, values, strict=True)]
        return self._separator.join(map(_shown, read)) if self.is_composite else read[0]

    def columns(self, document: Id) -> tuple[Any, ...]:
        """The values of the key columns."""
        if not self.is_composite:
            return (document,)
        texts = str(document).split(self._separator)
        return tuple(part.restore(text) for part, text in zip(self._parts, texts, strict=True))

    def joined(self, values: Sequence[Any]) -> str:
        """The id that the values of a composite key's columns make."""
        texts = [_shown(value) for value in values]
        for text, name in zip(texts, self._names, strict=True):
            if self._separator in text:
                raise Unfit(
                    Reason.ID_PARTS_WRONG,
                    f"the value {kinds.shown(text)} of key column {name} contains the key_separator {self._separator!r}",
                )
        whole = self._separator.join(texts)
        if len(whole) > ID_CHARACTERS_MAX:
            raise Unfit(
                Reason.ID_TOO_LONG,
                f"the id's parts have {len(whole)} characters together, an id has at most {ID_CHARACTERS_MAX}",
            )
        return whole

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
                f"{name} is {kinds.shown(raw)}, and the key has {len(self._parts)} columns:"
                f" expected {self._separator.join(self._names)}",
            )
        parts = zip(self._parts, texts, self._names, strict=True)
        return self.joined(
            [part.of(text, f"{name}, {column}", as_text=True) for part, text, column in parts]
        )


def _shown(value: Any) -> str:
    if isinstance(value, datetime):
        return kinds.iso(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def _reader(kind: kinds.ColumnKind) -> Callable[[Any], Any]:
    """The function from a key value as the database gives it to the value of the column."""
    match kind:
        case kinds.Integer():
            return lambda value: int(value) if isinstance(value, Decimal) else value
        case kinds.Uuid():
            return lambda value: value if isinstance(value, UUID) else UUID(value)
        case kinds.Timestamp():
            return _in_utc
        case _:
            return lambda value: value


def _in_utc(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value  # MySQL's zero date
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _canonical_integer(text: str, name: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20) or str(int(text)) != text:
        raise Unfit(Reason.WRONG_TYPE, f"{name} is no integer, and the key column is one")
    return int(text)
