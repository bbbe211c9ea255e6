"""Test that declared types become columns of each database, and contradictions are reported."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from instep import errors, settings
from instep.document import kinds
from instep.document.decoding import Record
from instep.document.guard import Verdict
from instep.sinks import inspection, preparation
from tests.support.databases import declare, open_sink, run_sql
from tests.support.tables import make
from tests.support.transactions import Open, apply, begun

__all__ = ["open_sink"]

TYPES = [
    "text",
    "varchar(20)",
    "integer",
    "bigint",
    "decimal(12,2)",
    "double",
    "boolean",
    "timestamp",
    "date",
    "uuid",
    "json",
]
VALUES = (
    '"c0":"é","c1":"x","c2":-5,"c3":9007199254740993,"c4":20.50,"c5":0.1,"c6":true,"c7":"2026-11-01T08:00:00.000001Z",'
    '"c8":"2026-11-01","c9":"6f9619ff-8b86-d011-b42d-00c04fc964ff","c10":{"a":1.10}'
)


def columns(types: list[str]) -> dict[str, Any]:
    return {f"c{number}": {"field": f"c{number}", "type": one} for number, one in enumerate(types)}


@pytest.mark.parametrize(
    ("key_type", "document"),
    [
        ("integer", "7"),
        ("bigint", "7"),
        ("uuid", '"6f9619ff-8b86-d011-b42d-00c04fc964ff"'),
        ("varchar(40)", "7"),
        ("text", '"a"'),
    ],
)
def test_every_type_is_created_and_accepts_its_values(
    database_url: str, open_sink: Open, key_type: str, document: str
) -> None:
    event = {"document": "no"}
    pipeline = declare(database_url, key_type=key_type, event=event, columns=columns(TYPES))
    sink = begun(open_sink(pipeline))
    assert preparation.faults(pipeline) == []
    outcome = apply(sink, [Record(0, 1, b"7", f'{{"no":{document},{VALUES}}}'.encode())])
    assert (outcome.dead, run_sql(database_url, "SELECT detail FROM instep_parked")) == (0, [])
    assert run_sql(database_url, "SELECT count(*), min(c4) FROM contract_document") == [
        (1, pytest.approx(20.50))
    ]


@pytest.mark.parametrize(
    ("declared", "column", "agrees"),
    [
        ("decimal(12,2)", "DECIMAL(12,2)", True),
        ("decimal(12,2)", "DECIMAL(20,4)", True),
        ("decimal(12,2)", "DECIMAL(12,4)", False),
        ("decimal(12,2)", "VARCHAR(20)", False),
        ("varchar(20)", "VARCHAR(40)", True),
        ("varchar(40)", "VARCHAR(20)", False),
        ("bigint", "BIGINT", True),
        ("timestamp", "DATE", False),
        ("date", "DATE", True),
    ],
)
def test_a_declared_type_must_match_the_column(
    database_url: str, declared: str, column: str, agrees: bool
) -> None:
    make(database_url, f"c0 {column}")
    pipeline = declare(database_url, event={}, columns=columns([declared]))
    faults = preparation.faults(pipeline)
    assert [("c0" in fault.what, declared in fault.what) for fault in faults] == (
        [] if agrees else [(True, True)]
    )
    if not agrees:
        with pytest.raises(errors.TargetUnfit, match="the settings declare it"):
            preparation.prepare(pipeline)


def test_all_faults_of_a_table_are_reported(database_url: str) -> None:
    make(
        database_url,
        "print_status VARCHAR(20), pages BIGINT, owner VARCHAR(20) NOT NULL, place VARCHAR(20)"
        " NOT NULL",
    )
    columns = {
        "pint_status": "status",
        "pages": {"field": "pages", "type": "text"},
        "print_status": {"field": "note", "convert": "number"},
    }
    pipeline = declare(database_url, event={"status": "status"}, columns=columns)
    reported = "\n".join(map(str, preparation.faults(pipeline)))
    for part in (
        "no column 'pint_status'; did you mean 'print_status'",
        "'owner' does not allow null",
        "'place' does not allow null",
        "column 'pages' is",
        'does not allow convert = "number"',
    ):
        assert part in reported
    assert len(preparation.faults(pipeline)) == 5
    assert [
        fault.what
        for fault in preparation.faults(pipeline, add_columns=True)
        if "pint_status" in fault.what
    ] == []


@pytest.mark.parametrize(
    ("kind", "column", "problem"),
    [
        ("BIGINT", {"value": "seven"}, "cannot hold the value 'seven'"),
        ("VARCHAR(9)", {"field": "x", "unit": "us"}, "unit"),
    ],
)
def test_a_constant_or_a_unit_that_the_column_cannot_hold_is_refused(
    database_url: str, kind: str, column: Any, problem: str
) -> None:
    make(database_url, f"c0 {kind}")
    assert (
        problem
        in preparation.faults(declare(database_url, event={}, columns={"c0": column}))[0].what
    )


def in_guide(name: str, url: str) -> settings.Pipeline:
    """Return a pipeline's settings as printed in the guide, with another database."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "map-events-to-columns.md").read_text(
        encoding="utf-8"
    )
    text = next(
        block for block in page.split("```toml\n") if block.startswith(f"[pipelines.{name}]")
    ).split("```")[0]
    return settings.parse(text.replace(f"sqlite:///{name}.db", url), {}).pipelines[name]


def test_the_guides_composite_key_works(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(in_guide("invoices", database_url), name="invoices"))
    body = {"tenant": "acme", "invoice": {"number": 17}, "status": "PAID", "version": 1}
    apply(
        sink, [Record(0, 1, b"acme/17", json.dumps(body).encode()), Record(1, 1, b"acme/18", None)]
    )
    assert run_sql(database_url, "SELECT tenant, no, status FROM invoice") == [("acme", 17, "PAID")]
    assert sink.table.look_up(["acme/17"]).keys() == {"acme/17"}


def test_the_guides_example_works(database_url: str, open_sink: Open) -> None:
    """Use the settings as printed in the guide, on every database."""
    pipeline = in_guide("orders", database_url)
    sink = begun(open_sink(pipeline, name="orders"))
    order = {
        "no": 4711,
        "version": 2,
        "changed": "2026-11-01T08:00:00Z",
        "amount": {"total": 20.5, "currency": "EUR "},
        "weight": "0.1235",
        "paid": 1,
        "lines": [{"sku": "a", "count": 2}],
    }
    outcome = apply(
        sink,
        [Record(0, 1, b"4711", json.dumps({"order": order}).encode(), 0, (("tenant", b"north"),))],
    )
    assert (outcome.dead, outcome.verdicts[Verdict.APPLIED]) == (0, 1)
    named = "order_no, version, total, currency, weight, is_paid, tenant, log_offset, source"
    row = run_sql(database_url, f"SELECT {named} FROM customer_order")[0]
    expected = (4711, 2, Decimal("20.50"), "EUR", Decimal("0.124"), 1, "north", 0, "web shop")
    assert tuple(Decimal(repr(one)) if isinstance(one, float) else one for one in row) == expected


def test_undeclared_types_follow_from_the_mapping(database_url: str) -> None:
    columns: dict[str, Any] = {
        "print_version": "version",
        "place": "@offset",
        "part": "@partition",
        "tenant": "@header.tenant",
        "is_print": {"value": True},
        "amount": {"field": "amount", "convert": "number"},
        "micros": {"field": "changed", "unit": "us"},
        "note": "note",
    }
    pipeline = declare(database_url, columns=columns)
    assert preparation.untyped(pipeline) == ["doc_no", "amount", "note"]
    preparation.prepare(pipeline)
    found = {
        column.name: type(column.kind)
        for column in inspection.inspect("contracts", pipeline).mapping.columns
    }
    truth = kinds.Integer if database_url.startswith("m") else kinds.Boolean
    assert found == {
        "print_version": kinds.Integer,
        "place": kinds.Integer,
        "part": kinds.Integer,
        "tenant": kinds.Text,
        "is_print": truth,
        "amount": kinds.Numeric,
        "micros": kinds.Integer,
        "note": kinds.Text,
    }
