"""Test that a value has one text, on both sides and by each database's rules.

tests/reconcile/test_reconcile.py has real round trips.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep.document import canonical, kinds
from instep.document.mapping import TargetColumn

AN_ID = UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")
DATABASES = ("sqlite", "postgresql", "mysql", "mariadb")


def form(kind: kinds.AnyKind, value: Any, database: str = "postgresql", declared: str = "") -> str:
    return canonical.former(TargetColumn("c", kind, declared=declared), database)(value)


@pytest.mark.parametrize(
    ("kind", "declared", "database", "event", "row"),
    [
        (kinds.Text(), "text", "postgresql", "a ", "a "),
        (kinds.Text(), "character(4)", "postgresql", "ab", "ab  "),
        (kinds.Text(), "char(4) character set utf8mb4", "mysql", "ab ", "ab"),
        (kinds.Text(), "set('a','b')", "mariadb", "b,a", "a,b"),
        (kinds.Text(), "TEXT", "sqlite", "12", 12),
        (kinds.Integer(), "bigint", "postgresql", 7, "7"),
        (kinds.Integer(is_boolean=True), "tinyint(1)", "mysql", 1, 1),
        (kinds.Integer(), "INTEGER", "sqlite", 7, "7"),
        (kinds.Float(), "double precision", "postgresql", 0.1, "0.1"),
        (kinds.Float(), "real", "postgresql", 0.1, "0.1"),
        (kinds.Float(), "real", "postgresql", 16777217, "1.6777216e+07"),
        (kinds.Float(), "float", "mysql", 0.1, 0.10000000149011612),
        (kinds.Float(), "float(7,3)", "mysql", 0.12345, 0.12300000339746475),
        (kinds.Float(), "double", "mariadb", -0.0, 0.0),
        (kinds.Float(), "REAL", "sqlite", 3.0, 3),
        (kinds.Numeric(10, 2), "numeric(10,2)", "postgresql", Decimal("1.5"), "1.50"),
        (kinds.Numeric(10, 2), "numeric(10,2)", "postgresql", Decimal("-0.00"), "0.00"),
        (kinds.Numeric(), "numeric", "postgresql", Decimal("1E+3"), "1000"),
        (kinds.Numeric(40, 0), "decimal(40,0)", "mysql", Decimal("1" * 40), Decimal("1" * 40)),
        (kinds.Numeric(10, 2), "NUMERIC(10, 2)", "sqlite", Decimal("12.50"), 12.5),
        (kinds.Numeric(10, 2), "NUMERIC(10, 2)", "sqlite", Decimal("12.00"), 12),
        (kinds.Numeric(), "NUMERIC", "sqlite", Decimal("0.12345678901234568"), 0.12345678901234568),
        (kinds.Numeric(), "NUMERIC", "sqlite", Decimal("1E+20"), 1e20),
        (kinds.Boolean(), "boolean", "postgresql", True, "true"),
        (kinds.Boolean(), "BOOLEAN", "sqlite", False, 0),
        (
            kinds.Timestamp(),
            "timestamptz",
            "postgresql",
            datetime(2026, 11, 1, 8, tzinfo=UTC),
            "2026-11-01 08:00:00+00",
        ),
        (
            kinds.Timestamp(),
            "timestamp",
            "postgresql",
            datetime(2026, 11, 1, 8, 0, 0, 5, tzinfo=UTC),
            "2026-11-01 08:00:00.000005",
        ),
        (
            kinds.Timestamp(precision=0),
            "datetime",
            "mariadb",
            datetime(2026, 11, 1, 8, 0, 0, 999_999, tzinfo=UTC),
            datetime.fromisoformat("2026-11-01 08:00:00"),
        ),
        (
            kinds.Timestamp(precision=3),
            "datetime(3)",
            "mysql",
            datetime(2026, 11, 1, 8, 0, 0, 999_500, tzinfo=UTC),
            datetime.fromisoformat("2026-11-01 08:00:01"),
        ),
        (
            kinds.Timestamp(precision=3),
            "timestamp(3)",
            "postgresql",
            datetime(1999, 1, 1, 0, 0, 0, 500, tzinfo=UTC),
            "1999-01-01 00:00:00",
        ),
        (
            kinds.Timestamp(precision=3),
            "timestamp(3)",
            "postgresql",
            datetime(2001, 1, 1, 0, 0, 0, 500, tzinfo=UTC),
            "2001-01-01 00:00:00.001",
        ),
        (
            kinds.Timestamp(),
            "DATETIME",
            "sqlite",
            datetime(2026, 11, 1, 10, tzinfo=timezone(timedelta(hours=2))),
            "2026-11-01 08:00:00.000000",
        ),
        (kinds.Date(), "date", "postgresql", date(2026, 11, 1), "2026-11-01"),
        (kinds.Date(), "date", "mysql", date(2026, 11, 1), date(2026, 11, 1)),
        (kinds.Uuid(), "uuid", "postgresql", AN_ID, str(AN_ID)),
        (kinds.Uuid(), "uuid", "mariadb", AN_ID, str(AN_ID).upper()),
        (kinds.Enumeration(("A", "B")), "mood", "postgresql", "A", "A"),
        (
            kinds.Json(),
            "jsonb",
            "postgresql",
            '{"b":1.0,"a":[1e2,null]}',
            '{"a": [100, null], "b": 1}',
        ),
        (
            kinds.Json(),
            "jsonb",
            "postgresql",
            "[1.50, 123456789012345678901234567890]",
            "[1.5,123456789012345678901234567890.0]",
        ),
        (kinds.Json(), "json", "mysql", "100000000000000000000000000000", "1e29"),
        (kinds.Json(), "JSON", "sqlite", "12", 12),
        (kinds.Json(), "JSON", "sqlite", "1.5", 1.5),
        (kinds.Json(), "longtext", "mariadb", '"\\u00e9"', '"é"'),
    ],
)
def test_event_and_stored_value_have_the_same_form(
    kind: kinds.AnyKind, declared: str, database: str, event: Any, row: Any
) -> None:
    assert form(kind, event, database, declared) == form(kind, row, database, declared)


@pytest.mark.parametrize(
    ("kind", "declared", "database", "event", "row"),
    [
        (kinds.Text(), "varchar(4)", "mysql", "ab ", "ab"),
        (kinds.Text(), "character varying(4)", "postgresql", "ab ", "ab"),
        (kinds.Text(), "CHAR(4)", "sqlite", "ab ", "ab"),
        (kinds.Integer(), "INTEGER", "sqlite", 7, 7.5),
        (kinds.Integer(), "INTEGER", "sqlite", 7, "seven"),
        (kinds.Float(), "double precision", "postgresql", 0.1, "0.10000000149011612"),
        (kinds.Numeric(10, 2), "numeric(10,2)", "postgresql", Decimal("1.5"), "1.51"),
        (kinds.Numeric(10, 2), "NUMERIC", "sqlite", Decimal("1.5"), "one and a half"),
        (kinds.Boolean(), "BOOLEAN", "sqlite", True, 2),
        (
            kinds.Timestamp(),
            "timestamptz",
            "postgresql",
            datetime(2026, 11, 1, tzinfo=UTC),
            "infinity",
        ),
        (
            kinds.Timestamp(),
            "timestamptz",
            "postgresql",
            datetime(44, 3, 15, tzinfo=UTC),
            "0044-03-15 00:00:00 BC",
        ),
        (
            kinds.Timestamp(),
            "datetime",
            "mysql",
            datetime(2026, 11, 1, tzinfo=UTC),
            "0000-00-00 00:00:00",
        ),
        (kinds.Date(), "date", "mysql", date(2026, 11, 1), "0000-00-00"),
        (kinds.Uuid(), "uuid", "sqlite", AN_ID, "no id"),
        (kinds.Json(), "jsonb", "postgresql", '{"a":1}', '{"a":"1"}'),
        (kinds.Json(), "jsonb", "postgresql", "true", "1"),
        (kinds.Json(), "json", "mysql", "123456789012345678901234567890", "1.2345678901234568e29"),
        (kinds.Json(), "jsonb", "postgresql", "0.12345678901234567891", "0.12345678901234567892"),
        (
            kinds.Numeric(),
            "NUMERIC",
            "sqlite",
            Decimal("0.12345678901234567890"),
            0.12345678901234568,
        ),
        (kinds.Numeric(), "NUMERIC", "sqlite", Decimal("1.5"), 1.5000000000000002),
        (kinds.Json(), "JSON", "sqlite", "[1]", b"\xff"),
    ],
)
def test_different_values_have_different_forms(
    kind: kinds.AnyKind, declared: str, database: str, event: Any, row: Any
) -> None:
    assert form(kind, event, database, declared) != form(kind, row, database, declared)


KINDS: list[tuple[kinds.AnyKind, st.SearchStrategy[Any]]] = [
    (kinds.Text(), st.text()),
    (kinds.Integer(), st.integers(-(2**63), 2**63 - 1)),
    (kinds.Float(), st.floats(allow_nan=False)),
    (kinds.Numeric(), st.decimals(allow_nan=False, allow_infinity=False, places=6)),
    (kinds.Boolean(), st.booleans()),
    (kinds.Timestamp(), st.datetimes(timezones=st.just(UTC))),
    (kinds.Date(), st.dates()),
    (kinds.Uuid(), st.uuids()),
]


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[type(kind).__name__ for kind, _ in KINDS])
def test_a_value_can_be_restored_from_its_form(
    kind: kinds.AnyKind, values: st.SearchStrategy[Any], database: str
) -> None:
    @given(values)
    def check(value: Any) -> None:
        text = form(kind, value, database)
        back = canonical.restorer(kind)(text)
        assert form(kind, back, database) == text
        assert back == value

    check()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON)
def test_json_is_compared_by_content(content: Any) -> None:
    text = form(kinds.Json(), json.dumps(content))
    assert form(kinds.Json(), json.dumps(content, indent=3, ensure_ascii=False)) == text
    assert form(kinds.Json(), text) == text


def test_a_decimal_within_json_stays_a_number() -> None:
    assert kinds.converter(kinds.Json())({"a": Decimal("1.50")}) == '{"a":1.50}'
