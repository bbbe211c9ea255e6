"""Test ids that a table's key treats as equal: the first keeps the row, the others are parked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from instep import errors
from instep.document.decoding import Decoder
from instep.document.guard import Verdict
from instep.pipeline.apply.transaction import BatchTransaction
from instep.sinks import inspection, preparation
from instep.sinks.sink import Sink
from tests.support.databases import declare, open_sink, run_sql
from tests.support.transactions import (
    WRITER,
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

REST = "print_status VARCHAR(20), print_version BIGINT, slot INTEGER"
COLUMNS = {"print_status": "status", "print_version": "version"}
# keys as teams have them, and two ids that each key treats as equal
LOOSE_KEYS = [
    ("sqlite", "TEXT COLLATE NOCASE", "a", "A"),
    ("sqlite", "TEXT COLLATE RTRIM", "a", "a  "),
    ("postgres", "TEXT COLLATE loose", "a", "A"),
    ("mariadb", "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "a", "A"),
    ("mariadb", "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "a", "a "),
    ("mariadb", "VARCHAR(40) CHARACTER SET latin1 COLLATE latin1_swedish_ci", "e", "\u00e9"),
    ("mariadb", "CHAR(40) CHARACTER SET utf8mb3 COLLATE utf8mb3_general_ci", "a", "A"),
    ("mysql", "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci", "a", "A"),
    ("mysql", "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_as_cs", "\u00e9", "e\u0301"),
    ("mysql", "VARCHAR(40) CHARACTER SET latin1 COLLATE latin1_swedish_ci", "a", "A"),
]


LOOSE_COLLATION = (
    "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
)


def make(url: str, key: str) -> None:
    if "loose" in key:
        run_sql(url, LOOSE_COLLATION)
    run_sql(url, f"CREATE TABLE contract_document (doc_no {key} NOT NULL PRIMARY KEY, {REST})")


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("kind", "key", "one", "other"),
    LOOSE_KEYS,
    ids=[f"{kind} {key.split()[-1]}" for kind, key, _, _ in LOOSE_KEYS],
)
def test_the_first_of_two_similar_ids_keeps_the_row(
    kind: str,
    key: str,
    one: str,
    other: str,
    ordered: bool,
    new_database: Callable[[str], str],
    open_sink: Open,
) -> None:
    url = new_database(kind)
    make(url, key)
    changes = {} if ordered else {"event": {"document": "doc_id", "status": "status"}}
    sink = begun(open_sink(declare(url, columns=COLUMNS, **changes)))
    assert sink.target.loose_key
    apply(
        sink,
        [
            event(0, "x", 1),
            event(1, one, 1, "FIRST"),
            event(2, other, 1, "OTHER"),
            event(3, one, 2, "NEXT"),
        ],
    )
    apply(sink, [event(4, other, 9, "LATER"), event(5, "y", 1), event(6, one, 3, "LAST")])
    apply(sink, [event(7, one + "b", 1), event(8, "x", 2), record(9, other, None)])
    rows = {name.rstrip(" "): (status, version) for name, status, version in table(url)}
    assert rows == {
        "x": ("PRINTED", 2),
        "y": ("PRINTED", 1),
        one: ("LAST", 3),
        one + "b": ("PRINTED", 1),
    }
    assert parked(url) == [
        (2, other, "ID_TAKEN_FOR_ANOTHER"),
        (4, other, "WAITS_BEHIND"),
        (9, other, "WAITS_BEHIND"),
    ]


@pytest.mark.parametrize(
    ("kind", "key", "one", "other"), [LOOSE_KEYS[0], LOOSE_KEYS[2], LOOSE_KEYS[3], LOOSE_KEYS[7]]
)
def test_an_existing_row_belongs_to_its_own_id(
    kind: str, key: str, one: str, other: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database(kind)
    make(url, key)
    run_sql(url, f"INSERT INTO contract_document (doc_no, slot) VALUES ('{one}', 7)")
    sink = begun(open_sink(declare(url, columns=COLUMNS)))
    assert apply(sink, [event(0, other, 1), event(1, "z", 1)]).verdicts[Verdict.PARKED] == 1
    assert (
        apply(sink, [record(2, "A\u00e9\u00e9", None), event(3, one, 1)]).verdicts[Verdict.APPLIED]
        == 1
    )
    assert [(row[0].rstrip(" "), row[1]) for row in table(url, "doc_no, slot")] == [
        (one, 7),
        ("z", None),
    ]


LOOSEN = {
    "sqlite": [
        "ALTER TABLE contract_document RENAME TO old",
        f"CREATE TABLE contract_document (doc_no TEXT COLLATE NOCASE NOT NULL PRIMARY KEY, {REST})",
        "INSERT INTO contract_document SELECT * FROM old",
    ],
    "postgres": [
        LOOSE_COLLATION,
        "ALTER TABLE contract_document ALTER COLUMN doc_no TYPE text COLLATE loose",
    ],
    "mariadb": [
        (
            "ALTER TABLE contract_document MODIFY doc_no VARCHAR(40)"
            " COLLATE utf8mb4_general_ci NOT NULL"
        )
    ],
    "mysql": [
        (
            "ALTER TABLE contract_document MODIFY doc_no VARCHAR(40)"
            " COLLATE utf8mb4_0900_ai_ci NOT NULL"
        )
    ],
}
EXACT = {
    "mariadb": " CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin",
    "mysql": " CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin",
}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", LOOSEN)
def test_a_collation_that_changes_during_the_run_merges_no_documents(
    kind: str, ordered: bool, new_database: Callable[[str], str], open_sink: Open
) -> None:
    """Merge nothing while the sink does not know yet that the key is loose.

    The batch does not count as done.
    """
    url = new_database(kind)
    make(url, f"VARCHAR(40){EXACT.get(kind, '')}")
    changes = {} if ordered else {"event": {"document": "doc_id", "status": "status"}}
    pipeline = declare(url, columns=COLUMNS, **changes)
    sink = begun(open_sink(pipeline))
    apply(sink, [event(0, "a", 1, "FIRST"), event(1, "b", 1)])
    run_sql(url, *LOOSEN[kind])
    known = sink.target

    def same_table() -> None:
        inspection.refuse_constrained(known, pipeline)

    work = BatchTransaction(
        WRITER,
        0,
        [event(2, "A", 5, "OTHER"), event(3, "b", 2)],
        log_holds_nothing,
        same_table=same_table,
    )
    decoder = Decoder(sink.target.mapping)
    # the first time, a different count may come from another writer
    with pytest.raises((errors.Outrun, errors.TableConstrained, errors.TargetChanged)):
        work.apply(sink, decoder)
    with pytest.raises((errors.TableConstrained, errors.TargetChanged)):
        work.apply(sink, decoder)
    assert table(url) == [("a", "FIRST", 1), ("b", "PRINTED", 1)]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_unique_key_added_during_the_run_parks_the_refused_document(
    kind: str, ordered: bool, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database(kind)
    make(url, f"VARCHAR(40){EXACT[kind]}")
    changes = {} if ordered else {"event": {"document": "doc_id", "status": "status"}}
    pipeline = declare(url, columns={**COLUMNS, "slot": "slot"}, **changes)
    sink = begun(open_sink(pipeline))
    apply(sink, [event(0, "a", 1, "FIRST", slot=1), event(1, "b", 1, slot=2)])
    run_sql(url, "ALTER TABLE contract_document ADD UNIQUE (slot)")
    outcome = apply(
        sink,
        [event(2, "c", 1, "OTHER", slot=1), event(3, "b", 2, slot=3), event(4, "d", 1, slot=4)],
    )
    assert outcome.verdicts[Verdict.PARKED] == 1
    assert table(url) == [("a", "FIRST", 1), ("b", "PRINTED", 2), ("d", "PRINTED", 1)]
    assert parked(url) == [(2, "c", "REFUSED_BY_TARGET")]
    with pytest.raises(errors.TableConstrained):
        inspection.refuse_constrained(sink.target, pipeline)


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_an_id_that_a_char_column_would_change_is_a_dead_letter(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database(kind)
    make(url, "CHAR(20)")
    sink = begun(open_sink(declare(url, columns=COLUMNS)))
    apply(sink, [event(0, "a", 1, "FIRST"), event(1, "b", 1)])
    assert apply(sink, [event(2, "a ", 5), event(3, "b", 2), event(4, "a", 2, "NEXT")]).dead == 1
    assert [(row[0].rstrip(" "), *row[1:]) for row in table(url)] == [
        ("a", "NEXT", 2),
        ("b", "PRINTED", 2),
    ]
    assert run_sql(url, "SELECT reason FROM instep_dead_letters") == [("ID_TAKEN_FOR_ANOTHER",)]


def test_text_outside_the_columns_character_set_is_quarantined(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("mariadb")
    run_sql(
        url,
        "CREATE TABLE contract_document (doc_no VARCHAR(40) PRIMARY KEY,"
        " print_status VARCHAR(20), print_version BIGINT)"
        " CHARACTER SET latin1",
    )
    sink = begun(open_sink(declare(url, columns=COLUMNS)))
    outcome = apply(
        sink,
        [
            event(0, "a", 1, "GEDRUCKT \u20ac"),
            event(1, "b", 1, "\u5370\u5237"),
            event(2, "\u5370", 1),
        ],
    )
    assert (outcome.verdicts[Verdict.APPLIED], outcome.verdicts[Verdict.PARKED], outcome.dead) == (
        1,
        1,
        1,
    )
    assert table(url) == [("a", "GEDRUCKT \u20ac", 1)]
    assert parked(url) == [(1, "b", "NOT_IN_CHARACTER_SET")]
    assert run_sql(url, "SELECT reason FROM instep_dead_letters") == [("NOT_IN_CHARACTER_SET",)]


def test_a_deferrable_key_is_refused_with_the_statement_that_changes_it(
    new_database: Callable[[str], str],
) -> None:
    url = new_database("postgres")
    run_sql(
        url, f"CREATE TABLE contract_document (doc_no VARCHAR(40) PRIMARY KEY DEFERRABLE, {REST})"
    )
    pipeline = declare(url, columns=COLUMNS)
    with pytest.raises(errors.TargetUnfit, match="DEFERRABLE") as refused:
        preparation.prepare(pipeline)
    run_sql(url, refused.value.remedy)
    preparation.prepare(pipeline)
    inspection.inspect("contracts", pipeline)
