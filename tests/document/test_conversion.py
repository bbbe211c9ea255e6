"""Test how a column's options convert a field, and that both decoders agree."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from instep import settings
from instep.document import conversion, guard, kinds, mapping
from instep.document.conversion import Conversion
from instep.document.decoding import DeadLetter, Decoder, Record, converter
from instep.document.guard import Rules, Verdict
from instep.document.mapping import Field, TargetColumn
from instep.document.reasons import Reason, Unfit

MONEY = kinds.Numeric(12, 2)
SMALL = kinds.Integer(-(2**15), 2**15 - 1)


def converted(kind: kinds.AnyKind, raw: Any, **options: Any) -> Any:
    return converter(Field(TargetColumn("c", kind), ("c",), conversion=Conversion(**options)))(raw)


@pytest.mark.parametrize(
    ("kind", "options", "raw", "expected"),
    [
        (MONEY, {"convert": "number"}, "20.50", Decimal("20.50")),
        (MONEY, {"convert": "number"}, Decimal("20.5"), Decimal("20.5")),
        (MONEY, {"convert": "number", "trim": True}, " -3 ", Decimal(-3)),
        (SMALL, {"convert": "number"}, "20.00", 20),
        (SMALL, {"convert": "number"}, "+7", 7),
        (kinds.Float(), {"convert": "number"}, "1e-3", 0.001),
        (
            kinds.Timestamp(),
            {"convert": "number"},
            "1000",
            datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        ),
        (MONEY, {"round": True}, Decimal("2.005"), Decimal("2.01")),
        (MONEY, {"round": True}, -2.005, Decimal("-2.01")),
        (MONEY, {"convert": "number", "round": True}, "0.125", Decimal("0.13")),
        (SMALL, {"round": True}, Decimal("2.5"), 3),
        (kinds.Boolean(), {"convert": "boolean"}, 0, False),
        (kinds.Boolean(), {"convert": "boolean"}, "TRUE", True),
        (SMALL, {"convert": "boolean"}, True, 1),
        (SMALL, {"convert": "boolean"}, "0", 0),
        (MONEY, {"convert": "boolean"}, False, Decimal(0)),
        (kinds.Text(), {"convert": "boolean"}, 1, "true"),
        (kinds.Text(), {"trim": True}, "\t a b ", "a b"),
        (kinds.Text(3), {"trim": True}, " abc ", "abc"),
        (kinds.Enumeration(("A", "B")), {"trim": True}, "A ", "A"),
        (kinds.Text(), {"convert": "text"}, Decimal("20.50"), "20.50"),
        (kinds.Text(), {"convert": "text"}, 12, "12"),
        (kinds.Text(), {"convert": "text"}, True, "true"),
        (kinds.Text(), {"convert": "text"}, {"a": [1]}, '{"a":[1]}'),
        (kinds.Uuid(), {"trim": True}, " 6f9619ff-8b86-d011-b42d-00c04fc964ff", None),
    ],
)
def test_a_value_is_converted_to_the_columns_type(
    kind: kinds.AnyKind, options: dict[str, Any], raw: Any, expected: Any
) -> None:
    found = converted(kind, raw, **options)
    assert expected is None or (found == expected and type(found) is type(expected))


@pytest.mark.parametrize(
    ("kind", "options", "raw", "reason"),
    [
        (MONEY, {"convert": "number"}, "20,50", Reason.WRONG_TYPE),
        (MONEY, {"convert": "number"}, "", Reason.WRONG_TYPE),
        (MONEY, {"convert": "number"}, " 1", Reason.WRONG_TYPE),
        (MONEY, {"convert": "number"}, "NaN", Reason.WRONG_TYPE),
        (MONEY, {"convert": "number"}, True, Reason.WRONG_TYPE),
        (MONEY, {"convert": "number"}, "1e5000", Reason.NUMBER_OUT_OF_RANGE),
        (MONEY, {"convert": "number"}, "0.125", Reason.NUMBER_OUT_OF_RANGE),
        (SMALL, {"convert": "number"}, "20.5", Reason.NUMBER_OUT_OF_RANGE),
        (SMALL, {"convert": "number"}, "99999", Reason.NUMBER_OUT_OF_RANGE),
        (MONEY, {"round": True}, "2.5", Reason.WRONG_TYPE),
        (MONEY, {"round": True}, Decimal("9999999999.995"), Reason.NUMBER_OUT_OF_RANGE),
        (kinds.Boolean(), {"convert": "boolean"}, 2, Reason.WRONG_TYPE),
        (kinds.Boolean(), {"convert": "boolean"}, "yes", Reason.WRONG_TYPE),
        (kinds.Text(2), {"trim": True}, "abc", Reason.TEXT_TOO_LONG),
        (kinds.Text(2), {"convert": "text"}, 100, Reason.TEXT_TOO_LONG),
    ],
)
def test_a_value_that_cannot_be_converted_is_refused(
    kind: kinds.AnyKind, options: dict[str, Any], raw: Any, reason: Reason
) -> None:
    with pytest.raises(Unfit) as caught:
        converted(kind, raw, **options)
    assert caught.value.reason is reason


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9))
def test_rounding_is_half_up_and_always_fits(number: Decimal) -> None:
    rounded = converted(MONEY, number, round=True)
    assert abs(rounded - number) <= Decimal("0.005")
    assert converted(MONEY, str(number), convert="number", round=True) == rounded


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (kinds.Text(), {"convert": "number"}),
        (kinds.Date(), {"convert": "boolean"}),
        (MONEY, {"convert": "text"}),
        (kinds.Numeric(), {"round": True}),
        (kinds.Float(), {"round": True}),
    ],
)
def test_a_conversion_that_does_not_fit_its_column_is_refused(
    kind: kinds.AnyKind, options: dict[str, Any]
) -> None:
    assert conversion.problem(Conversion(**options), kind)


COLUMNS = {
    "id": TargetColumn("id", kinds.Text(255), nullable=False),
    "state": TargetColumn("state", kinds.Text(20)),
    "version": TargetColumn("version", kinds.Integer()),
    "total": TargetColumn("total", MONEY),
    "paid": TargetColumn("paid", SMALL),
    "label": TargetColumn("label", kinds.Text(40)),
    "tenant": TargetColumn("tenant", kinds.Text(10)),
    "place": TargetColumn("place", kinds.Integer()),
    "part": TargetColumn("part", kinds.Integer()),
    "source": TargetColumn("source", kinds.Text()),
}
MAPPED: dict[str, Any] = {
    "state": {"field": "state", "trim": True},
    "version": {"field": "v", "convert": "number"},
    "total": {"field": "order.total", "convert": "number", "round": True},
    "paid": {"field": "paid", "convert": "boolean"},
    "label": {"field": "label", "convert": "text"},
    "tenant": "@header.tenant",
    "place": "@offset",
    "part": "@partition",
    "source": {"value": "print"},
}


def compiled(
    event: dict[str, Any], columns: dict[str, Any], table: dict[str, TargetColumn] = COLUMNS
) -> mapping.Mapping:
    pipeline = {
        "topic": "t",
        "target": "sqlite:///x.db",
        "table": "t",
        "key": "id",
        "event": event,
        "columns": columns,
    }
    return mapping.compile_mapping(msgspec.convert(pipeline, settings.Pipeline), table)


USING = Decoder(compiled({"status": "state", "order": "v"}, MAPPED))
BODY = {"state": " OPEN ", "v": "17", "order": {"total": "20.505"}, "paid": "true", "label": 5}


def record(
    body: Any, headers: Any = (("tenant", b"a"), ("tenant", b"b")), partition: int = 2
) -> Record:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Record(9, 1_790_000_000_000, b"d1", raw, partition, headers)


def test_a_record_is_decoded_with_every_option() -> None:
    events, dead = USING.decode_all([record(BODY)])
    assert dead == []
    assert events == [USING.decode(record(BODY))]
    assert (events[0].status, events[0].order) == ("OPEN", 17)
    assert events[0].values == ("OPEN", 17, Decimal("20.51"), 1, "5", "b", 9, 2, "print")
    assert USING._plain.read([record(BODY)]) != [None], "read in bulk"


def test_a_column_keeps_its_value_if_the_record_lacks_the_field() -> None:
    events, _ = USING.decode_all(
        [record(BODY, headers=(), partition=-1), record(BODY, headers=(("tenant", None),))]
    )
    assert [event.values[5:8] for event in events if event.values] == [
        (UNSET, UNSET, UNSET),
        (None, 9, 2),
    ]


def test_a_header_that_is_not_text_makes_a_dead_letter() -> None:
    _, dead = USING.decode_all([record(BODY, headers=(("tenant", b"\xff"),))])
    assert [letter.reason for letter in dead] == [Reason.WRONG_TYPE]


def test_events_may_lack_a_status() -> None:
    using = Decoder(compiled({"order": "v"}, {"version": "v", "label": "label"}))
    events, dead = using.decode_all(
        [record({"v": 3, "label": "x"}), record(b'{"v": 4, "label": "y\\u0041"}')]
    )
    assert (dead, [(one.status, one.order, one.values) for one in events]) == (
        [],
        [(None, 3, (3, "x")), (None, 4, (4, "yA"))],
    )


def test_time_and_status_can_come_from_headers() -> None:
    using = Decoder(
        compiled({"status": "@header.kind", "at": "@header.ce_time"}, {"state": "@header.kind"})
    )
    at = datetime(2026, 11, 1, 8, tzinfo=UTC)
    events, dead = using.decode_all(
        [record({}, (("kind", b"PAID"), ("ce_time", at.isoformat().encode()))), record({}, ())]
    )
    assert [(one.status, one.at_us) for one in events] == [("PAID", kinds.micros(at))]
    assert [letter.reason for letter in dead] == [Reason.FIELD_MISSING]


def test_an_integer_id_equals_the_same_id_as_text() -> None:
    using = Decoder(compiled({"document": "no"}, {"state": "state"}))
    events, dead = using.decode_all(
        [record({"no": 12, "state": "A"}), record({"no": "12", "state": "A"}), record({"no": True})]
    )
    assert ([one.document for one in events], [letter.reason for letter in dead]) == (
        ["12", "12"],
        [Reason.WRONG_TYPE],
    )


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["1", " 1 ", "20.505", "1e3", "true", "FALSE", "", "x", "0"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["total", "a"]), inner, max_size=2)
    ),
    max_leaves=3,
)


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(BODY, ODD)),
    st.lists(
        st.tuples(st.sampled_from(["tenant", "x"]), st.none() | st.binary(max_size=12)), max_size=3
    ),
    st.integers(-1, 2),
)
def test_both_decoders_agree_on_every_record(
    changes: dict[str, Any], headers: list[Any], partition: int
) -> None:
    one = record({**BODY, **changes}, tuple(headers), partition)
    events, dead = USING.decode_all([one])
    expected: Any
    try:
        expected = [USING.decode(one)], []
    except Unfit as unfit:
        expected = [], [DeadLetter(one, unfit.reason, unfit.detail)]
    assert (events, dead) == expected


# --- the guard and time ---------------------------------------------------------------------------

TIMES = st.integers(0, 1_000_000).map(
    lambda us: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
)


def by_time(**column: Any) -> Decoder:
    columns: dict[str, Any] = {
        "version": {"field": "at", **column} if column else "at",
        "label": "label",
    }
    return Decoder(compiled({"order": "at", "at": "at"}, columns))


@pytest.mark.parametrize("unit", [None, "s", "ms", "us"])
def test_an_earlier_status_never_overwrites_a_later_one(unit: str | None) -> None:
    """Quarantine a time that is finer than its unit: the guard's column is an integer.

    It is never truncated.
    """
    using = by_time(unit=unit) if unit else by_time()
    rules = Rules(ordered=True, order_is_time=True)
    step = timedelta(microseconds=kinds.UNIT_US[unit or "ms"])

    @given(
        st.lists(
            TIMES | TIMES.map(lambda at: at - (at - at.min.replace(tzinfo=UTC)) % step),
            min_size=2,
            max_size=6,
        )
    )
    def check(times: list[datetime]) -> None:
        records = [
            Record(n, 1, b"d1", json.dumps({"at": at.isoformat(), "label": str(n)}).encode())
            for n, at in enumerate(times)
        ]
        events, dead = using.decode_all(records)
        assert {letter.reason for letter in dead} <= {Reason.TIME_TOO_FINE}
        assert {letter.record.offset for letter in dead} == {
            n for n, at in enumerate(times) if (at - at.min.replace(tzinfo=UTC)) % step
        }
        changes = guard.settle(events, {}, rules)
        shown = datetime.min.replace(tzinfo=UTC)
        for event, verdict in zip(events, changes.verdicts, strict=True):
            assert (verdict is Verdict.APPLIED) is (times[event.offset] >= shown)
            shown = max(shown, times[event.offset])
            assert event.values is not None
            assert event.values[0] == event.order

    check()


def test_an_order_time_in_milliseconds_may_be_no_finer_than_a_microsecond() -> None:
    using = Decoder(
        compiled(
            {"order": "at", "at": "at"},
            {"version": "at"},
            {**COLUMNS, "version": TargetColumn("version", kinds.Timestamp())},
        )
    )
    events, dead = using.decode_all(
        [record({"at": 1_790_000_000_000.125}), record(b'{"at":1790000000000.1251}')]
    )
    assert ([one.order for one in events], [letter.reason for letter in dead]) == (
        [1_790_000_000_000_125],
        [Reason.TIME_TOO_FINE],
    )
