"""Test every class of bad input on every database: 1 % among good traffic, and in a burst.

One pipeline per database reads them all; the tests check the result.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from confluent_kafka import KafkaError, Producer

from instep.document.guard import Verdict
from instep.document.reasons import PARKS, Reason
from instep.kafka import offsets, topics
from instep.kafka.connection import Cluster
from instep.operate import status
from instep.sinks import connecting, preparation, tables, target
from tests.support import bad_input
from tests.support.bad_input import CASES, Case, Fate, Sent
from tests.support.databases import run_sql
from tests.support.pipelines import OwnRunner, drained, following
from tests.support.producing import IN_ORDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
GOOD_DOCUMENTS = 400
GOOD_PER_ODD = 99
PHASES = ("mixed", "burst")
STATUSES = ("CREATED", "QUEUED", "PRINTING", "PRINTED")
KINDS = ("sqlite", "postgres", "mariadb", "mysql")

Place = tuple[int, int]


@dataclass
class Log:
    """What was sent, and the place of each record in the log."""

    topic: str
    odd: dict[tuple[str, str], tuple[Sent, Place]] = field(default_factory=dict)
    good: dict[Place, Verdict] = field(default_factory=dict)
    rows: dict[str, tuple[str, int]] = field(default_factory=dict)
    before: list[Place] = field(default_factory=list)


@dataclass
class Landed:
    """What a pipeline left in its database, by place in the log or by document."""

    rows: dict[str, dict[str, Any]]
    dead: dict[Place, dict[str, Any]]
    parked: dict[Place, dict[str, Any]]
    history: dict[Place, dict[str, Any]]
    deleted: dict[str, int]
    ledger: dict[int, int]


class Source:
    """A producer of records of every shape.

    The test chooses each record's partition, and the callback gets its place in the log.
    """

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._topic, self._bootstrap = topic, cluster.bootstrap
        self._producers: dict[str, Producer] = {}
        self.undelivered: list[KafkaError] = []

    def send(
        self, record: Sent, partition: int, reported: Callable[[Place], None] = lambda _: None
    ) -> None:
        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self.undelivered.append(error)
            else:
                reported((message.partition(), message.offset()))

        large = len(record.value or b"") > 100_000
        producer = self._producer(record.codec, large)
        producer.produce(
            self._topic,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            timestamp=record.timestamp_ms,
            partition=partition,
            on_delivery=delivered,
        )
        if large:
            assert producer.flush(60) == 0  # so that it has its own batch
        producer.poll(0)

    def done(self) -> None:
        assert all(producer.flush(60) == 0 for producer in self._producers.values())

    def _producer(self, codec: str, large: bool) -> Producer:
        name = f"{codec} {large}"
        if name not in self._producers:
            config = {
                "bootstrap.servers": self._bootstrap,
                "compression.codec": codec,
                "enable.idempotence": True,
                **IN_ORDER,
            }
            self._producers[name] = Producer(
                {**config, "message.max.bytes": 100_000_000, "linger.ms": 0 if large else 50}
            )
        return self._producers[name]


class Traffic:
    """Good events of many documents, and the model of one event at a time.

    Some of the events are late or repeated.
    """

    def __init__(self, source: Source, log: Log) -> None:
        self._source, self._log = source, log
        self._sent = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            number, self._sent = self._sent % GOOD_DOCUMENTS, self._sent + 1
            document = f"good {number}"
            _, known = self._log.rows.get(document, ("", 0))
            late = {0: -1, 1: 0}.get(self._sent % 17, 1) if known > 1 else 1
            version = known + late
            status = STATUSES[min(version, len(STATUSES)) - 1]
            verdict = {-1: Verdict.STALE, 0: Verdict.REPEATED, 1: Verdict.APPLIED}[late]
            if verdict is Verdict.APPLIED:
                self._log.rows[document] = (status, version)
            record = bad_input.good(
                document, status=status, version=version, note="late" if late < 1 else None
            )
            self._source.send(
                record,
                number % PARTITIONS,
                lambda place, verdict=verdict: self._log.good.update({place: verdict}),  # type: ignore[misc]
            )


@pytest.fixture(scope="module")
def log(cluster: Cluster) -> Log:
    """Write all classes twice among good traffic, to a topic that accepts any timestamp."""
    found = Log(f"bad-{uuid.uuid4().hex[:8]}")
    topics.create(
        cluster,
        found.topic,
        PARTITIONS,
        config={"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"},
    )
    source = Source(cluster, found.topic)
    traffic = Traffic(source, found)
    for phase, between in zip(PHASES, (GOOD_PER_ODD, 0), strict=True):
        for number, case in enumerate(CASES.values()):
            *before, odd = case.records(phase)
            for record in before:
                source.send(record, number % PARTITIONS, found.before.append)
            traffic.send(between)

            def keep(
                place: Place, key: tuple[str, str] = (case.name, phase), odd: Sent = odd
            ) -> None:
                found.odd[key] = (odd, place)

            source.send(odd, number % PARTITIONS, keep)
    traffic.send(GOOD_DOCUMENTS)
    source.done()
    assert source.undelivered == []
    return found


@pytest.fixture(
    scope="module",
    params=[*((kind, "resident") for kind in KINDS), ("postgres", "micro-batch")],
    ids="-".join,
)
def landed(
    request: pytest.FixtureRequest,
    shared_database: Callable[[str], str],
    log: Log,
    spark: SparkSession,
    cluster: Cluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Landed]:
    """Run a pipeline over the whole log, and return the contents of its database."""
    kind, engine = request.param
    url = shared_database(kind)
    make_table(url)
    pipeline = following(
        url,
        log.topic,
        columns=bad_input.COLUMNS,
        transitions=bad_input.TRANSITIONS,
        batch_rows_max=20_000,
        engine=engine,
    )
    preparation.prepare(pipeline)
    run = OwnRunner(
        "contracts", pipeline, cluster, spark, tmp_path_factory.mktemp("bad"), once=True
    )
    run.start()
    drained(run)
    assert run.restarts == 0
    return kind, read_outcome(url)


def make_table(url: str) -> None:
    """Create the target's own table, with a column of every kind."""
    table = sa.Table(
        "contract_document",
        sa.MetaData(),
        sa.Column("doc_no", tables.name_type(255), primary_key=True),
        sa.Column("print_status", tables.name_type(40)),
        sa.Column("print_version", sa.BigInteger),
        sa.Column("printed_at", tables.time_type()),
        sa.Column("pages", sa.Integer),
        sa.Column("note", tables.long_text()),
        sa.Column("place", tables.name_type(20), nullable=False, server_default=""),
        sa.Column("price", sa.Numeric(10, 2)),
        sa.Column("weight", sa.Double),
        sa.Column("urgent", sa.Boolean),
        sa.Column("due", sa.Date),
        sa.Column("extra", sa.JSON),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
    with connecting.connection(target.database_url(url), create=True) as opened:
        table.create(opened)
        opened.commit()


def read_outcome(url: str) -> Landed:
    quote = "`" if url.startswith("m") else '"'
    place = f"{quote}partition{quote}, {quote}offset{quote}"
    record = f"{place}, {quote}key{quote}, {quote}value{quote}, timestamp_ms, reason, detail"

    def by_place(columns: str, table: str) -> dict[Place, dict[str, Any]]:
        names = [name.strip(f" {quote}") for name in columns.split(",")]
        rows = [
            dict(zip(names, row, strict=True))
            for row in run_sql(url, f"SELECT {columns} FROM {table}")
        ]
        return {(row["partition"], row["offset"]): row for row in rows}

    columns = ("doc_no", *bad_input.COLUMNS)
    rows = [
        dict(zip(columns, row, strict=True))
        for row in run_sql(url, f"SELECT {', '.join(columns)} FROM contract_document")
    ]
    return Landed(
        rows={row["doc_no"]: row for row in rows},
        dead=by_place(record, "instep_dead_letters"),
        parked=by_place(f"document, {record}", "instep_parked"),
        history=by_place(f"{place}, document, status, verdict, event_time", "instep_history"),
        deleted=dict(run_sql(url, "SELECT document, order_value FROM instep_deleted")),
        ledger=dict(
            run_sql(url, f"SELECT {quote}partition{quote}, next_offset FROM instep_ledger")
        ),
    )


@pytest.mark.parametrize("name", CASES)
def test_each_record_ends_in_exactly_one_place(
    name: str, log: Log, landed: tuple[str, Landed]
) -> None:
    kind, found = landed
    for phase in PHASES:
        sent, place = log.odd[name, phase]
        _judge(CASES[name], phase, kind, sent, place, found)


def _judge(case: Case, phase: str, kind: str, sent: Sent, place: Place, found: Landed) -> None:
    fate, reason = case.expected(kind)
    letter, waiting, lived = (
        found.dead.get(place),
        found.parked.get(place),
        found.history.get(place),
    )
    if fate is Fate.ACCOUNTED:
        assert (letter is None) != (lived is None)
        assert (waiting is not None) == (lived is not None and lived["verdict"] == Verdict.PARKED)
        for kept in filter(None, (letter, waiting)):
            assert bytes(kept["value"]) == sent.value
        return
    document = case.document(phase)
    row = found.rows.get(document)
    if fate is Fate.DEAD:
        assert letter is not None, (lived, row)
        assert (letter["reason"], waiting, lived) == (reason, None, None), letter["detail"]
        assert letter["detail"]
        _kept_whole(letter, sent, cut=reason is Reason.RECORD_TOO_LARGE)
    else:
        assert letter is None, (letter["reason"], letter["detail"])
        assert lived is not None
        assert lived["verdict"] == (
            Verdict.APPLIED if fate is Fate.DELETED else Verdict(fate.value)
        ), waiting
        assert lived["document"] == document
    if fate is Fate.PARKED:
        assert reason in PARKS
        assert waiting is not None
        assert (waiting["reason"], waiting["document"]) == (reason, document)
        _kept_whole(waiting, sent)
    else:
        assert waiting is None
    if fate in (Fate.APPLIED, Fate.STALE, Fate.REPEATED) or (
        case.before and fate is not Fate.DELETED
    ):
        assert row is not None
        for column, value in (case.kept or {}).items():
            assert _plain(row[column], value) == value, column
    else:
        assert row is None
    assert found.deleted.get(document) == (5 if fate is Fate.DELETED else None)


def _kept_whole(kept: dict[str, Any], sent: Sent, cut: bool = False) -> None:
    value = None if kept["value"] is None else bytes(kept["value"])
    assert (None if kept["key"] is None else bytes(kept["key"])) == sent.key
    assert value == (sent.value if not cut else (sent.value or b"")[: len(value or b"")])
    assert not cut or len(value or b"") > 1_000
    if sent.timestamp_ms:
        assert kept["timestamp_ms"] == sent.timestamp_ms


def _plain(stored: Any, like: Any) -> Any:
    """Convert a stored value to the type that the event had."""
    match stored:
        case Decimal():
            return type(like)(stored)
        case date():
            return stored.isoformat()
        case str() if isinstance(like, (list, dict)):
            return json.loads(stored)
    return stored


def test_good_documents_are_what_the_model_says(log: Log, landed: tuple[str, Landed]) -> None:
    _, found = landed
    assert {
        d: (row["print_status"], row["print_version"])
        for d, row in found.rows.items()
        if d in log.rows
    } == log.rows
    assert all(found.rows[document]["note"] is None for document in log.rows)
    assert {place: Verdict(found.history[place]["verdict"]) for place in log.good} == log.good
    assert {found.history[place]["verdict"] for place in log.before} == {"applied"}
    assert len(log.good) >= GOOD_PER_ODD * len(CASES)


def test_bad_input_has_no_other_effects(log: Log, landed: tuple[str, Landed]) -> None:
    """Check that each record is in the history or a dead letter, never both, and no others."""
    _, found = landed
    sent = {*log.good, *log.before, *(place for _, place in log.odd.values())}
    assert {*found.history, *found.dead} == sent
    assert not {*found.history} & {*found.dead}
    assert {p for p, row in found.history.items() if row["verdict"] == "parked"} == {*found.parked}
    assert {row["document"] for row in found.history.values() if row["verdict"] == "applied"} >= {
        *found.rows
    }


def test_no_partition_is_held_up(log: Log, landed: tuple[str, Landed], cluster: Cluster) -> None:
    assert landed[1].ledger == offsets.latest(cluster, log.topic, range(PARTITIONS))


ABSURD = (2**63 - 1, -9_300_000_000_000_000)


@pytest.mark.parametrize("timestamp_ms", ABSURD)
def test_a_timestamp_that_spark_cannot_read_stops_no_other_record(
    timestamp_ms: int,
    new_database: Callable[[str], str],
    cluster: Cluster,
    runner: Callable[..., OwnRunner],
) -> None:
    """Apply such a record, or make it a dead letter, and let all others flow: fault 50."""
    url, topic = new_database("sqlite"), any_timestamp(cluster)
    source = Source(cluster, topic)
    for number in range(30):
        source.send(bad_input.good(f"good {number}"), number % 3)
        if number % 7 == 0:
            odd = bad_input.good(f"odd {number}", updated_at=bad_input.AT if number else ...)
            source.send(Sent(odd.key, odd.value, timestamp_ms=timestamp_ms), number % 3)
    source.done()
    drained(runner(following(url, topic, batch_rows_max=20), once=True))
    documents = {row[0] for row in run_sql(url, "SELECT doc_no FROM contract_document")}
    understood = {f"odd {number}" for number in range(0, 30, 7) if number or timestamp_ms < 0}
    assert documents == {f"good {number}" for number in range(30)} | understood
    dead = run_sql(url, "SELECT reason, timestamp_ms FROM instep_dead_letters")
    assert dead == ([("TIME_OUT_OF_RANGE", timestamp_ms)] if timestamp_ms > 0 else [])
    assert run_sql(url, "SELECT count(*) FROM instep_history") == [(35 - len(dead),)]
    drained(runner(following(url, topic), once=True))


def test_a_log_that_ends_with_a_timestamp_in_year_1_is_recognised(
    new_database: Callable[[str], str], cluster: Cluster, runner: Callable[..., OwnRunner]
) -> None:
    """Use the year 1, which some sources send for no time at all."""
    url, topic = new_database("sqlite"), any_timestamp(cluster)
    source = Source(cluster, topic)
    source.send(bad_input.sent(timestamp_ms=-62_135_596_800_000)("a"), 0)
    source.done()
    pipeline = following(url, topic)
    for _ in range(2):
        drained(runner(pipeline, once=True))
    source.send(bad_input.sent(timestamp_ms=-62_135_596_800_000)("b"), 0)
    source.done()
    found = status.read(cluster, "contracts", pipeline)
    assert (found.lag_records, found.lag_seconds) == (1, None)


def any_timestamp(cluster: Cluster) -> str:
    """Create a topic that accepts any timestamp."""
    name = f"times-{uuid.uuid4().hex[:8]}"
    topics.create(
        cluster,
        name,
        3,
        config={
            "message.timestamp.after.max.ms": str(2**63 - 1),
            "message.timestamp.before.max.ms": str(2**63 - 1),
        },
    )
    return name


def test_a_record_larger_than_the_broker_accepts_is_never_stored(
    cluster: Cluster, topic: str
) -> None:
    """Check that the record at max.message.bytes really is at the limit."""
    source = Source(cluster, topic)
    source.send(bad_input.fitting("a", bad_input.MESSAGE_BYTES_MAX), 0)
    source.send(bad_input.fitting("a", bad_input.MESSAGE_BYTES_MAX + 1), 0)
    source.done()
    assert [error.code() for error in source.undelivered] == [KafkaError.MSG_SIZE_TOO_LARGE]
