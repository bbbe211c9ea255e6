"""Decode plain records in bulk, in one pass. Most records are plain.

A record is plain if its value is short UTF-8 without a backslash, names no mapped field twice, and
every mapped field has its column's own type. Then a parser that knows the types does all checks.
The outcome is the same as that of `Decoder.decode`, which decodes the records that are not plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import astuple

from instep.document import kinds
from instep.document.event import utc
from instep.document.mapping import CONSTANT, HEADER, KEY, OFFSET, PARTITION, TIMESTAMP, Path

LENGTH_MAX = 1_000  # bytes; a longer value might be nested too deep
EVER = kinds.Timestamp()

Row = tuple[Any, ...]
Headers = tuple[tuple[str, bytes | None], ...]
Convert = Callable[[Any], Any]


class PlainRecord(Protocol):
    """A record as a client of the log returns it."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def partition(self) -> int: ...
    @property
    def headers(self) -> Headers: ...


class Use(msgspec.Struct, frozen=True):
    """One use of a field. If `type` is None, the parser cannot check it and `convert` does."""

    path: Path
    type: Any
    convert: Convert
    optional: bool = False
    nullable: bool = False


def text_type(characters: int | None, size: int | None, least: int = 0) -> Any:
    """Return the type of text that fits whatever its characters are."""
    limits = []
    if characters is not None:
        limits.append(characters)
    if size is not None:
        limits.append(size // 4)  # a character takes at most four bytes
    return Annotated[str, Meta(min_length=least, max_length=min(limits, default=None))]


def type_of(kind: kinds.ColumnKind) -> Any:
    """Return the type of which every value fits a column of this kind; None if there is none."""
    match kind:
        case kinds.Text():
            return text_type(kind.characters, kind.size) if kind.charset is None else None
        case kinds.Enumeration():
            return Literal[kind.labels]
        case kinds.Integer():
            return integer_type(kind.low, kind.high)
        case kinds.Float():
            return float
        case kinds.Boolean():
            return bool
        case kinds.Timestamp():
            return time_type(kind.low, kind.high)
        case _:
            return None


def integer_type(low: int, high: int) -> Any:
    """Return the type of integers between bounds, which have 64 bits for the parser."""
    return Annotated[int, Meta(ge=max(low, -(2**63)), le=min(high, 2**63 - 1))]


def time_type(low: datetime = EVER.low, high: datetime = EVER.high) -> Any:
    """Return the type of times between bounds; the reader checks them, not the parser."""
    return Annotated[datetime, (low, high)]


class PlainReader:
    """Reads plain records. `uses` are the fields to return, in this order."""

    def __init__(
        self,
        uses: Sequence[Use],
        *,
        bytes_max: int,
        float_hook: Convert | None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        fields: dict[str, list[Use]] = {}
        own: dict[str, list[Use]] = {}  # fields of the record itself, and constants
        for use in uses:
            (own if use.path[0].startswith("@") else fields).setdefault(use.path[0], []).append(use)
        types = {name: _joined(of_one) for name, of_one in fields.items()}
        shape = [
            _field(f"f{number}", types[name], of_one)
            for number, (name, of_one) in enumerate(fields.items())
        ]
        renamed = {f"f{number}": name for number, name in enumerate(fields)}
        self._parse = msgspec.json.Decoder(
            msgspec.defstruct("Wanted", shape, rename=renamed, gc=False), float_hook=float_hook
        ).decode
        indexes = {name: index for index, name in enumerate([*fields, *own])}
        self._pick = itemgetter(*(indexes[use.path[0]] for use in uses))
        self._own = [
            _record_field(
                name, optional=all(use.optional for use in of_one), constants=constants or {}
            )
            for name, of_one in own.items()
        ]
        times = [
            (indexes[name], *type_.__metadata__[0])
            for name, type_ in types.items()
            if _is_time(type_)
        ]
        self._times = [index for index, _, _ in times]
        self._bounded = [one for one in times if one[1:] != (EVER.low, EVER.high)]
        self._converted = [
            (index, _convert(use))
            for index, use in enumerate(uses)
            if types.get(use.path[0]) is None
        ]
        firsts = [use.path[0] for use in uses]
        # Each name as it is written, and the index of the field in a row if it may be missing.
        self._names = [
            (
                msgspec.json.encode(name),
                firsts.index(name) if all(use.optional for use in of_one) else None,
            )
            for name, of_one in fields.items()
        ]
        self._bytes_max = bytes_max

    def read(self, records: Sequence[PlainRecord]) -> list[Row | None]:
        """Return a row of `uses` for each record, UNSET for missing fields; None if not plain."""
        try:
            rows: list[Row | None] = [*self._read_alike(records)]
        except Exception:  # noqa: BLE001 - one of them is not plain
            rows = [self._read_alone(record) for record in records]
        found = [
            (record, row) for record, row in zip(records, rows, strict=True) if row is not None
        ]
        if self._all_plain(found):
            return rows
        return [
            row if row is not None and self._is_plain(record) else None
            for record, row in zip(records, rows, strict=True)
        ]

    def _read_alone(self, record: PlainRecord) -> Row | None:
        try:
            return self._read_alike([record])[0]
        except Exception:  # noqa: BLE001 - the record is not plain, and is decoded by itself
            return None

    def _read_alike(self, records: Sequence[PlainRecord]) -> list[Row]:
        """Return the rows of records, step by step for all of them; raise if one is not plain."""
        parse = self._parse
        # a delete has no value: parsing fails, as it is not plain
        rows: list[Row] = [astuple(parse(record.value)) for record in records]  # type: ignore[arg-type]
        in_utc = [
            getattr(row[index], "tzinfo", None) is UTC for index in self._times for row in rows
        ]
        if not all(in_utc):
            rows = list(map(self._in_utc, rows))
        if self._bounded:
            for row in rows:
                self._hold(row)
        if self._own:
            rows = [
                (*row, *[get(record) for get in self._own])
                for record, row in zip(records, rows, strict=True)
            ]
        rows = list(map(self._pick, rows))
        return list(map(self._as_columns, rows)) if self._converted else rows

    def _hold(self, row: Row) -> None:
        for index, low, high in self._bounded:
            if isinstance(row[index], datetime) and not low <= row[index] <= high:
                raise ValueError("outside the range of the column")

    def _in_utc(self, row: Row) -> Row:
        found = list(row)
        for index in self._times:
            at = found[index]
            if type(at) is datetime:
                found[index] = utc(at)
            elif type(at) is int:
                found[index] = kinds.instant(at)
        return tuple(found)

    def _as_columns(self, row: Row) -> Row:
        found = list(row)
        for index, convert in self._converted:
            if found[index] is not UNSET:
                found[index] = convert(found[index])
        return tuple(found)

    def _all_plain(self, found: Sequence[tuple[PlainRecord, Row]]) -> bool:
        """Return whether all of these records are plain, by a check of all their bytes at once."""
        keys = [record.key for record, _ in found if record.key is not None]
        values = [record.value for record, _ in found if record.value is not None]
        text = b"\n".join(values)
        if len(keys) < len(found) or not (_is_text(text) and _is_text(b"\n".join(keys))):
            return False
        longest = max(map(len, values), default=0)
        if (
            longest > LENGTH_MAX
            or longest + max(map(len, keys), default=0) > self._bytes_max
            or b"\\" in text
        ):
            return False
        # A record that has a field contains its name at least once. So if the name occurs as often
        # as records have the field, no record contains it twice.
        for name, index in self._names:
            missing = 0 if index is None else sum([row[index] is UNSET for _, row in found])
            if text.count(name) != len(found) - missing:
                return False
        return True

    def _is_plain(self, record: PlainRecord) -> bool:
        key, value = record.key, record.value
        if (
            key is None
            or value is None
            or len(value) > LENGTH_MAX
            or len(key) + len(value) > self._bytes_max
            or b"\\" in value
        ):
            return False
        return (
            _is_text(key)
            and _is_text(value)
            and all(value.count(name) <= 1 for name, _ in self._names)
        )


def _record_field(
    name: str, *, optional: bool, constants: Mapping[str, Any]
) -> Callable[[PlainRecord], Any]:
    """Return the function that gets one of a record's own fields, or raises if it is missing."""

    def timestamp(record: PlainRecord) -> Any:
        return record.timestamp_ms if record.timestamp_ms >= 0 else missing()

    def position(record: PlainRecord) -> Any:
        if record.partition < 0:
            return missing()
        return record.offset if name == OFFSET else record.partition

    def header(record: PlainRecord) -> Any:
        if sum(len(value or b"") for _, value in record.headers) > LENGTH_MAX:
            raise ValueError("the record may be larger than the target accepts")
        values = [value for key, value in record.headers if key == name[len(HEADER) :]]
        if not values:
            return missing()
        return None if values[-1] is None else values[-1].decode()

    def missing() -> Any:
        if not optional:
            raise ValueError(f"{name} is missing")
        return UNSET

    if name.startswith(CONSTANT):
        value = constants[name]
        return lambda _: value
    if name == KEY:
        # a record without a key is not plain: this raises
        return lambda record: record.key.decode()  # type: ignore[union-attr]
    if name == TIMESTAMP:
        return timestamp
    return position if name in (OFFSET, PARTITION) else header


def _is_text(raw: bytes) -> bool:
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _joined(uses: Iterable[Use]) -> Any:
    """Return the type that fits all uses of a field; None if there is none, and each converts."""
    types: list[Any] = [use.type if len(use.path) == 1 else None for use in uses]
    if any(one is None for one in types):
        return None
    bases = {getattr(one, "__origin__", one) for one in types}
    if bases == {str}:
        limits = [one.__metadata__[0] for one in types]
        most = [limit.max_length for limit in limits if limit.max_length is not None]
        return Annotated[
            str,
            Meta(
                min_length=max(limit.min_length for limit in limits),
                max_length=min(most) if most else None,
            ),
        ]
    if bases == {int}:
        limits = [one.__metadata__[0] for one in types]
        return Annotated[
            int, Meta(ge=max(limit.ge for limit in limits), le=min(limit.le for limit in limits))
        ]
    if bases == {datetime}:
        bounds = [one.__metadata__[0] for one in types]
        return time_type(max(low for low, _ in bounds), min(high for _, high in bounds))
    return types[0] if all(one == types[0] for one in types) else None


def _is_time(type_: Any) -> bool:
    return getattr(type_, "__origin__", None) is datetime


def _field(name: str, type_: Any, uses: Sequence[Use]) -> tuple[Any, ...]:
    whole = Any if type_ is None else type_
    if _is_time(type_):
        whole = datetime | int
    if type_ is not None and all(use.nullable for use in uses):
        whole = whole | None
    return (name, whole | UnsetType, UNSET) if all(use.optional for use in uses) else (name, whole)


def _convert(use: Use) -> Convert:
    """Return the function that descends to the value and converts it; null must be allowed."""
    steps = use.path[1:]

    def convert(raw: Any) -> Any:
        for step in steps:
            raw = raw[step]
        return None if raw is None and use.nullable else use.convert(raw)

    return convert
