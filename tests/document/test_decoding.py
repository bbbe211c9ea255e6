"""Test decoding: every class of bad record gets its reason, and every good one its event."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from instep import errors
from instep import settings as declared
from instep.document import kinds, mapping
from instep.document.decoding import MISSING, DeadLetter, Decoder, Event, Record
from instep.document.mapping import TargetColumn
from instep.document.reasons import COLUMN_REFUSES, EXPLANATIONS, PARKS, Reason, Unfit

COLUMNS = {
    "doc_no": TargetColumn("doc_no", kinds.Text(characters=255), nullable=False),
    "print_status": TargetColumn("print_status", kinds.Text(characters=20), nullable=False),
    "print_version": TargetColumn("print_version", kinds.Integer()),
    "printed_at": TargetColumn("printed_at", kinds.Timestamp()),
    "pages": TargetColumn("pages", kinds.Integer(low=-(2**31), high=2**31 - 1)),
    "note": TargetColumn("note", kinds.Text()),
}
COLUMNED = list(COLUMNS)[1:]


def pipeline(**changes: Any) -> declared.Pipeline:
    base: dict[str, Any] = {
        "topic": "print-status",
        "target": "sqlite:///x.db",
        "table": "contract_document",
        "key": "doc_no",
        "event": {"document": "doc_id", "status": "status", "order": "version", "at": "updated_at"},
        "columns": {
            "print_status": "status",
            "print_version": "version",
            "printed_at": "updated_at",
            "pages": "job.pages",
            "note": "note",
        },
    }
    return msgspec.convert({**base, **changes}, declared.Pipeline)


def decoder(table: dict[str, TargetColumn] = COLUMNS, **changes: Any) -> Decoder:
    return Decoder(mapping.compile_mapping(pipeline(**changes), table))


GOOD: dict[str, Any] = {
    "doc_id": "d1",
    "status": "PRINTED",
    "version": 3,
    "updated_at": "2026-11-01T08:00:00.250Z",
    "job": {"pages": 7},
    "note": "ok",
}


def record(value: Any = MISSING, key: bytes | None = b"d1", **changes: Any) -> Record:
    if value is MISSING:
        value = {name: field for name, field in {**GOOD, **changes}.items() if field is not MISSING}
    raw = (
        value
        if isinstance(value, bytes) or value is None
        else json.dumps(value, ensure_ascii=False).encode()
    )
    return Record(7, 1_790_000_000_000, key, raw)


def reason(found: Record, using: Decoder | None = None) -> Reason | None:
    """Return why the record is quarantined: as a dead letter, or with its parked document.

    Check that bulk decoding gives the same.
    """
    using = using or decoder()
    event, letter = None, None
    try:
        event = using.decode(found)
    except Unfit as unfit:
        letter = DeadLetter(found, unfit.reason, unfit.detail)
    assert using.decode_all([found]) == ([event] if event else [], [letter] if letter else [])
    if letter:
        return letter.reason
    return event.refusal.reason if event and event.refusal else None


@pytest.mark.parametrize(
    "changes",
    [
        {"job": {"pages": 2**31}},
        {"status": "X" * 21},
        {"status": "X" * 256},
        {"status": None, "note": "x"},
        {"updated_at": 10**18},
        {"job": {"pages": 2**31}, "note": 7},
    ],
    ids=repr,
)
def test_a_value_that_a_column_cannot_hold_is_decoded_and_refused(changes: dict[str, Any]) -> None:
    """Park the document, since it is known.

    A record that cannot be understood is a dead letter, even if it also has a value that does not
    fit.
    """
    events, dead = decoder().decode_all([record(**changes)])
    understood = changes.get("note") is None and changes.get("updated_at") is None
    assert (len(events), len(dead)) == ((1, 0) if understood else (0, 1))
    if understood:
        assert events[0].refusal is not None
        assert events[0].document == "d1"
        assert len(events[0].status or "") <= 255


def test_every_reason_is_explained_and_quarantined_in_one_way() -> None:
    assert set(EXPLANATIONS) == set(Reason)
    assert PARKS >= COLUMN_REFUSES
    assert Reason.NOT_JSON not in PARKS


def test_a_good_record_is_decoded() -> None:
    at = datetime(2026, 11, 1, 8, 0, 0, 250_000, tzinfo=UTC)
    event = Event(7, "d1", 3, kinds.micros(at), "PRINTED", ("PRINTED", 3, at, 7, "ok"))
    assert decoder().decode(record()) == event
    assert decoder().decode_all([record()]) == ([event], [])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"event": {"document": "@key", "status": "status", "order": "version", "at": "updated_at"}},
        {
            "event": {
                "document": "doc_id",
                "status": "status",
                "order": "updated_at",
                "at": "updated_at",
            }
        },
        {"event": {"document": "doc_id", "status": "status"}},
        {
            "columns": {
                "print_status": "status",
                "print_version": "version",
                "printed_at": "@timestamp",
            }
        },
    ],
    ids=repr,
)
def test_good_records_are_decoded_in_bulk_with_every_mapping(changes: dict[str, Any]) -> None:
    using = decoder(**changes)
    assert (
        using._plain.read([record(), record(note="é"), record(updated_at=1_790_000_000_000)]).count(
            None
        )
        == 0
    )
    assert (
        using._plain.read([record(b"{"), record(None), record(key=None), record(note="\\")])
        == [None] * 4
    )


@pytest.mark.parametrize(
    ("at", "fits"),
    [
        ("2000-01-01T00:00:00Z", True),
        ("1999-12-31T23:59:59.999999Z", False),
        ("2000-01-01T00:30:00+01:00", False),
        (946_684_800_000, True),
        (946_684_799_999, False),
        ("2038-01-01T00:00:00", True),
        ("2038-01-01T00:00:00.000001", False),
    ],
)
def test_times_within_the_columns_range_are_decoded_in_bulk(at: Any, fits: bool) -> None:
    kind = kinds.Timestamp(
        low=datetime(2000, 1, 1, tzinfo=UTC), high=datetime(2038, 1, 1, tzinfo=UTC)
    )
    using = decoder({**COLUMNS, "printed_at": TargetColumn("printed_at", kind)})
    assert using._plain.read([record(updated_at=at)]).count(None) == (0 if fits else 1)
    events, dead = using.decode_all([record(updated_at=at)])
    assert (events, dead) == ([using.decode(record(updated_at=at))], [])
    assert (events[0].refusal is None) is fits


def test_a_null_value_deletes_the_document_named_by_the_key() -> None:
    assert decoder().decode(record(None)) == Event(7, "d1", None, 1_790_000_000_000_000, None, None)


BAD_VALUES: dict[str, tuple[bytes, Reason]] = {
    "empty": (b"", Reason.NOT_JSON),
    "blank": (b"  ", Reason.NOT_JSON),
    "bom": (b"\xef\xbb\xbf{}", Reason.NOT_JSON),
    "raw NUL": (b'{"doc_id":"d\x001"}', Reason.NOT_JSON),
    "lone surrogate": (b'{"doc_id":"\\ud800"}', Reason.NOT_JSON),
    "truncated": (b'{"doc_id":"d1","sta', Reason.NOT_JSON),
    "trailing garbage": (b'{"doc_id":"d1"} x', Reason.NOT_JSON),
    "two documents": (b'{"doc_id":"d1"}{"doc_id":"d2"}', Reason.NOT_JSON),
    "NaN": (b'{"doc_id":"d1","status":"X","version":NaN}', Reason.NOT_JSON),
    "Infinity": (b'{"doc_id":"d1","status":"X","version":Infinity}', Reason.NOT_JSON),
    "avro": (b"\x00\x00\x00\x00\x01\x04d1", Reason.NOT_JSON),
    "protobuf": (b"\x0a\x02d1\x12\x07PRINTED", Reason.NOT_JSON),
    "utf-16": ('{"doc_id":"d1"}'.encode("utf-16"), Reason.NOT_UTF8),
    "not utf-8": (b'{"doc_id":"d\xff"}', Reason.NOT_UTF8),
    "latin-1": ('{"doc_id":"d1","note":"Gruß"}'.encode("latin-1"), Reason.NOT_UTF8),
    "array": (b'["d1"]', Reason.NOT_AN_OBJECT),
    "text": (b'"d1"', Reason.NOT_AN_OBJECT),
    "number": (b"1", Reason.NOT_AN_OBJECT),
    "null": (b"null", Reason.NOT_AN_OBJECT),
    "nested 100,000 deep": (
        b'{"doc_id":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        Reason.NESTED_TOO_DEEP,
    ),
    "million digits": (
        b'{"doc_id":"d1","status":"X","version":' + b"9" * 1_000_000 + b"}",
        Reason.NUMBER_OUT_OF_RANGE,
    ),
    "1e400": (b'{"doc_id":"d1","status":"X","version":1e400}', Reason.NUMBER_OUT_OF_RANGE),
    "id twice": (b'{"doc_id":"d1","doc_id":"d2","status":"X","version":1}', Reason.FIELD_REPEATED),
    "id twice, once escaped": (
        b'{"doc_id":"d1","doc\\u005fid":"d2","status":"X","version":1}',
        Reason.FIELD_REPEATED,
    ),
    "nested field twice": (
        b'{"doc_id":"d1","status":"X","version":1,"job":{"pages":1,"pages":2}}',
        Reason.FIELD_REPEATED,
    ),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_bad_bytes_make_a_dead_letter(name: str) -> None:
    value, expected = BAD_VALUES[name]
    assert reason(record(value)) is expected


WRONG_TYPES = [None, True, 1.5, [], {}, [1], {"a": 1}]


@pytest.mark.parametrize("field", ["doc_id", "status", "version", "updated_at", "note"])
@pytest.mark.parametrize("value", WRONG_TYPES, ids=repr)
def test_a_field_of_a_wrong_type_makes_a_dead_letter(field: str, value: Any) -> None:
    found = reason(record(**{field: value}))
    fine_as_time = field == "updated_at" and value in (None, 1.5) and value is not True
    fine_as_null = field == "note" and value is None
    assert found is (None if fine_as_time or fine_as_null else Reason.WRONG_TYPE)


@pytest.mark.parametrize("field", ["doc_id", "status", "version"])
def test_a_missing_required_field_makes_a_dead_letter(field: str) -> None:
    assert reason(record(**{field: MISSING})) is Reason.FIELD_MISSING


@pytest.mark.parametrize("field", ["updated_at", "note", "job"])
def test_a_field_that_the_event_lacks_leaves_its_column_alone(field: str) -> None:
    column = {"updated_at": "printed_at", "note": "note", "job": "pages"}[field]
    values = decoder().decode(record(**{field: MISSING})).values
    assert values is not None
    assert {name for name, value in zip(COLUMNED, values, strict=True) if value is UNSET} == {
        column
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"version": 2**63}, Reason.NUMBER_OUT_OF_RANGE),
        ({"version": "3"}, Reason.WRONG_TYPE),
        ({"version": 3.0}, Reason.WRONG_TYPE),
        ({"job": {"pages": 2**31}}, Reason.NUMBER_OUT_OF_RANGE),
        ({"job": {"pages": "7"}}, Reason.WRONG_TYPE),
        ({"job": 5}, None),
        ({"status": "X" * 21}, Reason.TEXT_TOO_LONG),
        ({"status": "X" * 256}, Reason.TEXT_TOO_LONG),
        ({"status": 4}, Reason.WRONG_TYPE),
        ({"status": "a\0b"}, Reason.NUL_IN_TEXT),
        ({"note": "a\0b"}, Reason.NUL_IN_TEXT),
        ({"doc_id": "a\0b"}, Reason.NUL_IN_TEXT),
        ({"doc_id": ""}, Reason.ID_EMPTY),
        ({"doc_id": "x" * 255}, None),
        ({"doc_id": "x" * 256}, Reason.ID_TOO_LONG),
        ({"doc_id": "x" * 10_000}, Reason.ID_TOO_LONG),
        ({"updated_at": "yesterday"}, Reason.NOT_A_TIME),
        ({"updated_at": "2026-13-45T00:00:00Z"}, Reason.NOT_A_TIME),
        ({"updated_at": 10**18}, Reason.TIME_OUT_OF_RANGE),
        ({"updated_at": -(10**15)}, Reason.TIME_OUT_OF_RANGE),
        ({"updated_at": "9999-12-31T23:59:59-05:00"}, Reason.TIME_OUT_OF_RANGE),
        ({"updated_at": 1_790_000_000_000}, None),
        ({"updated_at": "2026-11-01"}, None),
        ({"updated_at": "2026-11-01 08:00:00+01:00"}, None),
        ({"version": -0}, None),
        ({"note": "x" * 1_000_000}, None),
        ({"note": "'; DROP TABLE contract_document; --"}, None),
        ({"note": "<script>alert(1)</script>\r\n\x1b[31m%s%n{0}../../etc/passwd"}, None),
        ({"__proto__": {"a": 1}, "extra": [[[[[[[[[[]]]]]]]]]]}, None),
        ({"doc_id": "😀", "status": "😀", "note": "👩‍👩‍👧"}, None),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_values(changes: dict[str, Any], expected: Reason | None) -> None:
    assert reason(record(**changes)) is expected


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (None, MISSING, Reason.KEY_MISSING),
        (None, None, Reason.KEY_MISSING),
        (b"\xff", MISSING, Reason.KEY_NOT_UTF8),
        (b"\xff", None, Reason.KEY_NOT_UTF8),
        (b"", None, Reason.ID_EMPTY),
        (b"x" * 256, None, Reason.ID_TOO_LONG),
    ],
)
def test_bad_keys(key: bytes | None, value: Any, expected: Reason) -> None:
    assert reason(record(value, key)) is expected


def test_the_key_as_the_document() -> None:
    using = decoder(event={"status": "status", "order": "version"})
    assert using.decode(record(key="Gruß".encode())).document == "Gruß"
    assert reason(record(key=b""), using) is Reason.ID_EMPTY


def test_an_integer_key_column() -> None:
    columns = {**COLUMNS, "doc_no": TargetColumn("doc_no", kinds.Integer(), nullable=False)}
    by_key = decoder(columns, event={"status": "status", "order": "version"})
    assert by_key.decode(record(key=b"42")).document == 42
    assert by_key.decode(record(None, b"-7")).document == -7
    for bad in (b"007", b"4.0", b"x", b"9" * 30, "٤".encode(), b"-", b"-0"):
        assert reason(record(None, bad), by_key) is Reason.WRONG_TYPE, bad
    by_field = decoder(columns)
    assert by_field.decode(record(doc_id=42)).document == 42
    assert reason(record(doc_id="42"), by_field) is Reason.WRONG_TYPE
    assert reason(record(doc_id=2**70), by_field) is Reason.NUMBER_OUT_OF_RANGE


def test_a_uuid_key_column() -> None:
    columns = {**COLUMNS, "doc_no": TargetColumn("doc_no", kinds.Uuid(), nullable=False)}
    text = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"
    assert decoder(columns).decode(record(doc_id=text)).document == UUID(text)
    assert reason(record(doc_id="nope"), decoder(columns)) is Reason.WRONG_TYPE


def test_order_by_time() -> None:
    columns = {**COLUMNS, "print_version": TargetColumn("print_version", kinds.Timestamp())}
    using = decoder(columns)
    assert using.decode(record(version="2026-11-01T08:00:00.000001Z")).order == kinds.micros(
        datetime(2026, 11, 1, 8, 0, 0, 1, tzinfo=UTC)
    )
    assert using.decode(record(version="2026-11-01T08:00:00.0000010Z")).order is not None
    assert reason(record(version="2026-11-01T08:00:00.0000012Z"), using) is Reason.TIME_TOO_FINE


def test_order_by_the_records_own_timestamp_covers_deletes() -> None:
    event = {"status": "status", "order": "@timestamp"}
    using = decoder(event=event, columns={"print_status": "status", "printed_at": "@timestamp"})
    assert using.decode(record()).order == using.decode(record(None)).order == 1_790_000_000_000_000
    bare = Record(0, -1, b"d", b'{"status":"X"}')
    assert reason(bare, using) is Reason.FIELD_MISSING
    assert using.decode(Record(0, -1, b"d", None)).at_us is None


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (kinds.Numeric(digits=5, scale=2), Decimal("123.45"), Decimal("123.45")),
        (kinds.Numeric(digits=5, scale=2), Decimal("1234.5"), Reason.NUMBER_OUT_OF_RANGE),
        (kinds.Numeric(digits=5, scale=2), Decimal("1.234"), Reason.NUMBER_OUT_OF_RANGE),
        (kinds.Numeric(digits=5, scale=2), Decimal("1.2300"), Decimal("1.23")),
        (kinds.Numeric(), "1", Reason.WRONG_TYPE),
        (kinds.Numeric(), True, Reason.WRONG_TYPE),
        (kinds.Float(), 1, 1.0),
        (kinds.Float(), 10**400, Reason.NUMBER_OUT_OF_RANGE),
        (kinds.Float(), "1", Reason.WRONG_TYPE),
        (kinds.Boolean(), True, True),
        (kinds.Boolean(), 1, Reason.WRONG_TYPE),
        (kinds.Integer(is_boolean=True, high=127), True, 1),
        (kinds.Integer(), True, Reason.WRONG_TYPE),
        (kinds.Enumeration(labels=("A", "B")), "A", "A"),
        (kinds.Enumeration(labels=("A", "B")), "a", Reason.NOT_A_CHOICE),
        (kinds.Enumeration(labels=("A", "B")), 1, Reason.WRONG_TYPE),
        (kinds.Date(), "2026-11-01", date(2026, 11, 1)),
        (kinds.Date(), "2026-11-01T23:30:00-01:00", date(2026, 11, 2)),
        (kinds.Date(), "soon", Reason.NOT_A_TIME),
        (kinds.Json(), {"a": [1, None]}, '{"a":[1,null]}'),
        (kinds.Json(), {"a": "\0"}, Reason.NUL_IN_TEXT),
        (kinds.Json(), {"a": "\\\0"}, Reason.NUL_IN_TEXT),
        (kinds.Json(), {"a": "\\u0000"}, '{"a":"\\\\u0000"}'),
        (kinds.Json(), [Decimal("0.10"), 2**90], "[0.10,1237940039285380274899124224]"),
        (kinds.Json(depth=2), [{"a": "[[["}], '[{"a":"[[["}]'),
        (kinds.Json(depth=2), [[1], [[2]]], Reason.NESTED_TOO_DEEP),
        (kinds.Text(size=4), "ßß", "ßß"),
        (kinds.Text(size=4), "ßßa", Reason.TEXT_TOO_LONG),
        (
            kinds.Timestamp(high=datetime(2038, 1, 1, tzinfo=UTC)),
            "2038-01-02T00:00:00Z",
            Reason.TIME_OUT_OF_RANGE,
        ),
        (kinds.Uuid(), "zz", Reason.WRONG_TYPE),
    ],
    ids=repr,
)
def test_kinds(kind: kinds.ColumnKind, value: Any, expected: Any) -> None:
    try:
        found: Any = kinds.converter(kind)(value)
    except Unfit as unfit:
        found = unfit.reason
    assert found == expected
    assert type(found) is type(expected)


def test_times_in_columns_of_another_type() -> None:
    at = "2026-11-01T08:00:00.250Z"
    assert kinds.time_converter(kinds.Integer())(at) == 1_793_520_000_250
    assert kinds.time_converter(kinds.Text())(at) == at
    assert kinds.time_converter(kinds.Text())(1_793_520_000_250) == "2026-11-01T08:00:00.250000Z"


def test_exact_numbers_keep_every_digit() -> None:
    columns = {**COLUMNS, "note": TargetColumn("note", kinds.Numeric(digits=30, scale=10))}
    value = b'{"doc_id":"d","status":"X","version":1,"note":12345678901234567890.0123456789}'
    values = decoder(columns).decode(record(value)).values
    assert values is not None
    assert values[COLUMNED.index("note")] == Decimal("12345678901234567890.0123456789")


@pytest.mark.parametrize("number", ["1e99999999999999999999", "1e999999999", "-1e-999999999"])
def test_a_number_with_too_many_digits_is_out_of_range(number: str) -> None:
    columns = {**COLUMNS, "note": TargetColumn("note", kinds.Numeric())}
    value = f'{{"doc_id":"d","status":"X","version":1,"note":{number}}}'.encode()
    assert reason(record(value), decoder(columns)) is Reason.NUMBER_OUT_OF_RANGE
    assert reason(record(value.replace(b"note", b"unmapped")), decoder(columns)) is None


@pytest.mark.parametrize(
    ("depth", "expected"), [(498, None), (499, None), (500, Reason.NESTED_TOO_DEEP)]
)
def test_the_nesting_limit_is_the_same_everywhere(depth: int, expected: Reason | None) -> None:
    """Use one limit: the parser's own depends on the interpreter and on the task's stack depth."""
    good = b'{"doc_id":"d","status":"X","version":1,"note":"' + b"[" * 1_000 + b'\\"","x":'
    assert reason(record(good + b"[" * depth + b"]" * depth + b"}")) is expected


def test_a_record_larger_than_the_target_accepts_is_refused() -> None:
    using = Decoder(mapping.compile_mapping(pipeline(), COLUMNS), record_bytes_max=1_000)
    assert reason(record(note="x" * 500), using) is None
    assert reason(record(note="x" * 1_000), using) is Reason.RECORD_TOO_LARGE
    assert reason(record(key=None, note="x" * 1_000), using) is Reason.RECORD_TOO_LARGE
    assert reason(record(None, b"x" * 1_001), using) is Reason.RECORD_TOO_LARGE


def test_an_order_value_beyond_64_bits() -> None:
    columns = {
        **COLUMNS,
        "print_version": TargetColumn("print_version", kinds.Integer(low=0, high=2**64 - 1)),
    }
    assert reason(record(version=2**63), decoder(columns)) is Reason.NUMBER_OUT_OF_RANGE


def test_repeated_names_are_found_quickly_among_thousands() -> None:
    names = ",".join(f'"n{number}":0' for number in range(60_000))
    value = f'{{"doc_id":"a","doc_id":"b","status":"X","version":1,{names}}}'.encode()
    assert reason(record(value)) is Reason.FIELD_REPEATED


def test_an_unexpected_error_makes_one_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    using = decoder()
    monkeypatch.setattr(using, "_status", lambda raw: 1 // 0)
    events, dead = using.decode_all([record(status=7), record(None)])
    assert ([letter.reason for letter in dead], len(events)) == ([Reason.UNFORESEEN], 1)


def test_a_null_for_a_column_without_nulls_is_refused() -> None:
    columns = {**COLUMNS, "note": TargetColumn("note", kinds.Text(), nullable=False)}
    assert reason(record(note=None), decoder(columns)) is Reason.NULL_NOT_ALLOWED


@pytest.mark.parametrize("field", ["@ofset", "@header.", "", "a..b", ".a"])
def test_an_invalid_field_path_is_refused(field: str) -> None:
    with pytest.raises(errors.SettingsError, match="field"):
        mapping.path(field)


@pytest.mark.parametrize(
    "text", ["0.12345678901234567891", "[1.10,123456789012345678901234567890]", '{"a":1E-400}']
)
def test_a_number_in_json_is_kept_as_it_is_written(text: str) -> None:
    """Decode for a table without decimal columns."""
    using = decoder({**COLUMNS, "note": TargetColumn("note", kinds.Json())})
    value = f'{{"doc_id":"d1","status":"X","version":1,"note":{text}}}'.encode()
    assert reason(record(value), using) is None
    assert (using.decode(record(value)).values or ())[-1] == text


def test_every_reason_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Reason)


@given(st.binary(max_size=400), st.none() | st.binary(max_size=20))
def test_random_bytes_never_escape(value: bytes, key: bytes | None) -> None:
    assert reason(record(value, key)) in {None, *Reason}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(("doc_id", "status", "version", "updated_at", "job", "note"), JSON),
    )
)
def test_any_json_in_any_field_never_escapes(value: dict[str, Any]) -> None:
    raw = json.dumps(value).encode()
    assert reason(record(raw)) in {None, *Reason}


def test_mutated_good_records_never_escape() -> None:
    good = record().value or b""
    using = decoder()
    dice = random.Random(1)
    for _ in range(5_000):
        mutated = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            mutated[dice.randrange(len(mutated))] = dice.randrange(256)
        reason(record(bytes(mutated)), using)


def test_one_bad_record_leaves_the_others_alone() -> None:
    records = [record(), record(b"{"), record(version=4), record(key=None)]
    events, dead = decoder().decode_all(records)
    assert [event.order for event in events] == [3, 4]
    assert [letter.reason for letter in dead] == [Reason.NOT_JSON, Reason.KEY_MISSING]
    assert dead[0].record is records[1]
