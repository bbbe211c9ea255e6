"""Test the whole pipeline against a model of one event at a time, on every database.

Thousands of mixed events are applied in many small batches. Then what was quarantined is replayed,
skipped and released, in both, and the pipeline continues.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from instep import settings
from instep.kafka import places, topics
from instep.kafka.connection import Cluster
from instep.operate import dead_letters, log_replay, parked, rewind
from instep.pipeline.apply import release
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.pipeline.runner import Runner
from instep.sinks import connecting, tables, target
from instep.sinks.journal_entries import Selection
from tests.support import model
from tests.support.databases import run_sql
from tests.support.model import Fact, Model, Place
from tests.support.pipelines import drained, following
from tests.support.producing import IN_ORDER

DOCUMENTS = 60
PARTITIONS = 3
EVENTS = 700
EVENTS_AFTER = 150
BATCH_ROWS = 120
# the kinds of events, and their weights
KINDS = {
    "good": 80,
    "late": 8,
    "delete": 4,
    "refused": 2,
    "unreadable": 2,
    "odd note": 4,
}
SLOTS = 30  # per partition; documents take them from each other


@dataclass(frozen=True)
class Harness:
    """A pipeline of one kind.

    A table with constraints is written event by event, one without in whole batches.
    """

    kind: str
    ordered: bool
    missing: str
    constrained: bool
    document: str | tuple[str, ...] = "doc_id"
    composite: bool = False

    def settings(self, url: str, topic: str, columns: dict[str, str]) -> settings.Pipeline:
        event = {
            "document": self.document,
            "status": "status",
            **({"order": "version"} if self.ordered else {}),
        }
        more: dict[str, Any] = {
            "key": ["tenant", "doc_no"] if self.composite else "doc_no",
            "missing": self.missing,
            "deletes": "row",
            "retry_parked_s": 0,
            "event": event,
            "columns": columns,
        }
        return following(
            url, topic, **more, transitions=model.TRANSITIONS, batch_rows_max=BATCH_ROWS
        )


REPAIRED = {column: name for column, name in model.COLUMNS.items() if column != "note"}

# Each database with and without an order, with and without constraints, with and without a
# composite key; in total, every way to treat a missing document.
VARIANTS = [
    Harness("sqlite", ordered=True, missing="insert", constrained=True),
    Harness("sqlite", ordered=False, missing="park", constrained=False, composite=True),
    Harness("postgres", ordered=True, missing="park", constrained=True),
    Harness(
        "postgres",
        ordered=False,
        missing="insert",
        constrained=False,
        document=("tenant", "number"),
        composite=True,
    ),
    Harness("mariadb", ordered=True, missing="ignore", constrained=False),
    Harness(
        "mariadb",
        ordered=False,
        missing="insert",
        constrained=True,
        document=("tenant", "number"),
        composite=True,
    ),
    Harness("mysql", ordered=True, missing="insert", constrained=False, composite=True),
    Harness("mysql", ordered=False, missing="ignore", constrained=True),
]


@dataclass
class Log:
    """A log that is written to the topic and given to the model."""

    topic: str
    dice: random.Random
    composite: bool

    def __post_init__(self) -> None:
        self.ends = [0] * PARTITIONS
        self.kinds: set[str] = set()
        self._versions: dict[str, int] = {}
        self._statuses: dict[str, str] = {}

    def write(self, cluster: Cluster, count: int) -> list[Fact]:
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "linger.ms": 20,
                "enable.idempotence": True,
                **IN_ORDER,
            }
        )
        facts = [self._fact() for _ in range(count)]
        for fact in facts:
            producer.produce(
                self.topic, key=fact.document, value=_value(fact), partition=fact.place[0]
            )
        assert producer.flush(30) == 0
        return facts

    def _fact(self) -> Fact:
        number = self.dice.randrange(DOCUMENTS)
        document, partition = name_of(number, self.composite), number % PARTITIONS
        place = (partition, self.ends[partition])
        self.ends[partition] += 1
        kind = self.dice.choices(tuple(KINDS), tuple(KINDS.values()))[0]
        self.kinds.add(kind)
        match kind:
            case "delete":
                self._statuses.pop(document, None)
                return Fact(place, document)
            case "unreadable":
                return Fact(place, document, unreadable="NOT_JSON")
            case "late":
                return Fact(
                    place, document, self._body(document, later_by=self.dice.choice((0, 0, -1, -3)))
                )
            case "odd note":
                return Fact(place, document, self._body(document, note=["x"]))
            case "refused":
                odd: dict[str, Any] = self.dice.choice(
                    [
                        {"status": "LOST"},
                        {"status": "CREATED"},
                        {"place": "x" * 21},
                        {"pages": model.UNLUCKY_PAGES},
                        {"pages": 99},
                    ]
                )
                return Fact(place, document, self._body(document, **odd))
            case _:
                return Fact(place, document, self._body(document))

    def _body(self, document: str, later_by: int = 1, **odd: Any) -> dict[str, Any]:
        """Return an event as the source would publish it, with the odd values if any.

        Some fields are present only in some events.
        """
        version = self._versions.get(document, 0) + later_by
        self._versions[document] = max(version, self._versions.get(document, 0))
        before = self._statuses.get(document)
        status = self.dice.choice(
            [*model.TRANSITIONS.get(before or "", ["CREATED", "QUEUED"]), before or "CREATED"]
        )
        if later_by > 0 and not odd:
            self._statuses[document] = status
        tenant, _, number = document.rpartition("/")
        found: dict[str, Any] = {
            "doc_id": document,
            "tenant": tenant,
            "number": int(number),
            "status": status,
            "version": version,
        }
        choices: dict[str, tuple[Any, ...]] = {
            "pages": (1, 2, 40, None),
            "place": ("Rome", "Oslo", None),
            "note": ("n", "", None),
        }
        partition = int(number) % PARTITIONS
        # no slot is used in two partitions: which document is first would be random
        choices["slot"] = (None, None, *(100 * partition + number for number in range(SLOTS)))
        for name, values in choices.items():
            if self.dice.random() < 0.3:
                found[name] = self.dice.choice(values)
        return {**found, **odd}


def name_of(number: int, composite: bool) -> str:
    """Return a document's id: a number; with a composite key, the tenant before it."""
    return f"t{number % 2}/{number}" if composite else str(number)


def _value(fact: Fact) -> bytes | None:
    if fact.unreadable:
        return b'{"doc_id": "'
    return None if fact.body is None else json.dumps(fact.body).encode()


def make_table(url: str, documents: list[str], constrained: bool, composite: bool) -> None:
    """Create the target's own table, with some documents in it."""
    checks = (
        sa.CheckConstraint(f"pages <> {model.UNLUCKY_PAGES}", name="lucky"),
        sa.CheckConstraint(
            f"print_status <> 'QUEUED' OR pages <= {model.QUEUED_PAGES_MAX}", name="short_enough"
        ),
    )
    table = sa.Table(
        "contract_document",
        sa.MetaData(),
        *([sa.Column("tenant", tables.name_type(40), primary_key=True)] if composite else ()),
        sa.Column(
            "doc_no",
            sa.BigInteger if composite else tables.name_type(40),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("owner", sa.String(20)),
        sa.Column("print_status", tables.name_type(40)),
        sa.Column("print_version", sa.BigInteger),
        sa.Column("pages", sa.Integer),
        sa.Column("place", tables.name_type(model.PLACE_CHARACTERS)),
        sa.Column("note", tables.long_text()),
        sa.Column("slot", sa.Integer, unique=constrained),
        *(checks if constrained else ()),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
    with connecting.connection(target.database_url(url), create=True) as opened:
        table.create(opened)
        rows = [{"doc_no": document, "owner": "Ann"} for document in documents]
        if composite:
            rows = [
                {
                    **row,
                    "tenant": row["doc_no"].partition("/")[0],
                    "doc_no": row["doc_no"].partition("/")[2],
                }
                for row in rows
            ]
        opened.execute(table.insert(), rows)
        opened.commit()


# `make test` runs every database, and in total every kind of table, key and order
OFTEN = [harness for number, harness in enumerate(VARIANTS) if number not in (0, 3, 7)]


ALSO_IN_MICRO_BATCHES = OFTEN[:1]  # the engines differ in how they read, not in what they write


def variants() -> Iterator[Any]:
    """Yield every variant with every engine; `make campaign` runs those marked as long."""
    for harness in VARIANTS:
        for engine in ("resident", "micro-batch"):
            often = OFTEN if engine == "resident" else ALSO_IN_MICRO_BATCHES
            marks = [] if harness in often else [pytest.mark.long]
            yield pytest.param(harness, engine, id=f"{harness}-{engine}", marks=marks)


@pytest.mark.parametrize(("harness", "both_engines"), list(variants()), indirect=["both_engines"])
def test_the_pipeline_equals_the_model(
    harness: Harness,
    both_engines: str,
    new_database: Callable[[str], str],
    cluster: Cluster,
    runner: Callable[..., Runner],
) -> None:
    url = new_database(harness.kind)
    log = Log(f"model-{uuid.uuid4().hex[:8]}", random.Random(str(harness)), harness.composite)
    topics.create(cluster, log.topic, PARTITIONS)
    existing = [name_of(number, harness.composite) for number in range(DOCUMENTS) if number % 4]
    make_table(url, existing, harness.constrained, harness.composite)
    expected = Model(
        harness.ordered,
        harness.missing,
        harness.constrained,
        {document: dict.fromkeys(model.COLUMNS) for document in existing},
    )

    for fact in log.write(cluster, EVENTS):
        expected.apply(fact)
    assert log.kinds == set(KINDS)
    run = drained(runner(harness.settings(url, log.topic, model.COLUMNS), once=True))
    assert run._target is not None
    assert run._target.refuses is harness.constrained
    _compare(url, expected, harness.composite)
    assert {"applied", "parked"} <= {*expected.history.values()}
    assert len(expected.parked) > 5

    repaired = harness.settings(url, log.topic, REPAIRED)
    expected.columns = REPAIRED
    with MaintenanceSession("contracts", repaired, "ann") as session:
        _decide(session, expected, lambda: Cluster(cluster.kafka, cluster.bootstrap))
    _compare(url, expected, harness.composite)

    _shift_clock(url, harness)
    stood = list(log.ends)
    for fact in log.write(cluster, EVENTS_AFTER):
        expected.apply(fact)
    # move the ledger to the end by mistake, and back again: the records between were never applied
    _rewind(cluster, repaired, places.FromEnd())
    for partition, offset in enumerate(stood):
        _rewind(cluster, repaired, places.Offset(offset), [partition])
    drained(runner(repaired, once=True))
    _compare(url, expected, harness.composite)

    # and back to the start: what was applied is not judged again
    _rewind(cluster, repaired, places.FromStart())
    drained(runner(repaired, once=True))
    _compare(url, expected, harness.composite)

    # whichever clock the runs had, there is nothing that a replay would have to write
    with MaintenanceSession("contracts", repaired, "ann") as session:
        assert (
            list(
                log_replay.replay(
                    session, cluster, log_replay.resolve_range(session, cluster), execute=True
                )
            )
            == []
        )
    _compare(url, expected, harness.composite)


def _shift_clock(url: str, harness: Harness) -> None:
    """Pretend that everything so far was done by machines whose clocks were an hour ahead."""
    hour = {
        "sqlite": "strftime('%Y-%m-%d %H:%M:%f', committed_at, '+1 hour')",
        "postgres": "committed_at + INTERVAL '1 hour'",
    }.get(harness.kind, "committed_at + INTERVAL 1 HOUR")
    run_sql(url, f"UPDATE instep_history SET committed_at = {hour}")


def _rewind(
    cluster: Cluster,
    pipeline: settings.Pipeline,
    place: places.Place,
    partitions: Sequence[int] = (),
) -> None:
    prepared = rewind.prepare(cluster, "contracts", pipeline, place, partitions)
    rewind.execute("contracts", pipeline, prepared, actor="ann", reason="by mistake")


def _decide(
    session: MaintenanceSession, expected: Model, open_cluster: Callable[[], Cluster]
) -> None:
    """Make the same decisions in both: replay dead letters, then decide on parked documents.

    Of each three parked documents, one is left as it is.
    """
    list(
        dead_letters.replay(
            session, Selection(), log_replay.OvertakenInLog(session, open_cluster), execute=True
        )
    )
    expected.replay()
    heads = {
        one.document: ((one.position.partition, one.position.offset), one.reason)
        for one in session.sink.journal.parked_heads(Selection())
    }
    assert heads == {document: waiting[0] for document, waiting in expected.parked.items()}
    for number, document in enumerate(sorted(expected.parked)):
        tries = (0, 1, 99)[number % 3]
        for _ in range(tries):
            release.release(session, document, execute=True)
            expected.release(document)
            if document not in expected.parked:
                break
            parked.skip(session, document, "as the model does", execute=True)
            expected.skip(document)
            if document not in expected.parked:
                break


def _compare(url: str, expected: Model, composite: bool) -> None:
    quote = "`" if url.startswith("m") else '"'
    place = f"{quote}partition{quote}, {quote}offset{quote}"
    columns = ", ".join(model.COLUMNS)
    rows = run_sql(
        url, f"SELECT {'tenant' if composite else 'NULL'}, doc_no, {columns} FROM contract_document"
    )
    found = {
        f"{row[0]}/{row[1]}" if composite else row[1]: dict(
            zip(model.COLUMNS, row[2:], strict=True)
        )
        for row in rows
    }
    assert found == expected.rows
    assert (
        _by_place(run_sql(url, f"SELECT {place}, verdict FROM instep_history")) == expected.history
    )
    assert (
        _by_place(run_sql(url, f"SELECT {place}, reason FROM instep_dead_letters")) == expected.dead
    )
    waiting: dict[str, list[tuple[Place, str]]] = {}
    for document, partition, offset, reason in run_sql(
        url, f"SELECT document, {place}, reason FROM instep_parked ORDER BY {place}"
    ):
        waiting.setdefault(document, []).append(((partition, offset), reason))
    assert waiting == expected.parked
    # a document that was deleted and created again within a batch need not be stored as deleted
    deleted = dict(run_sql(url, "SELECT document, order_value FROM instep_deleted"))
    assert {
        document: deleted[document] for document in deleted if document not in expected.rows
    } == expected.gone()
    decided = run_sql(
        url, f"SELECT {place}, action, outcome FROM instep_decisions WHERE action <> 'rewound'"
    )
    assert sorted(((row[0], row[1]), row[2], row[3]) for row in decided) == sorted(
        expected.decisions
    )
    ends = run_sql(url, f"SELECT {quote}partition{quote}, next_offset FROM instep_ledger")
    assert dict(ends) == {
        p: 1 + max(o for part, o in expected.facts if part == p) for p in range(PARTITIONS)
    }


def _by_place(rows: list[Any]) -> dict[Place, str]:
    return {(row[0], row[1]): row[2] for row in rows}
