"""Test a pipeline that writes several tables in one transaction, on every database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from instep import errors, settings
from instep.document.decoding import Decoder
from instep.document.guard import DocumentId, Stored, Verdict
from instep.operate import parked as parked_documents
from instep.operate import timeline
from instep.pipeline.apply import release, rewrite
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks import inspection, preparation
from tests.support.databases import BASE, declare, open_sink, run_sql
from tests.support.transactions import WRITER, Open, apply, begun, event, parked, record, table

__all__ = ["open_sink"]

CHANGES: dict[str, Any] = {
    "table": "status_change",
    "line_key": "version",
    "columns": {"version": "version", "status": "status", "changed_at": "updated_at"},
}
LATEST: dict[str, Any] = {
    "table": "latest_change",
    "key": "document",
    "order": "changed",
    "columns": {"changed": {"field": "changed", "type": "bigint"}, "status": "status"},
}


def changes_of(url: str) -> list[Any]:
    return run_sql(
        url, "SELECT doc_no, version, status FROM status_change ORDER BY doc_no, version"
    )


def latest_of(url: str) -> list[Any]:
    return run_sql(url, "SELECT document, changed, status FROM latest_change ORDER BY document")


def test_every_applied_event_adds_a_line(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url, tables=[CHANGES])))
    outcome = apply(
        sink,
        [
            event(0, "a", 1, "NEW"),
            event(1, "b", 1, "NEW"),
            event(2, "a", 2, "SENT"),
            event(3, "a", 1, "NEW"),
            event(4, "a", 3, "DONE"),
        ],
    )
    assert outcome.verdicts[Verdict.APPLIED] == 4
    assert table(database_url) == [("a", "DONE", 3), ("b", "NEW", 1)]
    assert changes_of(database_url) == [
        ("a", 1, "NEW"),
        ("a", 2, "SENT"),
        ("a", 3, "DONE"),
        ("b", 1, "NEW"),
    ]
    apply(sink, [event(5, "a", 2, "LATE"), event(6, "c", 1, "NEW")])
    assert len(changes_of(database_url)) == 5


def test_a_table_with_its_own_guard_decides_for_itself(database_url: str, open_sink: Open) -> None:
    every = {**CHANGES, "order": "version"}
    sink = begun(open_sink(declare(database_url, tables=[every, LATEST])))
    apply(sink, [event(0, "a", 3, "DONE", changed=7), event(1, "b", 1, "NEW", changed=1)])
    apply(
        sink,
        [
            event(2, "a", 1, "NEW", changed=9),
            event(3, "a", 1, "AGAIN", changed=9),
            event(4, "b", 2, "SENT", changed=0),
        ],
    )
    assert table(database_url) == [("a", "DONE", 3), ("b", "SENT", 2)]
    assert changes_of(database_url) == [
        ("a", 1, "NEW"),
        ("a", 3, "DONE"),
        ("b", 1, "NEW"),
        ("b", 2, "SENT"),
    ]
    assert latest_of(database_url) == [("a", 9, "NEW"), ("b", 1, "NEW")]


@pytest.mark.parametrize("deletes", ["row", "ignore"])
def test_a_delete_removes_the_lines_or_keeps_them(
    database_url: str, open_sink: Open, deletes: str
) -> None:
    lines = {**CHANGES, "order": "version", "deletes": deletes}
    sink = begun(open_sink(declare(database_url, tables=[lines])))
    apply(sink, [event(0, "a", 1, "NEW"), event(1, "a", 2, "SENT"), event(2, "A", 1, "NEW")])
    apply(sink, [record(3, "a", None), event(4, "a", 1, "LATE"), event(5, "b", 1, "NEW")])
    kept = [("a", 1, "NEW"), ("a", 2, "SENT")] if deletes == "ignore" else []
    others = [("A", 1, "NEW"), ("b", 1, "NEW")]
    assert sorted(changes_of(database_url)) == sorted([*kept, *others])
    apply(sink, [event(6, "a", 3, "NEW"), record(7, "a", None), event(8, "a", 4, "BACK")])
    added = [("a", 4, "BACK")]
    if deletes == "ignore":
        added = [("a", 3, "NEW"), *added]
    assert sorted(changes_of(database_url)) == sorted([*kept, *added, *others])


LIMITED = (
    "CREATE TABLE latest_change (document VARCHAR(255) NOT NULL PRIMARY KEY,"
    " changed BIGINT, status VARCHAR(255), CONSTRAINT plausible CHECK (changed < 100))"
)


def without_limit(url: str) -> None:
    if not url.startswith("sqlite"):
        run_sql(url, "ALTER TABLE latest_change DROP CONSTRAINT plausible")
        return
    run_sql(
        url,
        "ALTER TABLE latest_change RENAME TO limited",
        LIMITED.replace(", CONSTRAINT plausible CHECK (changed < 100)", ""),
        "INSERT INTO latest_change SELECT * FROM limited",
        "DROP TABLE limited",
    )


def test_a_row_that_one_table_refuses_parks_the_document(
    database_url: str, open_sink: Open
) -> None:
    """None of the event's rows is written; released, all of them are."""
    pipeline = declare(database_url, tables=[CHANGES, LATEST])
    run_sql(database_url, LIMITED)
    sink = begun(open_sink(pipeline))
    outcome = apply(
        sink,
        [
            event(0, "a", 1, "NEW", changed=1),
            event(1, "b", 1, "NEW", changed=1),
            event(2, "b", 2, "BAD", changed=100),
            event(3, "b", 3, "DONE", changed=3),
            event(4, "c", 1, "BAD", changed=200),
            event(5, "d", 1, "NEW", changed=1),
        ],
    )
    assert outcome.verdicts[Verdict.PARKED] == 3
    assert parked(database_url) == [
        (2, "b", "REFUSED_BY_TARGET"),
        (3, "b", "WAITS_BEHIND"),
        (4, "c", "REFUSED_BY_TARGET"),
    ]
    rows = [("a", "NEW", 1), ("b", "NEW", 1), ("d", "NEW", 1)]
    lines = [("a", 1, "NEW"), ("b", 1, "NEW"), ("d", 1, "NEW")]
    assert (table(database_url), changes_of(database_url)) == (rows, lines)
    assert latest_of(database_url) == lines
    apply(sink, [event(6, "b", 4, "END", changed=4)])  # waits in all tables
    assert changes_of(database_url) == lines
    without_limit(database_url)
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        planned = release.release(session, "b", execute=False)
        assert changes_of(database_url) == lines
        assert release.release(session, "b", execute=True) == planned
    assert table(database_url)[1] == ("b", "END", 4)
    assert [row[1] for row in changes_of(database_url) if row[0] == "b"] == [1, 2, 3, 4]
    assert latest_of(database_url)[1] == ("b", 100, "BAD")


def test_a_key_without_a_value_parks_the_document(database_url: str, open_sink: Open) -> None:
    step = {**CHANGES, "line_key": "step", "columns": {"step": "step", "status": "status"}}
    sink = begun(open_sink(declare(database_url, tables=[step])))
    apply(sink, [event(0, "a", 1, step="x"), event(1, "a", 2), event(2, "b", 1, step="y")])
    assert parked(database_url) == [(1, "a", "LINE_KEY_UNFIT")]
    assert [row[:1] for row in run_sql(database_url, "SELECT doc_no FROM status_change")] == [
        ("a",),
        ("b",),
    ]


def test_children_with_a_foreign_key_follow_their_parent(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("postgres")
    pipeline = declare(url, tables=[CHANGES])
    preparation.prepare(pipeline)
    run_sql(url, "ALTER TABLE status_change ADD FOREIGN KEY (doc_no) REFERENCES contract_document")
    sink = begun(open_sink(pipeline))
    apply(sink, [event(0, "a", 1, "NEW"), event(1, "b", 1, "NEW"), event(2, "a", 2, "SENT")])
    apply(sink, [record(3, "a", None), event(4, "c", 1, "NEW"), event(5, "b", 2, "SENT")])
    assert parked(url) == []
    assert table(url) == [("b", "SENT", 2), ("c", "NEW", 1)]
    assert changes_of(url) == [("b", 1, "NEW"), ("b", 2, "SENT"), ("c", 1, "NEW")]


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "write-several-tables.md"


def in_guide(name: str, url: str) -> settings.Pipeline:
    """Return a pipeline as printed in the guide, with another database."""
    for block in GUIDE.read_text(encoding="utf-8").split("```toml\n")[1:]:
        if block.startswith(f"[pipelines.{name}]"):
            text = block.partition("```")[0].replace(f"sqlite:///{name}.db", url)
            return settings.parse(text, {}).pipelines[name]
    raise AssertionError(name)


def test_the_guides_examples_work(database_url: str, open_sink: Open) -> None:
    letters = begun(open_sink(in_guide("letters", database_url), "letters"))
    apply(letters, [event(0, "C-1", 1, "CREATED"), event(1, "C-1", 2), event(2, "C-1", 1, "LATE")])
    changes = "SELECT letter_id, version, status FROM letter_status_change ORDER BY version"
    assert run_sql(database_url, changes) == [("C-1", 1, "CREATED"), ("C-1", 2, "PRINTED")]
    assert run_sql(database_url, "SELECT status, version FROM letter") == [("PRINTED", 2)]
    run_sql(database_url, "DROP TABLE letter")
    audited = begun(open_sink(in_guide("audited", database_url), "audited"))
    records = [
        msgspec.structs.replace(one, partition=0)
        for one in (event(0, "C-1", 2), event(1, "C-1", 1, "LATE"), event(2, "C-1", 1, "LATE"))
    ]
    apply(audited, [*records, record(3, "C-1", None)])
    trail = "SELECT log_offset, version, status FROM letter_audit ORDER BY log_offset"
    assert run_sql(database_url, trail) == [(0, 2, "PRINTED"), (1, 1, "LATE"), (2, 1, "LATE")]
    assert run_sql(database_url, "SELECT count(*) FROM letter") == [(0,)]


def test_show_has_the_rows_of_all_tables(open_sink: Open, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/target.db"
    pipeline = declare(url, tables=[CHANGES, LATEST])
    apply(
        begun(open_sink(pipeline)),
        [event(0, "a", 1, "NEW", changed=1), event(1, "a", 2, changed=2)],
    )
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        shown = timeline.read(session, "a", no_cluster)
    assert [row["version"] for row in shown.further["status_change"]] == [1, 2]
    assert shown.further["latest_change"] == [{"document": "a", "changed": 2, "status": "PRINTED"}]


def no_cluster() -> Any:
    raise AssertionError("the history is on: no topic is read")


WRONG = {
    "line_key": ({"line_key": "step"}, "line_key is 'step'"),
    "a key with other columns": ({"key": ["a", "b"]}, "a document's id has the columns doc_no"),
    "the main table": ({"table": "contract_document"}, "which the pipeline writes already"),
    "no other column": ({"columns": {"version": "version"}}, "no column beside the key"),
    "the key as a column": (
        {"columns": {"version": "version", "doc_no": "doc_id"}},
        "doc_no is a key column",
    ),
    "a constant in the key": (
        {"columns": {"version": {"value": 1}, "status": "status"}},
        "part of the key and a constant",
    ),
    "an order that is not stored": ({"order": "step"}, "no column of the table stores it"),
    "the offset as order": (
        {"order": "@offset", "columns": {**CHANGES["columns"], "at": "@offset"}},
        "says nothing about the document",
    ),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_wrong_settings_are_refused_with_their_place(changes: Any, message: str) -> None:
    text = msgspec.toml.encode(
        {
            "pipelines": {
                "contracts": {
                    **BASE,
                    "target": "sqlite:///t.db",
                    "tables": [{**CHANGES, **changes}],
                }
            }
        }
    ).decode()
    with pytest.raises(errors.SettingsError) as refused:
        settings.parse(text, {})
    assert "pipelines.contracts.tables[0]" in str(refused.value)
    assert message in str(refused.value)


def test_an_unknown_key_of_a_table_is_refused_and_values_of_the_environment_are_masked() -> None:
    declared = {**BASE, "target": "sqlite:///t.db", "tables": [{**CHANGES, "linekey": "x"}]}
    text = msgspec.toml.encode({"pipelines": {"contracts": declared}}).decode()
    with pytest.raises(errors.SettingsError, match=r"'linekey' in \[pipelines.contracts.tables"):
        settings.parse(text, {})


def test_a_changed_further_table_stops_the_pipeline(database_url: str, open_sink: Open) -> None:
    pipeline = declare(database_url, tables=[CHANGES])
    known = open_sink(pipeline).target
    if database_url.startswith("sqlite"):
        run_sql(database_url, "ALTER TABLE status_change RENAME COLUMN status TO state")
    else:
        run_sql(database_url, "ALTER TABLE status_change DROP COLUMN status")
    with pytest.raises(errors.TargetChanged, match="status_change"):
        inspection.refuse_constrained(known, pipeline)


def test_an_id_of_another_type_is_refused(database_url: str) -> None:
    run_sql(
        database_url,
        "CREATE TABLE status_change (doc_no BIGINT NOT NULL, version BIGINT NOT NULL,"
        " status VARCHAR(20), changed_at TIMESTAMP NULL, PRIMARY KEY (doc_no, version))",
    )
    pipeline = declare(database_url, tables=[CHANGES])
    preparation.prepare(pipeline)
    with pytest.raises(errors.TargetUnfit, match="use the same type for both"):
        inspection.inspect("contracts", pipeline)


def test_transitions_and_composite_keys_hold_for_all_tables(
    database_url: str, open_sink: Open
) -> None:
    """Also after a rewind, and for the events behind one that violates the transitions."""
    pipeline = declare(
        database_url,
        key=["tenant", "no"],
        event={**BASE["event"], "document": ["tenant", "no"]},
        columns={"print_status": "status", "print_version": "version"},
        transitions={"NEW": ["SENT"], "SENT": ["DONE"]},
        tables=[
            {**CHANGES, "key": ["of_tenant", "of_no"]},
            {"table": "latest_change", "columns": {"status": "status"}},
        ],
    )
    sink = begun(open_sink(pipeline))
    apply(
        sink,
        [
            event(0, "a/1", 1, "NEW", tenant="a", no="1"),
            event(1, "a/2", 1, "NEW", tenant="a", no="2"),
            event(2, "a/1", 2, "DONE", tenant="a", no="1"),
            event(3, "a/2", 2, "SENT", tenant="a", no="2"),
            event(4, "a/1", 3, "SENT", tenant="a", no="1"),
        ],
    )
    assert parked(database_url) == [
        (2, "a/1", "TRANSITION_NOT_ALLOWED"),
        (4, "a/1", "WAITS_BEHIND"),
    ]
    query = "SELECT of_tenant, of_no, version FROM status_change ORDER BY of_no, version"
    assert run_sql(database_url, query) == [("a", "1", 1), ("a", "2", 1), ("a", "2", 2)]
    rows = run_sql(database_url, "SELECT tenant, no, status FROM latest_change ORDER BY no")
    assert rows == [("a", "1", "NEW"), ("a", "2", "SENT")]
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        parked_documents.skip(session, "a/1", "wrong", execute=True)
        release.release(session, "a/1", execute=True)
    assert run_sql(database_url, query)[:2] == [("a", "1", 1), ("a", "1", 3)]
    apply(sink, [record(5, "a/2", None), record(6, "a", None)])
    assert run_sql(database_url, query) == [("a", "1", 1), ("a", "1", 3)]
    assert run_sql(database_url, "SELECT count(*) FROM latest_change") == [(1,)]


@pytest.mark.parametrize("missing", ["park", "ignore"])
def test_an_event_of_a_missing_document_writes_no_line(
    database_url: str, open_sink: Open, missing: str
) -> None:
    every = {**CHANGES, "order": "version"}
    sink = begun(open_sink(declare(database_url, missing=missing, tables=[every])))
    apply(sink, [event(0, "a", 1, "NEW"), event(1, "b", 1, "NEW")])
    assert changes_of(database_url) == []
    assert len(parked(database_url)) == (2 if missing == "park" else 0)
    run_sql(database_url, "INSERT INTO contract_document (doc_no) VALUES ('c')")
    apply(sink, [event(2, "c", 1, "NEW"), event(3, "c", 2, "SENT")])
    assert changes_of(database_url) == [("c", 1, "NEW"), ("c", 2, "SENT")]


def test_applying_a_range_again_after_a_rewind_changes_nothing(
    database_url: str, open_sink: Open
) -> None:
    sink = begun(open_sink(declare(database_url, tables=[CHANGES, LATEST])))
    records = [
        event(0, "a", 2, "NEW", changed=4),
        event(1, "a", 1, "LATE", changed=9),
        record(2, "b", None),
        event(3, "a", 3, "SENT", changed=1),
    ]
    apply(sink, records)
    before = table(database_url), changes_of(database_url), latest_of(database_url)
    assert before[1] == [("a", 2, "NEW"), ("a", 3, "SENT")]
    run_sql(database_url, "UPDATE instep_ledger SET next_offset = 0")
    again = msgspec.structs.replace(WRITER, already_applied={0: [(0, 4)]})
    apply(sink, records, writer=again)
    assert (table(database_url), changes_of(database_url), latest_of(database_url)) == before


@pytest.mark.parametrize("order", ["version", None])
def test_replay_restores_the_rows_of_the_events_that_it_applies(
    new_database: Callable[[str], str], open_sink: Open, order: str | None
) -> None:
    url = new_database("sqlite")
    version = {"field": "version", "type": "bigint"}
    columns = {"version": version, "status": "status"}
    pipeline = declare(
        url,
        event={"document": "doc_id", "status": "status", **({"order": order} if order else {})},
        columns={"print_version": version, "print_status": "status"},
        tables=[{**CHANGES, "columns": columns}],
    )
    sink = begun(open_sink(pipeline))
    apply(sink, [event(0, "a", 1, "NEW"), event(1, "a", 2, "SENT"), event(2, "b", 1, "NEW")])
    written = changes_of(url)
    run_sql(url, "DELETE FROM status_change WHERE version = 2")
    due = Decoder(sink.target.mapping).decode_all([event(1, "a", 2, "SENT")])[0]
    known: dict[DocumentId, Stored] = {"a": Stored(present=True, order=1)}
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        for execute in (False, True):
            with session.transaction(execute=execute):
                rows = rewrite.write_changed(session.sink, due, known, execute=execute)
            assert [row.event.document for row in rows] == ["a"]
    assert changes_of(url) == written
