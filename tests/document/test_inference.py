"""Test column types inferred from a sample of records."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep import settings
from instep.document import inference


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, None], "bigint"),
        ([2**63], "decimal(38,0)"),
        ([1, Decimal("2.50")], "decimal(38,6)"),
        ([Decimal("0.12345678")], "decimal(38,8)"),
        ([Decimal("1E-20")], "double"),
        ([10**37, Decimal("0.5")], "double"),
        ([True, False], "boolean"),
        (["2026-11-01", "x"], "text"),
        ([True, 1], "json"),
        (["a", 1], "json"),
        ([{"a": 1}], "json"),
        ([None], None),
        ([], None),
    ],
)
def test_the_type_is_inferred_from_values(values: list[Any], expected: str | None) -> None:
    assert inference.type_of(values) == expected


SCALARS = (
    st.booleans() | st.integers() | st.decimals(allow_nan=False, allow_infinity=False) | st.text()
)


@given(st.lists(SCALARS))
def test_every_type_is_one_that_can_be_declared(values: list[Any]) -> None:
    found = inference.type_of(values)
    assert found is None or settings.column_type(found, "type")


def test_only_the_requested_columns_get_a_type() -> None:
    columns = {
        "total": "order.total",
        "paid": "paid",
        "state": {"field": "state", "trim": True},
        "rate": {"field": "rate", "convert": "number"},
    }
    pipeline = msgspec.convert(
        {
            "topic": "t",
            "target": "sqlite:///x.db",
            "table": "t",
            "key": "id",
            "event": {"document": "no"},
            "columns": columns,
        },
        settings.Pipeline,
    )
    bodies = [
        {"no": 7, "order": {"total": 20.5}, "paid": True, "state": 3, "rate": "1.25"},
        {"no": 8, "order": 1, "rate": "?"},
    ]
    values = [*(json.dumps(body).encode() for body in bodies), b"{", b"[]", None, b"\xff"]
    found = inference.typed(pipeline, values, ["id", "total", "state", "rate"])
    assert {name: column.type for name, column in found.mapped.items()} == {
        "total": "decimal(38,6)",
        "paid": None,
        "state": "bigint",
        "rate": "decimal(38,6)",
    }
    assert (found.key_type, found.mapped["state"].trim) == ("bigint", True)
    assert inference.typed(pipeline, [], ["id", "total"]) == pipeline
