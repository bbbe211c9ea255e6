"""Test that one refused row never stops the others, whatever refuses it and with which code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from instep import errors
from instep.document.decoding import Decoder
from instep.document.guard import Verdict
from instep.pipeline.apply import transaction
from instep.pipeline.apply.batch import ProbeEvent
from instep.pipeline.apply.transaction import BatchTransaction
from instep.sinks import preparation
from instep.sinks.sink import Sink
from tests.support.databases import declare, open_sink, run_sql
from tests.support.transactions import (
    WRITER,
    Crash,
    apply,
    begun,
    event,
    log_holds_nothing,
    parked,
    record,
    table,
)

__all__ = ["open_sink"]

Open = Callable[..., Sink]


def _raise(code: str) -> list[str]:
    body = (
        "BEGIN IF NEW.print_status = ''BAD'' THEN RAISE EXCEPTION ''no''"
        f" USING ERRCODE = ''{code}''; END IF; RETURN NEW; END"
    )
    return [
        f"CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS '{body}'",
        (
            "CREATE TRIGGER judge BEFORE INSERT OR UPDATE ON contract_document FOR EACH ROW"
            " EXECUTE FUNCTION judge()"
        ),
    ]


def _fail(statement: str) -> list[str]:
    """Return a trigger whose own code fails."""
    body = f"BEGIN IF NEW.print_status = ''BAD'' THEN {statement}; END IF; RETURN NEW; END"
    return [_raise("P0001")[0].partition(" AS ")[0] + f" AS '{body}'", _raise("P0001")[1]]


def _deferred() -> list[str]:
    constraint = (
        "AFTER INSERT OR UPDATE ON contract_document DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
    )
    return [
        _raise("P0001")[0],
        f"CREATE CONSTRAINT TRIGGER judge {constraint} EXECUTE FUNCTION judge()",
    ]


def _signal(number: int) -> list[str]:
    signal = f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no', MYSQL_ERRNO = {number}"
    body = f"BEGIN IF NEW.print_status = 'BAD' THEN {signal}; END IF; END"
    return [
        f"CREATE TRIGGER j_{verb} BEFORE {verb} ON contract_document FOR EACH ROW {body}"
        for verb in ("INSERT", "UPDATE")
    ]


def _sqlite(action: str) -> list[str]:
    when = "WHEN NEW.print_status = 'BAD' BEGIN"
    return [
        f"CREATE TRIGGER j_{verb} AFTER {verb} ON contract_document {when} {action}; END"
        for verb in ("INSERT", "UPDATE")
    ]


ROW_SECURITY = [
    "DO 'BEGIN CREATE ROLE restricted LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END'",
    "GRANT ALL ON ALL TABLES IN SCHEMA public TO restricted",
    "ALTER TABLE contract_document ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY mine ON contract_document USING (true) WITH CHECK (print_status <> 'BAD')",
]
REFUSALS: dict[str, tuple[str, list[str]]] = {
    "postgres: a code of the user": ("postgres", _raise("ZZ999")),
    "postgres: a code that means a missing table": ("postgres", _raise("42P01")),
    "postgres: a code that means a missing right": ("postgres", _raise("42501")),
    "postgres: a code that means an internal error": ("postgres", _raise("XX000")),
    "postgres: a table that the trigger lacks": (
        "postgres",
        _fail("INSERT INTO nowhere VALUES (1)"),
    ),
    "postgres: a deferred constraint trigger": ("postgres", _deferred()),
    "postgres: row security": ("postgres", ROW_SECURITY),
    "mariadb: a number of the user": ("mariadb", _signal(5678)),
    "mariadb: a number that means a missing table": ("mariadb", _signal(1146)),
    "mysql: a number of the user": ("mysql", _signal(5678)),
    "mysql: a number that means a missing right": ("mysql", _signal(1142)),
    "sqlite: the whole transaction is undone": ("sqlite", _sqlite("SELECT RAISE(ROLLBACK, 'no')")),
    "sqlite: the trigger itself fails": ("sqlite", _sqlite("SELECT json('{')")),
    "sqlite: raised as a failure": ("sqlite", _sqlite("SELECT RAISE(FAIL, 'no')")),
}


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_one_row_is_refused(
    refusal: str, guarantee: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    kind, statements = REFUSALS[refusal]
    url = new_database(kind)
    preparation.prepare(declare(url))
    run_sql(url, *statements)
    if statements is ROW_SECURITY:
        url = url.replace("instep@", "restricted@")
    sink = begun(open_sink(declare(url, guarantee=guarantee)))
    apply(sink, [event(0, "a", 1), event(1, "b", 1), event(2, "c", 1)])
    outcome = apply(
        sink,
        [event(3, "a", 2), event(4, "b", 2, "BAD"), event(5, "new", 1, "BAD"), event(6, "c", 2)],
    )
    assert (
        outcome.verdicts[Verdict.APPLIED],
        outcome.verdicts[Verdict.PARKED],
        outcome.records,
    ) == (2, 2, 4)
    assert table(url) == [("a", "PRINTED", 2), ("b", "PRINTED", 1), ("c", "PRINTED", 2)]
    assert parked(url) == [(4, "b", "REFUSED_BY_TARGET"), (5, "new", "REFUSED_BY_TARGET")]
    assert sink.ledger.positions()[0].next_offset == 7


PARENT = {
    "sqlite": "CREATE TABLE contract_document (doc_no VARCHAR(40) NOT NULL PRIMARY KEY,"
    " print_status VARCHAR(20),"
    " print_version BIGINT, references_to VARCHAR(20)"
    " REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)",
    "postgres": "CREATE TABLE contract_document (doc_no VARCHAR(40) NOT NULL PRIMARY KEY,"
    " print_status VARCHAR(20),"
    " print_version BIGINT, references_to VARCHAR(20)"
    " REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)",
}


@pytest.mark.parametrize("kind", PARENT)
def test_a_foreign_key_that_is_checked_at_the_commit(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database(kind)
    run_sql(
        url,
        "CREATE TABLE parent (id VARCHAR(20) NOT NULL PRIMARY KEY)",
        "INSERT INTO parent VALUES ('p')",
        PARENT[kind],
    )
    columns = {"print_status": "status", "print_version": "version", "references_to": "parent"}
    sink = begun(open_sink(declare(url, columns=columns)))
    records = [
        event(number, f"d{number}", 1, parent="nobody" if number in (3, 17) else "p")
        for number in range(20)
    ]
    assert apply(sink, records).verdicts[Verdict.PARKED] == 2
    assert len(table(url)) == 18
    assert parked(url) == [(3, "d3", "PARENT_MISSING"), (17, "d17", "PARENT_MISSING")]


def test_a_delete_that_is_refused_at_the_commit(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("sqlite")
    preparation.prepare(declare(url))
    reference = "VARCHAR(20) REFERENCES contract_document (doc_no) DEFERRABLE INITIALLY DEFERRED"
    run_sql(url, f"CREATE TABLE child (of {reference})")
    sink = begun(open_sink(declare(url)))
    apply(sink, [event(0, "a", 1), event(1, "b", 1)])
    run_sql(url, "INSERT INTO child VALUES ('a')")
    assert apply(sink, [record(2, "a", None), record(3, "b", None)]).verdicts[Verdict.PARKED] == 1
    assert table(url) == [("a", "PRINTED", 1)]
    assert parked(url) == [(2, "a", "REFUSED_BY_TARGET")]


def test_a_problem_of_the_whole_table_parks_no_document(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    """Use the codes that a trigger may raise for one row, when no row can be written at all."""
    url = new_database("postgres")
    sink = begun(open_sink(declare(url)))
    run_sql(url, "REVOKE INSERT ON instep_history FROM CURRENT_USER")
    with pytest.raises(errors.PermissionLost, match="instep_history"):
        apply(sink, [event(0, "a", 1)])
    run_sql(
        url,
        "GRANT INSERT ON instep_history TO CURRENT_USER",
        "ALTER TABLE contract_document RENAME TO elsewhere",
    )
    with pytest.raises(errors.TargetChanged, match="contract_document"):
        apply(sink, [event(0, "a", 1)])
    assert run_sql(url, "SELECT count(*) FROM instep_parked") == [(0,)]


def test_good_parts_of_a_batch_with_refused_rows_are_kept(
    database_url: str, open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "ISOLATED_RECORDS", 10)
    preparation.prepare(
        declare(database_url, columns={**declare(database_url).columns, "pages": "pages"})
    )
    longest = "CHAR_LENGTH" if database_url.startswith("m") else "LENGTH"
    if database_url.startswith("sqlite"):
        run_sql(database_url, *_sqlite("SELECT RAISE(ABORT, 'no')"))
    else:
        run_sql(
            database_url, f"ALTER TABLE contract_document ADD CHECK ({longest}(print_status) <> 3)"
        )
    sink = begun(open_sink(declare(database_url)))
    records = [
        event(number, f"d{number:02}", 1, "BAD" if number % 7 == 0 else "PRINTED")
        for number in range(40)
    ]
    commits: list[int] = []

    def die(moment: ProbeEvent) -> None:
        if moment.step == 8:
            commits.append(moment.last)
            if moment.last == 29:
                raise Crash

    with pytest.raises(Crash):
        BatchTransaction(WRITER, 0, records, log_holds_nothing, die).apply(
            sink, Decoder(sink.target.mapping)
        )
    assert sink.ledger.positions()[0].next_offset == 20
    assert apply(sink, records).records == 20
    assert len(table(database_url)) == 34
    assert [row[0] for row in parked(database_url)] == [0, 7, 14, 21, 28, 35]
    assert commits[-1] == 29


SLEEP = {
    "postgres": [
        (
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END'"
        ),
        (
            "CREATE TRIGGER slow BEFORE INSERT ON contract_document FOR EACH ROW"
            " EXECUTE FUNCTION slow()"
        ),
    ],
    "mariadb": [
        (
            "CREATE TRIGGER slow BEFORE INSERT ON contract_document FOR EACH ROW"
            " SET @slept = SLEEP(0.3)"
        )
    ],
}
LIMIT: dict[str, Callable[[str], list[str]]] = {
    "postgres": lambda name: [f"ALTER DATABASE {name} SET statement_timeout = '1050ms'"],
    "mariadb": lambda name: [
        f"CREATE USER u_{name}@'127.0.0.1' WITH MAX_STATEMENT_TIME 1.05",
        f"GRANT ALL ON {name}.* TO u_{name}@'127.0.0.1'",
    ],
}


@pytest.mark.parametrize("kind", SLEEP)
def test_a_database_timeout_leads_to_smaller_transactions(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database(kind)
    name = url.rpartition("/")[2]
    preparation.prepare(declare(url))
    run_sql(url, *SLEEP[kind], *LIMIT[kind](name))
    limited = url.replace("root@", f"u_{name}@")
    sink = begun(open_sink(declare(limited)))
    outcome = apply(sink, [event(number, f"d{number}", 1) for number in range(8)])
    assert (outcome.records, outcome.verdicts[Verdict.APPLIED]) == (8, 8)
    assert len(table(url)) == 8
    if kind == "mariadb":
        run_sql(url, f"DROP USER u_{name}@'127.0.0.1'")


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_statements_stay_below_the_servers_packet_size(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database(kind)
    [(before,)] = run_sql(url, "SELECT @@GLOBAL.max_allowed_packet")
    pipeline = declare(
        url,
        columns={
            "print_status": "status",
            "print_version": "version",
            "note": "note",
            "copy": "note",
        },
    )
    preparation.prepare(pipeline)
    try:
        run_sql(url, "SET GLOBAL max_allowed_packet = 1048576")
        sink = begun(open_sink(pipeline))
        texts = {
            "wide": "\u5370" * 80_000,
            "quoted": "'" * 400_000,
            "plain": "x" * 400_000,
            "huge": "x" * 600_000,
        }
        records: list[Any] = [
            event(number, f"d{number:04}", 1, note="\u5370" * 300) for number in range(2_000)
        ]
        records += [
            event(2_000 + number, name, 1, note=text)
            for number, (name, text) in enumerate(texts.items())
        ]
        decoder = Decoder(sink.target.mapping, sink.record_bytes_max)
        outcome = BatchTransaction(WRITER, 0, records, log_holds_nothing).apply(sink, decoder)
        assert (outcome.records, outcome.dead) == (2_004, 1)
        # each text is in two columns, and a quote takes two bytes in a statement
        assert parked(url) == [(2_001, "quoted", "REFUSED_BY_TARGET")]
        assert run_sql(url, "SELECT count(*) FROM contract_document") == [(2_002,)]
    finally:
        run_sql(url, f"SET GLOBAL max_allowed_packet = {before}")


def test_the_order_column_may_hold_infinity(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("postgres")
    changes: dict[str, Any] = {
        "event": {
            "document": "doc_id",
            "status": "status",
            "order": "updated_at",
            "at": "updated_at",
        },
        "columns": {"print_status": "status", "printed_at": "updated_at"},
    }
    sink = begun(open_sink(declare(url, **changes)))
    for name, at in (
        ("never", "infinity"),
        ("ever", "-infinity"),
        ("old", "0044-03-15 BC"),
        ("far", "20260-01-01"),
    ):
        run_sql(
            url, f"INSERT INTO contract_document (doc_no, printed_at) VALUES ('{name}', '{at}')"
        )
    first = [
        event(0, "never", 0),
        event(1, "ever", 0),
        event(2, "old", 0),
        event(3, "far", 0),
        event(4, "new", 0),
    ]
    verdicts = apply(sink, first).verdicts
    assert (verdicts[Verdict.APPLIED], verdicts[Verdict.STALE]) == (3, 2)
    second = [
        event(5, "never", 0),
        record(6, "far", None),
        event(7, "ever", 0, updated_at=1_890_000_000_000),
    ]
    verdicts = apply(sink, second).verdicts
    assert (verdicts[Verdict.APPLIED], verdicts[Verdict.STALE]) == (2, 1)
    rows = run_sql(
        url, "SELECT doc_no FROM contract_document WHERE print_status IS NOT NULL ORDER BY doc_no"
    )
    assert rows == [("ever",), ("new",), ("old",)]


def test_a_unique_value_can_move_from_one_document_to_another(
    database_url: str, open_sink: Open
) -> None:
    """Allow it also in one batch: once a document gives a value up, another may take it."""
    columns = {"print_status": "status", "print_version": "version", "slot": "slot"}
    rest = "print_status VARCHAR(20), print_version BIGINT, slot INTEGER UNIQUE"
    run_sql(
        database_url,
        f"CREATE TABLE contract_document (doc_no VARCHAR(40) NOT NULL PRIMARY KEY, {rest})",
    )
    sink = begun(open_sink(declare(database_url, columns=columns)))
    apply(
        sink,
        [
            event(0, "a", 1, slot=1),
            event(1, "a", 2, slot=2),
            event(2, "c", 1, slot=1),
            event(3, "b", 1, slot=3),
            event(4, "b", 2, slot=None),
            event(5, "c", 2, slot=3),
            event(6, "d", 1, slot=2),
            event(7, "a", 3, slot=9),
        ],
    )
    assert table(database_url, "doc_no, print_version, slot") == [
        ("a", 3, 9),
        ("b", 2, None),
        ("c", 2, 3),
    ]
    assert parked(database_url) == [(6, "d", "REFUSED_BY_TARGET")]
