"""Decode the bytes of a record to an event, or raise `Unfit` with the reason."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from instep import errors
from instep.document import conversion, kinds, plain
from instep.document.event import ID_CHARACTERS_MAX
from instep.document.further import FurtherRows
from instep.document.identity import Id, Identity
from instep.document.mapping import (
    CONSTANT,
    HEADER,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    Field,
    Mapping,
    Path,
)
from instep.document.reasons import COLUMN_REFUSES, Reason, Refusal, Unfit
from instep.document.records import DeadLetter as DeadLetter
from instep.document.records import Event as Event
from instep.document.records import Record as Record
from instep.document.records import record_of as record_of

STATUS_CHARACTERS_MAX = 255
NESTING_MAX = 500
BULK_RECORDS = 1_000  # decoded at once; a record that is not plain slows down only these
UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}
MISSING: Any = object()


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


class Decoder:
    """Decodes records by one mapping. Created once per task, because it compiles the mapping."""

    def __init__(self, mapping: Mapping, record_bytes_max: int | None = None) -> None:
        """Take the mapping, and the size of the largest record that quarantine can keep."""
        self._bytes_max = record_bytes_max if record_bytes_max is not None else 2**62
        self._further = FurtherRows(mapping) if mapping.further else None
        mapping = mapping.with_further
        exact = mapping.order_is_time or any(
            isinstance(field.column.kind, (kinds.Numeric, kinds.Json))
            or field.conversion.convert == "text"
            or field.conversion.round
            for field in mapping.fields
        )
        number = kinds.exact_number if exact else None
        self._parse = msgspec.json.Decoder(float_hook=number).decode
        self._mapping = mapping
        self._identity = Identity(mapping)
        self._guard = mapping.guard_field
        self._prepare_order = _preparer(self._guard)
        self._prepare_status = _preparer(
            next((field for field in mapping.fields if field.path == mapping.status), None)
        )
        self._fields = [
            (field.column.name, field.path, field.column.nullable, converter(field))
            for field in mapping.fields
        ]
        self._constants = {
            field.path[0]: convert(field.constant)
            for field, (_, _, _, convert) in zip(mapping.fields, self._fields, strict=True)
            if field.constant is not None
        }
        named = {
            *mapping.documents,
            mapping.status or (KEY,),
            mapping.at,
            *(field.path for field in mapping.fields),
        }
        paths = {path for path in named if not path[0].startswith("@")}
        self._paths = sorted(paths)
        self._names = [
            json.dumps(step, ensure_ascii=False).encode()
            for step in {step for path in paths for step in path}
        ]
        self._tops = sorted({path[0] for path in paths})
        shape: list[Any] = [
            (f"f{number}", Any | UnsetType, UNSET) for number in range(len(self._tops))
        ]
        mapped = msgspec.defstruct(
            "Mapped", shape, rename={f"f{number}": name for number, name in enumerate(self._tops)}
        )
        self._parse_mapped = msgspec.json.Decoder(mapped, float_hook=number).decode
        constants = {CONSTANT: None, **self._constants}
        self._plain = plain.PlainReader(
            self._uses(), bytes_max=self._bytes_max, float_hook=number, constants=constants
        )

    def decode(self, record: Record) -> Event:
        """Return the event of a record; raise Unfit, and nothing else, if it cannot be used."""
        if _size(record) > self._bytes_max:
            raise _too_large(record, self._bytes_max)
        if record.key is None:
            raise Unfit(Reason.KEY_MISSING, "the record has no key")
        try:
            key = record.key.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Unfit(
                Reason.KEY_NOT_UTF8, f"the key is not UTF-8: {error.reason} at byte {error.start}"
            ) from None
        if record.value is None:
            return self._delete(record, key)
        body = self._body(record.value)
        mapping = self._mapping
        document = self._identity.of_fields(
            [self._required(body, path, record, key) for path in mapping.documents]
        )
        status, refusal = None, None
        if mapping.status is not None:
            status, refusal = self._status(self._required(body, mapping.status, record, key))
        at = self._event_time(body, record, key)
        order = None
        if mapping.order is not None:
            order = self._order(self._required(body, mapping.order, record, key))
        values: list[Any] = []
        for name, path, nullable, convert in self._fields:
            if path[0] in self._constants:
                values.append(self._constants[path[0]])
                continue
            raw = _find(body, path, record, key)
            try:
                if raw is MISSING:
                    values.append(UNSET)
                elif raw is not None:
                    values.append(convert(raw))
                elif nullable:
                    values.append(None)
                else:
                    detail = f"column {name} does not allow null"
                    raise Unfit(Reason.NULL_NOT_ALLOWED, detail)  # noqa: TRY301 - as converters do
            except Unfit as unfit:
                detail = f"{'.'.join(path)}: {unfit.detail}"
                if unfit.reason not in COLUMN_REFUSES:
                    raise Unfit(unfit.reason, detail) from None
                values.append(UNSET)
                refusal = refusal or Refusal(unfit.reason, detail)
        event = Event(
            record.offset,
            document,
            order,
            kinds.micros(at) if at else None,
            status,
            tuple(values),
            refusal,
        )
        return event if self._further is None else self._further.split(event)

    def document(self, text: str) -> Id:
        """Return a document's id as the key column holds it, from what a person wrote."""
        try:
            return self._identity.of_text(text)
        except Unfit as unfit:
            raise errors.NoSuchDocument(
                f"{text!r} is not a document id of this table: {unfit.detail}",
                "write the id as in the table's key column;"
                " join the parts of a composite key with key_separator",
            ) from None

    def decode_all(self, records: Sequence[Record]) -> tuple[list[Event], list[DeadLetter]]:
        """Return events and dead letters, each in log order."""
        events: list[Event] = []
        dead: list[DeadLetter] = []
        for start in range(0, len(records), BULK_RECORDS):
            chunk = records[start : start + BULK_RECORDS]
            rows = self._plain.read(chunk)
            if len(self._mapping.documents) > 1:
                rows = [
                    None if row is None else self._with_id(row, len(self._mapping.documents))
                    for row in rows
                ]
            if None not in rows:
                events += self._events(chunk, rows)
                continue
            for record, row in zip(chunk, rows, strict=True):
                if row is not None:
                    events += self._events([record], [row])
                    continue
                try:
                    events.append(self.decode(record))
                except Unfit as unfit:
                    dead.append(DeadLetter(record, unfit.reason, unfit.detail))
                except Exception as error:  # noqa: BLE001 - one record must not stop all others
                    dead.append(
                        DeadLetter(record, Reason.UNFORESEEN, f"{type(error).__name__}: {error}")
                    )
        return events, dead

    def _events(self, records: Sequence[Record], rows: Sequence[Any]) -> Iterable[Event]:
        """Return the events of plain records, from their rows."""
        first = 3 if self._mapping.order is None else 4
        orders = itertools.repeat(None) if first == 3 else [row[3] for row in rows]
        events = map(
            Event,
            [record.offset for record in records],
            [row[0] for row in rows],
            orders,
            [kinds.micros(row[2]) for row in rows],
            [row[1] for row in rows],
            [row[first:] for row in rows],
        )
        return events if self._further is None else map(self._further.split, events)

    def _with_id(self, row: plain.Row, parts: int) -> plain.Row | None:
        """Return a plain row with the id in place of its parts; None if they are not an id."""
        try:
            return (self._identity.of_fields(row[:parts]), *row[parts:])
        except Unfit:
            return None

    def _uses(self) -> list[plain.Use]:
        """Return what an event needs: document, status, time and order value, then the columns."""
        mapping = self._mapping
        order_type = None if mapping.order_is_time else plain.integer_type(-(2**63), 2**63 - 1)
        if self._guard and self._guard.conversion:
            order_type = None
        order = []
        if mapping.order is not None:
            order.append(plain.Use(mapping.order, order_type, self._order))
        status = plain.Use((CONSTANT,), None, self._plain_status, nullable=True)  # which is None
        if mapping.status is not None:
            status_type = None
            if self._prepare_status is None:
                status_type = plain.text_type(STATUS_CHARACTERS_MAX, None)
            status = plain.Use(mapping.status, status_type, self._plain_status)
        return [
            *self._id_uses(),
            status,
            plain.Use(mapping.at, plain.time_type(), kinds.instant),
            *order,
            *map(self._column_use, mapping.fields),
        ]

    def _column_use(self, field: Field) -> plain.Use:
        kind = field.column.kind
        type_ = plain.type_of(kind)
        if field.conversion or (field.holds_time and not isinstance(kind, kinds.Timestamp)):
            type_ = None
        convert = converter(field) if field.constant is None else _unchanged
        return plain.Use(field.path, type_, convert, True, field.column.nullable)

    def _plain_status(self, raw: Any) -> str:
        status, refusal = self._status(raw)
        if refusal:
            raise Unfit(refusal.reason, refusal.detail)
        return status

    def _id_uses(self) -> list[plain.Use]:
        mapping = self._mapping
        if len(mapping.documents) > 1:  # the parts as they are; `_with_id` converts them
            return [plain.Use(path, None, _unchanged) for path in mapping.documents]
        key, id_type = mapping.keys[0].kind, None
        if self._identity.is_text_form:
            return [plain.Use(mapping.documents[0], None, self._identity.of_field)]
        if isinstance(key, kinds.Text) and key.charset is None and not key.padded:
            most = ID_CHARACTERS_MAX
            if key.characters is not None:
                most = min(most, key.characters)
            id_type = plain.text_type(most, key.size, least=1)
        elif isinstance(key, kinds.Integer):
            id_type = plain.type_of(key)
        return [plain.Use(mapping.documents[0], id_type, self._identity.of_field)]

    def _delete(self, record: Record, key: str) -> Event:
        at = _timestamp(record)
        has_order = self._mapping.order == (TIMESTAMP,) and at is not None
        order = self._order(record.timestamp_ms) if has_order else None
        return Event(
            record.offset,
            self._identity.of_text(key),
            order,
            kinds.micros(at) if at else None,
            None,
            None,
        )

    def _event_time(self, body: dict[str, Any], record: Record, key: str) -> Any:
        raw = _find(body, self._mapping.at, record, key)
        if raw is MISSING or raw is None:
            return _timestamp(record)
        return _named(self._mapping.at, kinds.instant, raw)

    def _body(self, value: bytes) -> dict[str, Any]:
        try:
            body = self._parsed(value)
            if type(body) is not dict:
                raise Unfit(Reason.NOT_AN_OBJECT, "the value is JSON, but not an object")
            if len(value) > 2 * NESTING_MAX and kinds.is_deeper(value, NESTING_MAX):
                # explicit, because the parser's own limit depends on the interpreter
                raise RecursionError  # noqa: TRY301 - handled like the parser's own
            # a field can only be repeated if its name is, or is written with an escape
            if b"\\" in value or any(value.count(name) > 1 for name in self._names):
                _refuse_repeated(value, self._paths)
        except UnicodeDecodeError:
            raise _not_json(value, "") from None
        except RecursionError:
            raise Unfit(Reason.NESTED_TOO_DEEP, "the value is nested too deep") from None
        except msgspec.ValidationError:
            raise kinds.beyond_range() from None
        except msgspec.DecodeError as error:
            raise _not_json(value, str(error)) from None
        return body

    def _parsed(self, value: bytes) -> Any:
        """Parse JSON. A number beyond any range is only an error in a mapped field."""
        try:
            return self._parse(value)
        except (msgspec.ValidationError, Unfit):
            value.decode()  # the second parser does not check the texts that it skips
            return {
                name: found
                for name, found in zip(self._tops, astuple(self._parse_mapped(value)), strict=True)
                if found is not UNSET
            }

    def _required(self, body: dict[str, Any], path: Path, record: Record, key: str) -> Any:
        found = _find(body, path, record, key)
        if found is MISSING:
            raise Unfit(Reason.FIELD_MISSING, f"{'.'.join(path)} is missing")
        return found

    def _status(self, raw: Any) -> tuple[str, Refusal | None]:
        name = ".".join(self._mapping.status or ())
        if self._prepare_status is not None and raw is not None:
            raw = _named((name,), self._prepare_status, raw)
        if type(raw) is int:
            raw = str(raw)
        if type(raw) is not str:
            raise Unfit(Reason.WRONG_TYPE, f"{name}: a status is a string or an integer")
        if "\0" in raw:
            raise Unfit(Reason.NUL_IN_TEXT, f"{name}: the text contains the character NUL")
        if len(raw) > STATUS_CHARACTERS_MAX:
            detail = (
                f"{name}: {len(raw)} characters, but a status has at most {STATUS_CHARACTERS_MAX}"
            )
            return raw[:STATUS_CHARACTERS_MAX], Refusal(Reason.TEXT_TOO_LONG, detail)
        return raw, None

    def _order(self, raw: Any) -> int:
        """Return the order value as an integer.

        A version stays as it is; a time is in microseconds, or in the unit of an integer column.
        A time with more digits than are compared is refused: truncated, it could equal a later
        time.
        """
        path = self._mapping.order or ()
        if self._prepare_order is not None and raw is not None:
            raw = _named(path, self._prepare_order, raw)
        if not self._mapping.order_is_time:
            if type(raw) is not int:
                raise Unfit(
                    Reason.WRONG_TYPE, f"{'.'.join(path)}: the order value must be an integer"
                )
            if not -(2**63) <= raw < 2**63:
                raise Unfit(
                    Reason.NUMBER_OUT_OF_RANGE,
                    f"{'.'.join(path)}: an order value has at most 64 bits",
                )
            return raw
        if kinds.is_finer(raw):
            raise Unfit(Reason.TIME_TOO_FINE, f"{'.'.join(path)}: finer than a microsecond")
        order = kinds.micros(_named(path, kinds.instant, raw))
        if self._guard is None or not isinstance(self._guard.column.kind, kinds.Integer):
            return order
        step = kinds.UNIT_US[self._guard.unit]
        if order % step:
            raise Unfit(
                Reason.TIME_TOO_FINE,
                f"{'.'.join(path)}: finer than the {UNITS[self._guard.unit]}"
                f" of column {self._guard.column.name}",
            )
        return order // step


def converter(field: Field) -> kinds.Converter:
    """Return the function that converts a field's value, not null, to its column's value."""
    kind = field.column.kind
    convert = kinds.time_converter(kind, field.unit) if field.holds_time else kinds.converter(kind)
    prepare = _preparer(field)
    return convert if prepare is None else lambda value: convert(prepare(value))


def _preparer(field: Field | None) -> kinds.Converter | None:
    if field is None or not field.conversion:
        return None
    return conversion.preparer(field.conversion, field.column.kind)


def _unchanged(value: Any) -> Any:
    return value


def _record_field(name: str, record: Record, key: str) -> Any:
    """Return one of the record's own fields. Of several headers with a name, the last counts."""
    if name == KEY:
        return key
    if name == TIMESTAMP:
        return record.timestamp_ms if record.timestamp_ms >= 0 else MISSING
    if name in (OFFSET, PARTITION):
        if record.partition < 0:
            return MISSING
        return record.offset if name == OFFSET else record.partition
    found = next(
        (value for header, value in reversed(record.headers) if header == name[len(HEADER) :]),
        MISSING,
    )
    try:
        return found.decode() if isinstance(found, bytes) else found
    except UnicodeDecodeError as error:
        raise Unfit(
            Reason.WRONG_TYPE, f"{name}: not UTF-8: {error.reason} at byte {error.start}"
        ) from None


def _find(body: dict[str, Any], path: Path, record: Record, key: str) -> Any:
    if len(path) == 1:
        if path[0].startswith("@"):
            return _record_field(path[0], record, key)
        return body.get(path[0], MISSING)
    found: Any = body
    for step in path:
        if type(found) is not dict:
            return MISSING
        found = found.get(step, MISSING)
        if found is MISSING:
            return MISSING
    return found


def _too_large(record: Record, most: int) -> Unfit:
    return Unfit(
        Reason.RECORD_TOO_LARGE,
        f"key and value have {_size(record)} bytes, but the target accepts {most};"
        " the whole record is in the log at this offset",
    )


def _not_json(value: bytes, problem: str) -> Unfit:
    """Return why bytes are not JSON: they are not UTF-8, or what the parser reports."""
    try:
        value.decode("utf-8")
    except UnicodeDecodeError as error:
        return Unfit(
            Reason.NOT_UTF8, f"the value is not UTF-8: {error.reason} at byte {error.start}"
        )
    return Unfit(Reason.NOT_JSON, problem if value else "the value is empty")


def _named(path: Path, convert: kinds.Converter, raw: Any) -> Any:
    try:
        return convert(raw)
    except Unfit as unfit:
        raise Unfit(unfit.reason, f"{'.'.join(path)}: {unfit.detail}") from None


def _timestamp(record: Record) -> Any:
    return kinds.instant(record.timestamp_ms) if record.timestamp_ms >= 0 else None


class _Pairs(dict[str, Any]):
    """An object, and which of its names occurred more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = set()
        if len(self) < len(pairs):
            self.repeated = {
                name for name, count in Counter(name for name, _ in pairs).items() if count > 1
            }


def _refuse_repeated(value: bytes, paths: list[Path]) -> None:
    number = lambda _: 0  # noqa: E731 - numbers do not matter here, and long ones are slow
    body: Any = json.loads(
        value.decode(), object_pairs_hook=_Pairs, parse_int=number, parse_float=number
    )
    for path in paths:
        found = body
        for step in path:
            if not isinstance(found, _Pairs):
                break
            if step in found.repeated:
                raise Unfit(Reason.FIELD_REPEATED, f"{'.'.join(path)} occurs more than once")
            found = found.get(step)
