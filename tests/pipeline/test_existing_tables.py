"""Test the ten tables of the guide "Use your existing table", as printed, on every database."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import msgspec
import pytest

from instep import errors, settings, sinks
from instep.document.decoding import Decoder, Record
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.pipeline.apply import release as parked_documents
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.pipeline.apply.transaction import BatchTransaction
from instep.pipeline.runner import Runner
from instep.sinks import facts, inspection, preparation
from instep.sinks.sink import Sink
from tests.support.databases import run_sql
from tests.support.pipelines import Prove, drained
from tests.support.runs import send
from tests.support.transactions import WRITER, apply, begun, log_holds_nothing, parked, record

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "use-your-existing-table.md"
SECTIONS = dict(
    part.split("\n", 1) for part in GUIDE.read_text(encoding="utf-8").split("\n## ")[1:]
)
DATABASES = ["sqlite", "postgres", "mariadb", "mysql"]
STATEMENT_END = re.compile(r";\s*(?:$|\n(?=(?:CREATE|ALTER|GRANT)\b))")

Run = Callable[..., Runner]
# the record's key, the changes to the guide's event, the expected verdict
Sent = tuple[str, dict[str, Any] | None, str]


def section(number: int) -> str:
    return next(text for title, text in SECTIONS.items() if title.startswith(f"{number}. "))


def fenced(number: int, language: str) -> list[tuple[list[str], str]]:
    """Return the blocks of a section in a language, each with the words after the language."""
    found = re.findall(
        rf"^```{language}([^\n]*)\n(.*?)^```", section(number), re.MULTILINE | re.DOTALL
    )
    return [(words.split(), text) for words, text in found]


def statements(number: int, kind: str) -> list[str]:
    """Return the statements that create the guide's table on a database."""
    (text,) = [text for kinds, text in fenced(number, "sql") if kind in kinds]
    return [part.strip() for part in STATEMENT_END.split(text) if part.strip()]


def pipelines(number: int, url: str) -> dict[str, settings.Pipeline]:
    """Return the guide's settings, with the test's database."""
    ((_, text),) = fenced(number, "toml")
    declared = settings.parse(text, {"DB_PASSWORD": "secret"}).pipelines
    return {
        name: msgspec.structs.replace(pipeline, target=url) for name, pipeline in declared.items()
    }


def events(number: int) -> list[dict[str, Any]]:
    ((_, text),) = fenced(number, "json")
    return [json.loads(line) for line in text.splitlines()]


class Case(NamedTuple):
    own: list[str]  # rows that the application has before the first event
    first: list[Sent]
    then: list[Sent]
    query: str
    rows: list[Any]
    parked: Mapping[str, str] = MappingProxyType({})  # the reason of each parked document
    # a parked document, and the statement that makes its release possible
    cure: tuple[str, str] | None = None
    audit: list[Any] | None = None


def defaults(kind: str) -> Case:
    confused = kind != "postgres"
    return Case(
        ["INSERT INTO contract (contract_no, customer) VALUES ('C-1', 'Ann'), ('C-9', 'Eve')"],
        [("C-1", {}, "applied"), ("C-2", {"contract": "C-2"}, "applied")],
        [
            ("C-1", {}, "repeated"),
            ("C-1", {"version": 2, "status": "QUEUED"}, "stale"),
            ("C-1", {"version": 4, "status": "SENT"}, "applied"),
            ("c-1", {"contract": "c-1", "version": 5}, "parked" if confused else "applied"),
            ("C-2", None, "applied"),
        ],
        "SELECT contract_no, customer, print_status, print_version FROM contract"
        " WHERE contract_no <> 'c-2' ORDER BY contract_no",
        [("C-1", "Ann", "SENT", 4), ("C-9", "Eve", None, None)]
        if confused
        else [("C-1", "Ann", "SENT", 4), ("C-9", "Eve", None, None), ("c-1", None, "PRINTED", 5)],
        {"c-1": "ID_TAKEN_FOR_ANOTHER"} if confused else {},
    )


def composite(kind: str) -> Case:
    return Case(
        ["INSERT INTO invoice (tenant, no, amount) VALUES ('acme', 17, 99.5), ('beta', 17, 1)"],
        [("acme/17", {}, "applied"), ("acme/18", {"invoice": {"number": 18}}, "applied")],
        [
            ("acme/17", {}, "repeated"),
            ("acme/17", {"version": 1}, "stale"),
            ("beta/17", {"tenant": "beta", "version": 1}, "applied"),
            ("acme/18", None, "applied"),
            ("acme/19", {"invoice": {"number": 19}, "status": "x" * 21}, "parked"),
        ],
        "SELECT tenant, no, amount, status, version FROM invoice ORDER BY tenant, no",
        [("acme", 17, 99.5, "PAID", 2), ("beta", 17, 1, "PAID", 1)],
        {"acme/19": "TEXT_TOO_LONG"},
    )


ID, OTHER, UNKNOWN = (f"{digit}f9619ff-8b86-4011-b42d-00c04fc964ff" for digit in "678")


def uuid(kind: str) -> Case:
    loud = {"postgres": "applied"}.get(kind, "ignored")  # to a text key it is another id
    return Case(
        [f"INSERT INTO shipment (id, address) VALUES ('{ID}', 'Bonn'), ('{OTHER}', 'Kiel')"],
        [(ID, {}, "applied"), (UNKNOWN, {"shipment_id": UNKNOWN}, "ignored")],
        [
            (ID, {}, "repeated"),
            (ID, {"version": 1}, "stale"),
            (OTHER, {"shipment_id": OTHER, "version": 1}, "applied"),
            (OTHER, None, "ignored"),
            (OTHER.upper(), {"shipment_id": OTHER.upper(), "version": 2}, loud),
            (ID, {"version": 5, "status": "x" * 21}, "parked"),
        ],
        "SELECT id, address, status, version FROM shipment ORDER BY id",
        [(ID, "Bonn", "DELIVERED", 4), (OTHER, "Kiel", "DELIVERED", 2 if loud == "applied" else 1)],
        {ID: "TEXT_TOO_LONG"},
    )


def identity(kind: str) -> Case:
    return Case(
        ["INSERT INTO customer_order (customer) VALUES ('Ann'), ('Eve'), ('Kim')"],
        [("1", {"order_id": 1}, "applied"), ("2", {"order_id": 2}, "applied")],
        [
            ("1", {"order_id": 1}, "repeated"),
            ("1", {"order_id": 1, "step": 1}, "stale"),
            ("2", None, "parked"),
            ("4", {"order_id": 4}, "parked"),
            ("1", {"order_id": 1, "step": 3, "status": "DELIVERED"}, "applied"),
        ],
        "SELECT id, customer, delivery_status, delivery_no FROM customer_order ORDER BY id",
        [(1, "Ann", "DELIVERED", 3), (2, "Eve", "SHIPPED", 2), (3, "Kim", None, None)],
        {"2": "DELETE_NOT_ALLOWED", "4": "DOCUMENT_MISSING"},
        ("4", "INSERT INTO customer_order (customer) VALUES ('Ida')"),
    )


def foreign_keys(kind: str) -> Case:
    return Case(
        [
            "INSERT INTO customer VALUES ('K-7', 'Ann')",
            (
                "INSERT INTO sales_order (order_no, customer_no, note)"
                " VALUES ('O-1', 'K-7', 'ring twice')"
            ),
            "INSERT INTO sales_order_line VALUES ('O-1', 1, 'pen')",
        ],
        [("O-1", {}, "applied"), ("O-2", {"order": "O-2"}, "applied")],
        [
            ("O-2", {"order": "O-2"}, "repeated"),
            ("O-2", {"order": "O-2", "version": 0}, "stale"),
            ("O-3", {"order": "O-3", "customer": "K-8"}, "parked"),
            ("O-1", None, "parked"),
            ("O-2", None, "applied"),
        ],
        "SELECT o.order_no, customer_no, note, status, version, article FROM sales_order AS o"
        " LEFT JOIN sales_order_line AS l ON l.order_no = o.order_no ORDER BY o.order_no",
        [("O-1", "K-7", "ring twice", "CONFIRMED", 1, "pen")],
        {"O-3": "PARENT_MISSING", "O-1": "REFUSED_BY_TARGET"},
        ("O-3", "INSERT INTO customer VALUES ('K-8', 'Eve')"),
    )


def audit(kind: str) -> Case:
    return Case(
        ["INSERT INTO ticket VALUES ('T-9', 'Ann', 'ARCHIVED', 7)"],
        [
            ("T-1", {}, "applied"),
            ("T-1", {"version": 3, "status": "SOLVED"}, "applied"),
            ("T-2", {"ticket": "T-2"}, "applied"),
        ],
        [
            ("T-1", {"version": 3, "status": "SOLVED"}, "repeated"),
            ("T-1", {"version": 2}, "stale"),
            ("T-9", {"ticket": "T-9", "version": 8}, "parked"),
            ("T-1", {"version": 4}, "applied"),
            ("T-1", {"version": 5, "status": "CLOSED"}, "applied"),
            ("T-2", None, "applied"),
        ],
        "SELECT ticket_no, owner, status, version FROM ticket ORDER BY ticket_no",
        [("T-1", "nobody", "CLOSED", 5), ("T-9", "Ann", "ARCHIVED", 7)],
        {"T-9": "REFUSED_BY_TARGET"},
        audit=[
            ("T-1", "INSERT", "OPEN"),
            ("T-1", "UPDATE", "SOLVED"),
            ("T-1", "UPDATE", "OPEN"),
            ("T-1", "UPDATE", "CLOSED"),
            ("T-2", "INSERT", "OPEN"),
            ("T-2", "DELETE", "OPEN"),
            ("T-9", "INSERT", "ARCHIVED"),
        ],
    )


def row_security(kind: str) -> Case:
    hidden = kind == "postgres"
    american = ("us", "Eve", None, None) if hidden else ("eu", "Eve", "REPORTED", 1)
    return Case(
        [
            (
                "INSERT INTO claim (claim_no, region, adjuster)"
                " VALUES ('S-1', 'eu', 'Ann'), ('S-7', 'us', 'Eve')"
            )
        ],
        [("S-1", {}, "applied"), ("S-2", {"claim": "S-2"}, "applied")],
        [
            ("S-1", {}, "repeated"),
            ("S-1", {"version": 0}, "stale"),
            ("S-7", {"claim": "S-7"}, "parked" if hidden else "applied"),
            ("S-8", {"claim": "S-8", "region": "us"}, "parked" if hidden else "applied"),
            ("S-2", None, "applied"),
        ],
        "SELECT claim_no, region, adjuster, status, version FROM claim WHERE claim_no <> 'S-8'"
        " ORDER BY claim_no",
        [("S-1", "eu", "Ann", "REPORTED", 1), ("S-7", *american)],
        {"S-7": "REFUSED_BY_TARGET", "S-8": "REFUSED_BY_TARGET"} if hidden else {},
    )


def partitioned(kind: str) -> Case:
    in_range = kind == "sqlite"
    far = "2031-01-01"
    add = {
        "postgres": (
            "CREATE TABLE parcel_2031 PARTITION OF parcel FOR VALUES"
            f" FROM ('{far}') TO ('2032-01-01')"
        ),
    }.get(
        kind,
        "ALTER TABLE parcel ADD PARTITION (PARTITION parcel_2031 VALUES LESS THAN ('2032-01-01'))",
    )
    return Case(
        [
            (
                "INSERT INTO parcel (parcel_no, posted_on, weight)"
                " VALUES (80017, '2026-11-01', 1.5), (80017, '2027-11-01', 2.5)"
            )
        ],
        [
            ("80017/2026-11-01", {}, "applied"),
            ("80018/2027-01-01", {"parcel": 80018, "posted": "2027-01-01"}, "applied"),
        ],
        [
            ("80017/2026-11-01", {}, "repeated"),
            ("80017/2026-11-01", {"version": 1}, "stale"),
            (f"80017/{far}", {"posted": far}, "applied" if in_range else "parked"),
            ("80018/2027-01-01", None, "applied"),
            ("80017/2026-11-01", {"version": 3, "status": "DELIVERED"}, "applied"),
        ],
        "SELECT parcel_no, posted_on, weight, status, version FROM parcel"
        f" WHERE posted_on <> '{far}' ORDER BY posted_on",
        [(80017, "2026-11-01", 1.5, "DELIVERED", 3), (80017, "2027-11-01", 2.5, None, None)],
        {} if in_range else {f"80017/{far}": "REFUSED_BY_TARGET"},
        None if in_range else (f"80017/{far}", add),
    )


def rich_types(kind: str) -> Case:
    return Case(
        ["INSERT INTO purchase (purchase_no, buyer) VALUES ('P-1', 'Ann'), ('P-9', 'Eve')"],
        [("P-1", {}, "applied"), ("P-2", {"purchase": "P-2", "total": "1.005"}, "applied")],
        [
            ("P-1", {}, "applied"),
            ("P-1", {"changed": "2026-11-01T08:00:00Z", "state": "OPEN"}, "stale"),
            (
                "P-2",
                {
                    "purchase": "P-2",
                    "changed": "2026-11-01T08:00:00.000002Z",
                    "items": {"b": [1.5]},
                    "total": "2",
                },
                "applied",
            ),
            ("P-3", {"purchase": "P-3", "state": "STOLEN"}, "parked"),
            ("P-9", {"purchase": "P-9", "state": "OPEN", "total": 7}, "applied"),
            ("P-9", None, "applied"),
        ],
        "SELECT purchase_no, buyer, state, items, total, changed_at FROM purchase"
        " ORDER BY purchase_no",
        [
            (
                "P-1",
                "Ann",
                "PAID",
                [{"sku": "a-1", "count": 2}],
                20.5,
                "2026-11-01 08:00:00.000001",
            ),
            ("P-2", None, "PAID", {"b": [1.5]}, 2, "2026-11-01 08:00:00.000002"),
        ],
        {"P-3": "REFUSED_BY_TARGET" if kind == "sqlite" else "NOT_A_CHOICE"},
    )


CASES: dict[int, Callable[[str], Case]] = {
    1: defaults,
    2: composite,
    3: uuid,
    4: identity,
    5: foreign_keys,
    6: audit,
    7: row_security,
    8: partitioned,
    9: rich_types,
}


def created(number: int, kind: str, url: str, own: list[str]) -> str:
    """Create the guide's table with rows of the application. Return the URL for the settings."""
    if number == 7 and kind == "postgres":
        run_sql(url, "DROP ROLE IF EXISTS instep_eu")
    run_sql(url, *statements(number, kind), *own)
    return url.replace("instep@", "instep_eu@") if number == 7 and kind == "postgres" else url


def opened(name: str, pipeline: settings.Pipeline) -> Sink:
    """Prepare and open as `instep init` and a start do. The application's table does not change."""
    assert preparation.faults(pipeline) == []
    sent = preparation.prepare(pipeline)
    assert [
        one for one in sent if not re.match(r"\s*CREATE (UNIQUE )?(TABLE|INDEX) \W?instep_", one)
    ] == []
    return begun(sinks.open_sink(inspection.inspect(name, pipeline)))


def to_record(offset: int, event: dict[str, Any], sent: Sent) -> Record:
    key, changes, _ = sent
    return record(offset, key, None if changes is None else {**event, **changes})


def plain(value: Any) -> Any:
    """Convert a value to a form that is the same for every database."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        return json.loads(value)
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S.%f}"
    if isinstance(value, Decimal):
        return float(value)
    return str(value) if isinstance(value, (date, UUID)) else value


def insistent(sink: Sink, records: list[Record]) -> None:
    """Apply a batch as a task does: retry when another writer seems to have changed a row."""
    work = BatchTransaction(WRITER, 0, records, log_holds_nothing)
    for _ in range(3):
        with contextlib.suppress(errors.Outrun):
            work.apply(sink, Decoder(sink.target.mapping))
            return
    work.apply(sink, Decoder(sink.target.mapping))


@pytest.mark.parametrize("kind", DATABASES)
@pytest.mark.parametrize("number", CASES)
def test_the_guides_table_is_kept_up_to_date(
    number: int, kind: str, new_database: Callable[[str], str]
) -> None:
    case = CASES[number](kind)
    admin = new_database(kind)
    url = created(number, kind, admin, case.own)
    ((name, pipeline),) = pipelines(number, url).items()
    (event,) = events(number)
    sink = opened(name, pipeline)
    try:
        insistent(sink, [to_record(offset, event, sent) for offset, sent in enumerate(case.first)])
        insistent(
            sink,
            [
                to_record(offset, event, sent)
                for offset, sent in enumerate(case.then, len(case.first))
            ],
        )
    finally:
        sink.close()
    offset = "`offset`" if kind in ("mariadb", "mysql") else '"offset"'
    verdicts = [
        row[0] for row in run_sql(url, f"SELECT verdict FROM instep_history ORDER BY {offset}")
    ]
    assert verdicts == [sent[2] for sent in (*case.first, *case.then)]
    assert [tuple(map(plain, row)) for row in run_sql(admin, case.query)] == case.rows
    assert {row[1]: row[2] for row in parked(url)} == case.parked
    assert run_sql(url, "SELECT count(*) FROM instep_dead_letters") == [(0,)]
    if case.audit is not None:
        assert (
            run_sql(
                url, "SELECT ticket_no, action, status FROM ticket_audit ORDER BY ticket_no, no"
            )
            == case.audit
        )
    if case.cure is not None:
        document, statement = case.cure
        run_sql(admin, statement)
        with MaintenanceSession(name, pipeline, "ann") as session:
            assert [
                line.verdict for line in parked_documents.release(session, document, execute=True)
            ] == ["applied"]


@pytest.mark.parametrize(
    ("number", "changes", "remedy"),
    [
        (2, {"key": "no"}, 'set key = ["tenant", "no"]'),
        (3, {"missing": "insert"}, 'set missing = "park" or "ignore"'),
        (4, {"missing": "insert"}, 'set missing = "park" or "ignore"'),
        (8, {"key": "parcel_no"}, 'set key = ["parcel_no", "posted_on"]'),
    ],
)
def test_settings_that_the_guide_says_are_refused(
    number: int, changes: dict[str, Any], remedy: str, new_database: Callable[[str], str]
) -> None:
    url = created(number, "sqlite", new_database("sqlite"), [])
    (pipeline,) = pipelines(number, url).values()
    assert preparation.faults(pipeline) == []
    assert remedy in preparation.faults(msgspec.structs.replace(pipeline, **changes))[0].remedy


BILLS = ["INSERT INTO bill (bill_no, customer) VALUES ('B-1', 'Ann'), ('B-9', 'Eve')"]
BILL_ROWS = (
    "SELECT bill_no, customer, print_status, print_version, payment_status, payment_version"
    " FROM bill ORDER BY bill_no"
)


@pytest.mark.parametrize("kind", DATABASES)
def test_two_pipelines_can_share_the_guides_table(
    kind: str, new_database: Callable[[str], str]
) -> None:
    """Let two pipelines write columns of one row: a delete by one keeps the other's columns."""
    url = created(10, kind, new_database(kind), BILLS)
    printed, paid = events(10)
    with contextlib.ExitStack() as stack:
        printing, payments = (
            stack.enter_context(contextlib.closing(opened(name, one)))
            for name, one in pipelines(10, url).items()
        )
        apply(printing, [record(0, "B-1", printed), record(1, "B-2", {**printed, "bill": "B-2"})])
        apply(
            payments,
            [record(0, "B-1", {**paid, "version": 5}), record(1, "B-3", {**paid, "bill": "B-3"})],
        )
        apply(
            printing,
            [
                record(2, "B-1", printed),
                record(3, "B-1", {**printed, "version": 2, "status": "SENT"}),
            ],
        )
        apply(
            payments,
            [
                record(2, "B-1", {**paid, "status": "DUE"}),
                record(3, "B-2", {**paid, "bill": "B-2"}),
            ],
        )
        apply(
            printing,
            [
                record(4, "B-2", None),
                record(5, "B-3", {**printed, "bill": "B-3", "status": "x" * 21}),
            ],
        )
    assert run_sql(url, BILL_ROWS) == [
        ("B-1", "Ann", "SENT", 2, "PAID", 5),
        ("B-2", None, None, 1, "PAID", 1),
        ("B-3", None, None, None, "PAID", 1),
        ("B-9", "Eve", None, None, None, None),
    ]
    assert parked(url) == [(5, "B-3", "TEXT_TOO_LONG")]
    verdicts = run_sql(
        url,
        "SELECT pipeline, verdict, count(*) FROM instep_history GROUP BY pipeline, verdict"
        " ORDER BY 1, 2",
    )
    assert verdicts == [
        ("payments", "applied", 3),
        ("payments", "stale", 1),
        ("printing", "applied", 4),
        ("printing", "parked", 1),
        ("printing", "repeated", 1),
    ]


def test_two_pipelines_on_spark_can_share_the_guides_table(
    new_database: Callable[[str], str], cluster: Cluster, runner: Run, prove: Prove
) -> None:
    """Run the guide's two pipelines at once on Spark, then reconcile each with its own topic."""
    url = created(10, "postgres", new_database("postgres"), BILLS)
    suffix = uuid4().hex[:8]
    both = {
        name: msgspec.structs.replace(one, topic=f"{one.topic}-{suffix}")
        for name, one in pipelines(10, url).items()
    }
    names = [f"B-{number}" for number in range(1, 40)]
    for pipeline, event in zip(both.values(), events(10), strict=True):
        topics.create(cluster, pipeline.topic, 2)
        send(
            cluster,
            pipeline.topic,
            *((name.encode(), json.dumps({**event, "bill": name}).encode()) for name in names),
        )
    send(cluster, both["printing"].topic, (b"B-2", None))
    started = [runner(pipeline, name, once=True) for name, pipeline in both.items()]
    for run in started:
        drained(run)
    assert run_sql(
        url,
        "SELECT count(*) FROM bill WHERE payment_status = 'PAID' AND (print_status = 'PRINTED'"
        " OR bill_no = 'B-2')",
    ) == [(39,)]
    for name, pipeline in both.items():
        report, listed = prove(pipeline, name)
        assert (report.in_step, report.documents, listed) == (True, 39, [])


def test_the_guides_generated_column_supports_binary_uuids_of_mysql(
    new_database: Callable[[str], str],
) -> None:
    url = new_database("mysql")
    create, add = statements(3, "mysql-binary")
    own = f"INSERT INTO shipment (id, address) VALUES (UUID_TO_BIN('{ID}'), 'Bonn')"
    run_sql(url, create, own)
    ((name, pipeline),) = pipelines(3, url).items()
    (fault,) = preparation.faults(pipeline)
    assert (
        add.replace("shipment", "`shipment`")
        .replace("id_text", "`id_text`")
        .replace("(id)", "(`id`)")
        in fault.remedy
    )
    run_sql(url, add)
    text_key = msgspec.structs.replace(pipeline, key="id_text")
    assert (
        'missing = "park"'
        in preparation.faults(msgspec.structs.replace(text_key, missing="insert"))[0].remedy
    )
    with contextlib.closing(opened(name, text_key)) as sink:
        apply(
            sink,
            [
                record(0, ID, events(3)[0]),
                record(1, UNKNOWN, {**events(3)[0], "shipment_id": UNKNOWN}),
            ],
        )
    assert run_sql(url, "SELECT id_text, address, status, version FROM shipment") == [
        (ID, "Bonn", "DELIVERED", 4)
    ]


def test_init_names_rights_that_another_user_must_grant(new_database: Callable[[str], str]) -> None:
    """Name the rights that the guide's role lacks on instep's tables, which another role owns."""
    admin = new_database("postgres")
    url = created(7, "postgres", admin, [])
    ((name, pipeline),) = pipelines(7, url).items()
    preparation.prepare(msgspec.structs.replace(pipeline, target=admin))
    with pytest.raises(errors.NotAuthorised, match="instep_ledger") as refused:
        facts.refuse_own_without_rights(name, pipeline)
    run_sql(admin, *refused.value.remedy.removeprefix("have the owner run: ").split("; "))
    facts.refuse_own_without_rights(name, pipeline)
    with contextlib.closing(opened(name, pipeline)) as sink:
        apply(sink, [record(0, "S-1", events(7)[0])])
    assert run_sql(admin, "SELECT claim_no, status FROM claim") == [("S-1", "REPORTED")]
