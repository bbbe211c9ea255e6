"""Test tables with a composite key: written, guarded, deleted, parked, looked up and read by it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from instep import errors
from instep.document import guard
from instep.document.decoding import Decoder, Record
from instep.kafka.connection import Cluster
from instep.operate import timeline
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks import inspection, preparation, scan
from instep.sinks.sink import Sink
from tests.support.databases import declare, open_sink, run_sql
from tests.support.guard_model import Model
from tests.support.transactions import apply, begun, parked, record

__all__ = ["open_sink"]

Open = Callable[..., Sink]

KEY: dict[str, Any] = {"key": ["tenant", "no"], "key_type": ["text", "bigint"]}
COLUMNS = {"print_status": "status", "print_version": "version"}
EVENT: dict[str, Any] = {"document": ["tenant", "no"], "status": "status", "order": "version"}
UNORDERED = {name: EVENT[name] for name in ("document", "status")}
TEXT = {
    "mysql": "VARCHAR(40) COLLATE utf8mb4_0900_ai_ci",
    "mariadb": "VARCHAR(40) COLLATE utf8mb4_general_ci",
}


def event(
    offset: int, tenant: str, no: int, version: int, status: str = "PRINTED", **fields: Any
) -> Record:
    body = {"tenant": tenant, "no": no, "status": status, "version": version, **fields}
    return record(offset, f"{tenant}/{no}", body)


def rows(url: str, columns: str = "tenant, no, print_status, print_version") -> list[Any]:
    return run_sql(url, f"SELECT {columns} FROM contract_document ORDER BY tenant, no")


@pytest.mark.parametrize("trusting", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_batches_in_any_order_equal_one_by_one(
    database_url: str, open_sink: Open, ordered: bool, trusting: bool
) -> None:
    """Mix fresh, stale, repeated, partial and deleted documents in batches, against the model."""
    columns = {**COLUMNS, "note": "note"}
    sink = begun(
        open_sink(
            declare(database_url, **KEY, event=EVENT if ordered else UNORDERED, columns=columns)
        )
    )
    model = Model(guard.Rules(ordered=ordered), {}, {}, tuple(columns))
    decoder, dice, offset, expected = (
        Decoder(sink.target.mapping),
        random.Random(f"{ordered} {trusting}"),
        0,
        [],
    )
    for _ in range(30):
        batch = []
        for _ in range(dice.choice([1, 2, 3, 8])):
            tenant, no, version = dice.choice(["a", "b"]), dice.randrange(-2, 3), dice.randrange(40)
            note = {"note": "n"} if dice.random() < 0.5 else {}
            deleted = record(offset, f"{tenant}/{no}", None)
            batch.append(
                deleted
                if dice.random() < 0.05
                else event(offset, tenant, no, version, f"S{offset}", **note)
            )
            offset += 1
        sink.table.expect_late_rows(0 if trusting else 100)
        apply(sink, batch)
        expected += [(one.offset, model.apply(one).value) for one in decoder.decode_all(batch)[0]]
        found = {
            f"{row[0]}/{row[1]}": row[2:]
            for row in rows(database_url, "tenant, no, print_status, note")
        }
        assert found == {
            document: (row["print_status"], row.get("note")) for document, row in model.rows.items()
        }
    quoted = "`offset`" if database_url.startswith("m") else '"offset"'
    assert (
        run_sql(database_url, f"SELECT {quoted}, verdict FROM instep_history ORDER BY {quoted}")
        == expected
    )


@pytest.mark.parametrize("document", ["day", "@key"])
def test_the_only_key_column_may_be_a_date(
    database_url: str, open_sink: Open, document: str
) -> None:
    columns = "day DATE NOT NULL PRIMARY KEY, print_status VARCHAR(20), print_version BIGINT"
    run_sql(database_url, f"CREATE TABLE contract_document ({columns})")
    of_event = {**EVENT, "document": document}
    sink = begun(open_sink(declare(database_url, key="day", event=of_event, columns=COLUMNS)))

    def of_day(offset: int, day: int, version: int) -> Record:
        body = {"day": f"2026-05-0{day}", "status": f"S{version}", "version": version}
        return record(offset, f"2026-05-0{day}", body)

    apply(sink, [of_day(0, 1, 1), of_day(1, 2, 1), of_day(2, 1, 3)])
    apply(sink, [of_day(3, 1, 2), record(4, "2026-05-02", None), of_day(5, 3, 1)])
    apply(sink, [of_day(6, 2, 1)])

    found = run_sql(database_url, "SELECT print_status FROM contract_document ORDER BY day")
    assert found == [("S3",), ("S1",)]
    looked_up = sink.table.look_up(["2026-05-01"])
    assert looked_up["2026-05-01"]["print_status"] == "S3"


def test_a_loose_collation_never_merges_two_documents(database_url: str, open_sink: Open) -> None:
    kind = database_url.partition(":")[0]
    text = TEXT.get(kind, "TEXT COLLATE NOCASE" if kind == "sqlite" else "TEXT COLLATE loose")
    loosen = (
        "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    )
    table = (
        f"CREATE TABLE contract_document (tenant {text} NOT NULL, no INTEGER NOT NULL,"
        " print_status VARCHAR(20),"
        " print_version BIGINT, PRIMARY KEY (no, tenant))"
    )
    run_sql(database_url, *([loosen] if "loose" in text else []), table)
    sink = begun(
        open_sink(declare(database_url, key=["tenant", "no"], event=EVENT, columns=COLUMNS))
    )
    assert sink.target.loose_key
    apply(
        sink,
        [
            event(0, "a", 1, 1, "FIRST"),
            event(1, "A", 1, 2, "OTHER"),
            event(2, "A", 2, 1),
            event(3, "a", 1, 3),
        ],
    )
    apply(sink, [record(4, "A/1", None), record(5, "A/2", None), event(6, "b", 1, 1)])
    assert rows(database_url) == [("a", 1, "PRINTED", 3), ("b", 1, "PRINTED", 1)]
    assert parked(database_url) == [(1, "A/1", "ID_TAKEN_FOR_ANOTHER"), (4, "A/1", "WAITS_BEHIND")]


def test_every_type_of_key_part_is_written_looked_up_and_read(
    database_url: str, open_sink: Open
) -> None:
    table_key = ["area", "owner", "day", "no"]
    pipeline = declare(
        database_url,
        key=table_key,
        key_type=["varchar(20)", "uuid", "date", "integer"],
        key_separator=":",
        event={"document": "@key", "status": "status", "order": "version"},
        columns=COLUMNS,
    )
    sink = begun(open_sink(pipeline))
    owner = "00000000-0000-0000-0000-00000000000a"
    ids = [
        f"{area}:{owner}:2026-0{1 + number % 2}-28:{number}"
        for area in ("n", "s")
        for number in range(-1, 4)
    ]
    body = {"status": "PRINTED", "version": 1}
    apply(sink, [record(offset, one, body) for offset, one in enumerate(ids)])
    apply(
        sink,
        [record(10, ids[0], {**body, "version": 2}), record(11, ids[1], {**body, "version": 0})],
    )
    with sink.snapshot():
        assert sorted(row[0] for page in scan.rows(sink) for row in page) == sorted(ids)
    assert sink.table.look_up(ids[:2]).keys() == set(ids[:2])
    assert sink.table.look_up([ids[0]])[ids[0]]["print_version"] in (2, "2")
    assert run_sql(database_url, "SELECT count(*) FROM contract_document") == [(len(ids),)]


def test_a_table_is_read_completely_in_pages(
    database_url: str, open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "PAGE_ROWS", 3)
    sink = begun(open_sink(declare(database_url, **KEY, event=EVENT, columns=COLUMNS)))
    apply(sink, [event(number, f"t{number % 3}", number % 7 - 3, 1) for number in range(21)])
    with sink.snapshot():
        pages = [[row[0] for row in page] for page in scan.rows(sink)]
    assert [len(page) for page in pages] == [3] * 7
    assert sorted(one for page in pages for one in page) == sorted(
        f"t{n % 3}/{n % 7 - 3}" for n in range(21)
    )


def no_cluster() -> Cluster:
    raise AssertionError("the history knows the document: no cluster is asked")


def test_a_document_is_found_by_its_joined_id(database_url: str, open_sink: Open) -> None:
    pipeline = declare(database_url, **KEY, event=EVENT, columns=COLUMNS)
    sink = begun(open_sink(pipeline))
    apply(sink, [event(0, "acme", 7, 1), event(1, "acme", 8, 1)])
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        assert [
            moment.verdict for moment in timeline.read(session, "acme/7", no_cluster).events
        ] == ["applied"]
        with pytest.raises(errors.NoSuchDocument, match="expected tenant/no"):
            timeline.read(session, "acme", no_cluster)


@pytest.mark.parametrize(
    ("statement", "key", "words", "remedy"),
    [
        (
            "tenant VARCHAR(9) NOT NULL, no INTEGER NOT NULL, PRIMARY KEY (tenant, no)",
            "no",
            "column 'no' is the key and not unique: the table's key is (tenant, no)",
            'set key = ["tenant", "no"]',
        ),
        (
            "tenant VARCHAR(9) NOT NULL, no INTEGER NOT NULL",
            ["tenant", "no"],
            "columns 'tenant', 'no' are the key and not unique",
            "ADD UNIQUE",
        ),
        (
            "tenant VARCHAR(9), no INTEGER NOT NULL, UNIQUE (tenant, no)",
            ["tenant", "no"],
            "column 'tenant' is the key and may be null",
            "NOT NULL",
        ),
        (
            "tenant VARCHAR(9) NOT NULL, no INTEGER NOT NULL, PRIMARY KEY (tenant, no)",
            ["tenant", "nr"],
            "has no column 'nr'; did you mean 'no'?",
            "correct `key`",
        ),
        (
            "tenant FLOAT NOT NULL, no INTEGER NOT NULL, PRIMARY KEY (tenant, no)",
            ["tenant", "no"],
            "a key column holds text, integers, decimal numbers, UUIDs, dates, times or booleans",
            "another unique column",
        ),
    ],
)
def test_a_key_that_does_not_fit_names_the_setting_to_write(
    database_url: str, statement: str, key: Any, words: str, remedy: str
) -> None:
    run_sql(
        database_url,
        "CREATE TABLE contract_document (print_status VARCHAR(9),"
        f" print_version BIGINT, {statement})",
    )
    event = {**EVENT, "document": "doc_id"}
    (fault, *_) = preparation.faults(declare(database_url, key=key, event=event, columns=COLUMNS))
    assert words in fault.what
    assert remedy in fault.remedy


@pytest.mark.parametrize(
    ("kind", "days"),
    [
        ("date", ("2026-05-01", "2031-05-01")),
        ("timestamptz", ("2026-05-01T10:00:00Z", "2031-05-01T10:00:00Z")),
    ],
)
def test_a_partitioned_table_of_postgresql_is_supported(
    kind: str, days: tuple[str, str], new_database: Callable[[str], str], open_sink: Open
) -> None:
    """Use a key that contains the column by which the table is partitioned."""
    url = new_database("postgres")
    run_sql(
        url,
        f"CREATE TABLE contract_document (no numeric(12), day {kind}, print_status text,"
        " print_version bigint,"
        " PRIMARY KEY (no, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE y2026 PARTITION OF contract_document FOR VALUES"
        " FROM ('2026-01-01') TO ('2027-01-01')",
    )
    settings = {
        "key": ["no", "day"],
        "event": {**EVENT, "document": ["no", "day"]},
        "columns": COLUMNS,
    }
    sink = begun(open_sink(declare(url, **settings)))
    body = {"no": 7, "status": "PRINTED", "version": 1}
    apply(
        sink, [record(0, "7", {**body, "day": days[0]}), record(1, "7", {**body, "day": days[1]})]
    )
    apply(
        sink,
        [
            record(2, "7", {**body, "day": days[0], "version": 2}),
            record(3, "7", {**body, "day": days[0], "version": 1}),
        ],
    )
    assert run_sql(url, "SELECT no, print_version FROM y2026") == [(7, 2)]
    assert parked(url) == [(1, f"7/{days[1]}", "REFUSED_BY_TARGET")]
    with sink.snapshot():
        assert list(scan.rows(sink)) == [[(f"7/{days[0]}", "PRINTED", "2")]]
    apply(sink, [record(4, f"7/{days[0]}", None)])
    assert run_sql(url, "SELECT no FROM y2026") == []


def test_a_time_can_be_part_of_the_key(database_url: str, open_sink: Open) -> None:
    if database_url.startswith("sqlite"):
        pytest.skip("refused there: SQLite keeps times as text of any form")
    kind = "timestamptz" if database_url.startswith("postgres") else "DATETIME(6)"
    run_sql(
        database_url,
        f"CREATE TABLE contract_document (no DECIMAL(10), made {kind},"
        " print_status VARCHAR(9), print_version BIGINT,"
        " PRIMARY KEY (no, made))",
    )
    event = {**EVENT, "document": ["no", "made"]}
    sink = begun(open_sink(declare(database_url, key=["no", "made"], event=event, columns=COLUMNS)))
    body = {"no": 7, "made": "2026-05-01T12:00:00.5+02:00", "status": "PRINTED", "version": 1}
    apply(
        sink,
        [record(0, "7", body), record(1, "7", {**body, "version": 2, "made": 1_777_629_600_500})],
    )
    apply(sink, [record(2, "7", {**body, "version": 1}), record(3, "8", {**body, "no": 8})])
    ids = ["7/2026-05-01T10:00:00.500000Z", "8/2026-05-01T10:00:00.500000Z"]
    with sink.snapshot():
        assert [row[0] for page in scan.rows(sink) for row in page] == ids
    assert run_sql(database_url, "SELECT no, print_version FROM contract_document ORDER BY no") == [
        (7, 2),
        (8, 1),
    ]
    apply(sink, [record(4, ids[0], None)])
    assert run_sql(database_url, "SELECT no FROM contract_document") == [(8,)]


def test_a_view_is_refused(database_url: str) -> None:
    run_sql(
        database_url,
        "CREATE TABLE base (doc_no VARCHAR(9) PRIMARY KEY)",
        "CREATE VIEW contract_document AS SELECT * FROM base",
    )
    (fault, *_) = preparation.faults(declare(database_url))
    assert (fault.what, fault.remedy) == (
        "contract_document is a view",
        "name the table behind it as `table` in the settings",
    )


def test_a_generated_column_supports_binary_uuids_of_mysql(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("mysql")
    columns = "print_status VARCHAR(9), print_version BIGINT"
    run_sql(url, f"CREATE TABLE contract_document (doc_no BINARY(16) PRIMARY KEY, {columns})")
    (fault, *_) = preparation.faults(declare(url, columns=COLUMNS))
    assert "column 'doc_no' is binary(16), a type that instep does not write" in fault.what
    one = "0192f6a8-5d3e-7a44-9f0d-6f0e2f6c1a11"
    run_sql(
        url,
        fault.remedy.partition(": ")[2],
        f"INSERT INTO contract_document (doc_no) VALUES (UUID_TO_BIN('{one}'))",
    )
    event = {"document": "@key", "status": "status", "order": "version"}
    sink = begun(
        open_sink(declare(url, key="doc_no_text", missing="park", event=event, columns=COLUMNS))
    )
    apply(sink, [record(0, one, {"status": "PRINTED", "version": 1})])
    assert run_sql(url, "SELECT doc_no_text, print_status FROM contract_document") == [
        (one, "PRINTED")
    ]


def test_the_key_is_checked_again_while_the_pipeline_runs(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("postgres")
    run_sql(
        url,
        "CREATE TABLE contract_document (tenant text, no bigint, print_status text,"
        " print_version bigint,"
        " PRIMARY KEY (tenant, no))",
    )
    pipeline = declare(url, key=["tenant", "no"], event=EVENT, columns=COLUMNS)
    sink = open_sink(pipeline)
    run_sql(url, "ALTER TABLE contract_document ALTER COLUMN no TYPE integer")
    with pytest.raises(
        errors.TargetChanged, match="column 'no' was bigint NOT NULL and is integer NOT NULL now"
    ):
        inspection.refuse_constrained(sink.target, pipeline)


@pytest.mark.parametrize("kind", ["char(10)", "citext"])
def test_a_key_of_padded_or_case_insensitive_text_is_read_completely(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("postgres")
    if kind == "citext":
        run_sql(url, "CREATE EXTENSION citext")
    run_sql(
        url,
        f"CREATE TABLE contract_document (tenant {kind}, no {kind}, print_status text,"
        " print_version bigint,"
        " PRIMARY KEY (tenant, no))",
    )
    sink = begun(
        open_sink(
            declare(url, key=["tenant", "no"], event={**EVENT, "document": "@key"}, columns=COLUMNS)
        )
    )
    body = {"status": "PRINTED", "version": 1}
    apply(sink, [record(0, "a/b", body), record(1, "a/B", body), record(2, "c/b", body)])
    apply(sink, [record(3, "a/b", {**body, "version": 2})])
    ids = ["a/b", "c/b"] if kind == "citext" else ["a/B", "a/b", "c/b"]
    with sink.snapshot():
        assert sorted(row[0] for page in scan.rows(sink) for row in page) == ids
    with sink.transaction():
        assert sink.table.locked_rows(["a/b"]) == {"a/b": ("PRINTED", "2")}


def test_a_single_padded_key_is_read_completely(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("postgres")
    run_sql(
        url,
        "CREATE TABLE contract_document (no char(10) PRIMARY KEY, print_status text,"
        " print_version bigint)",
    )
    sink = begun(
        open_sink(declare(url, key="no", event={**EVENT, "document": "@key"}, columns=COLUMNS))
    )
    apply(sink, [record(0, "a", {"status": "PRINTED", "version": 1})])
    with sink.snapshot():
        assert list(scan.rows(sink)) == [[("a", "PRINTED", "1")]]
