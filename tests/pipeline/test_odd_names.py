"""Test names and settings that databases allow and few people use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from instep import errors
from instep.document.guard import Verdict
from instep.pipeline.apply import maintenance
from instep.sinks import facts, inspection, preparation
from instep.sinks.sink import Sink
from tests.support.databases import declare, open_sink, run_sql
from tests.support.transactions import apply, begun, event, record

__all__ = ["open_sink"]

Open = Callable[..., Sink]


def test_names_may_contain_percent_signs_quotes_and_spaces(
    database_url: str, open_sink: Open
) -> None:
    columns = {"100 %": "status", "%s": "version", "a 'b' \"c": "note", "{x}": "place"}
    pipeline = declare(database_url, table="50 % of", key="no %d", columns=columns)
    sink = begun(open_sink(pipeline))
    apply(
        sink, [event(0, "a", 1, note="n", place="p"), event(1, "b", 1), event(2, "a", 2, "LATER")]
    )
    apply(
        sink,
        [event(3, "a", 1, "LATE"), event(4, "b", 2, note=None), event(5, "c", 1), event(6, "c", 2)],
    )
    outcome = apply(sink, [record(7, "c", None), event(8, "a", 3, "LAST"), event(9, "b", 1)])
    assert (outcome.verdicts[Verdict.APPLIED], outcome.verdicts[Verdict.STALE]) == (2, 1)
    with (
        maintenance.MaintenanceSession("contracts", pipeline, "ann") as session,
        session.read() as looking,
    ):
        found = looking.table.look_up(["a", "b", "c"])
    assert {name: row["100 %"] for name, row in found.items()} == {"a": "LAST", "b": "PRINTED"}
    assert facts.read("contracts", pipeline).unfit is None


def test_a_database_may_use_ansi_quotes(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("mariadb")
    [(before,)] = run_sql(url, "SELECT @@GLOBAL.sql_mode")
    try:
        run_sql(url, f"SET GLOBAL sql_mode = '{before},ANSI_QUOTES'")
        sink = begun(open_sink(declare(url, columns={**declare(url).columns, "flags": "flags"})))
        apply(sink, [event(0, "a", 1, flags="x"), event(1, "b", 1), event(2, "a", 2)])
        assert facts.read("contracts", declare(url)).unfit is None
    finally:
        run_sql(url, f"SET GLOBAL sql_mode = '{before}'")
    assert run_sql(url, "SELECT doc_no, print_version FROM contract_document ORDER BY doc_no") == [
        ("a", 2),
        ("b", 1),
    ]


@pytest.mark.parametrize("name", ["a#b.db", "a b.db", "ä.db"])
def test_a_sqlite_file_may_have_an_odd_name(name: str, tmp_path: Path, open_sink: Open) -> None:
    url = f"sqlite:///{tmp_path}/{name}"
    sink = begun(open_sink(declare(url)))
    apply(sink, [event(0, "a", 1)])
    inspection.inspect("contracts", declare(url))
    assert [file.name for file in tmp_path.glob("*.db")] == [name]


@pytest.mark.parametrize("missing", ["insert", "ignore"])
def test_a_key_may_be_generated_by_the_database(
    missing: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("postgres")
    rest = "print_status VARCHAR(20), print_version BIGINT"
    run_sql(
        url,
        "CREATE TABLE contract_document (doc_no BIGINT GENERATED ALWAYS AS IDENTITY"
        f" PRIMARY KEY, {rest})",
    )
    run_sql(url, "INSERT INTO contract_document (print_status) VALUES ('NEW')")
    columns = {"print_status": "status", "print_version": "version"}
    pipeline = declare(
        url,
        missing=missing,
        columns=columns,
        event={"document": "@key", "status": "status", "order": "version"},
    )
    if missing == "ignore":
        sink = begun(open_sink(pipeline))
        apply(sink, [event(0, "1", 1)])
        assert run_sql(url, "SELECT doc_no, print_status FROM contract_document") == [
            (1, "PRINTED")
        ]
        return
    with pytest.raises(errors.TargetUnfit, match="GENERATED ALWAYS") as refused:
        preparation.prepare(pipeline)
    run_sql(url, refused.value.remedy)
    sink = begun(open_sink(pipeline))
    apply(sink, [event(0, "1", 1), event(1, "2", 1)])
    assert run_sql(url, "SELECT count(*) FROM contract_document") == [(2,)]
