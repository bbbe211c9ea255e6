"""Test that numbers are stored digit for digit, or parked: no database changes one silently."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from instep.document import canonical, kinds
from instep.document.decoding import Decoder, Record
from instep.document.mapping import TargetColumn
from instep.document.reasons import Unfit
from instep.sinks import scan
from tests.support.databases import declare, open_sink, run_sql
from tests.support.tables import KEY, kind_of
from tests.support.transactions import Open, apply, begun

__all__ = ["open_sink"]

LONG = "0.12345678901234567891"
FINE = "1.23456789012345678901E-7"
HUGE = "123456789012345678901234567890"


def record(offset: int, document: str, amount: str, detail: str) -> Record:
    value = (
        f'{{"doc_id":"{document}","status":"X","version":1,"amount":{amount},"detail":{detail}}}'
    )
    return Record(offset, 1_790_000_000_000, document.encode(), value.encode())


def test_a_number_is_kept_to_the_last_digit_or_parked(database_url: str, open_sink: Open) -> None:
    kind = kind_of(database_url)
    json_type = "jsonb" if kind == "postgresql" else "JSON"
    run_sql(
        database_url,
        f"CREATE TABLE contract_document ({KEY[kind]},"
        f" print_version BIGINT, amount DECIMAL(60, 30), detail {json_type})",
    )
    columns = {"print_version": "version", "amount": "amount", "detail": "detail"}
    sink = begun(open_sink(declare(database_url, columns=columns)))
    records = [
        record(0, "tiny", "1.23E-7", "1.5"),
        record(1, "zeros", "2.5000000000000000000000000", "7"),
        record(2, "long", f"12345678901{LONG[1:]}", "null"),
        record(3, "inside", "1", f'{{"a":[{LONG},{HUGE}]}}'),
        record(4, "whole", "1", HUGE),
        record(5, "fine", FINE, "1.5"),
    ]
    apply(sink, records)
    documents = {"tiny", "fine", "zeros", "long", "inside", "whole"}
    kept = documents - {"sqlite": {"fine", "long", "whole"}, "mysql": {"inside", "whole"}}.get(
        kind, set()
    )
    reasons = dict(run_sql(database_url, "SELECT document, reason FROM instep_parked"))
    assert reasons == dict.fromkeys(documents - kept, "NUMBER_OUT_OF_RANGE")

    forms = [canonical.former(column, kind) for column in sink.target.mapping.columns]
    expected = {
        event.document: event.values
        for event in Decoder(sink.target.mapping).decode_all(records)[0]
    }
    with sink.snapshot():
        found = {row[0]: row[1:] for page in scan.rows(sink) for row in page}
    assert found.keys() == kept
    for document, row in found.items():
        texts = [
            [
                None if value is None else form(value)
                for form, value in zip(forms, side, strict=True)
            ]
            for side in (row, expected[document] or ())
        ]
        assert texts[0] == texts[1]
    exact = {
        "tiny": Decimal("1.23E-7"),
        "fine": Decimal(FINE),
        "zeros": Decimal("2.5"),
        "long": Decimal(f"12345678901{LONG[1:]}"),
    }
    for document, amount in run_sql(database_url, "SELECT doc_no, amount FROM contract_document"):
        if document in exact:
            assert Decimal(repr(amount) if isinstance(amount, float) else amount) == exact[document]
    if "inside" in kept:
        text = run_sql(
            database_url,
            "SELECT CAST(detail AS CHAR(200)) FROM contract_document WHERE doc_no = 'inside'",
        )[0][0]
        assert json.loads(text, parse_float=str) == {"a": [LONG, int(HUGE)]}


NUMBERS = st.decimals(allow_nan=False, allow_infinity=False).filter(
    lambda number: abs(number.adjusted()) <= 1_000
)


@given(NUMBERS)
def test_sqlite_accepts_only_decimals_that_it_returns_unchanged(number: Decimal) -> None:
    column = TargetColumn("c", kinds.Numeric(binary=True))
    try:
        taken = kinds.converter(column.kind)(number)
    except Unfit:
        return
    back = kinds.sqlite_number(taken)
    form = canonical.former(column, "sqlite")
    assert form(back) == form(number)
    assert Decimal(form(back)) == number


@given(
    st.recursive(
        NUMBERS | st.integers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_mysql_accepts_only_json_whose_numbers_it_returns_unchanged(value: Any) -> None:
    try:
        text = kinds.converter(kinds.Json(doubles="all"))(value)
    except Unfit:
        return
    form = canonical.former(TargetColumn("c", kinds.Json(doubles="all")), "mysql")
    back = json.loads(
        text, parse_int=lambda one: int(one) if -(2**63) <= int(one) < 2**64 else float(one)
    )
    assert form(json.dumps(back)) == form(text)
