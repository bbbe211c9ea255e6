"""Test the sink's transaction on real databases. Spark itself is not needed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from instep import errors
from instep.sinks import batches
from instep.sinks.batches import Batches
from instep.spark_sink import definition, task
from instep.spark_sink.decision import BatchStep, IncomingBatch
from instep.spark_sink.merge import TaskMessage
from tests.support.databases import KINDS, run_sql
from tests.support.spark_sinks import SinkQuery

ORDERS = (
    "CREATE TABLE orders (order_id INTEGER PRIMARY KEY, status VARCHAR(20) NOT NULL,"
    " version BIGINT, CHECK (status <> 'bad'))"
)
PLAIN = "CREATE TABLE plain (order_id INTEGER PRIMARY KEY, status VARCHAR(20))"
LINES = (
    "CREATE TABLE order_lines (order_id INTEGER NOT NULL, line_no INTEGER NOT NULL,"
    " item VARCHAR(20), PRIMARY KEY (order_id, line_no),"
    " FOREIGN KEY (order_id) REFERENCES orders (order_id))"
)
ROW = pa.schema(
    [
        ("order_id", pa.int32()),
        ("status", pa.string()),
        ("version", pa.int64()),
        ("gone", pa.bool_()),
    ]
)
UNORDERED = pa.schema([("order_id", pa.int32()), ("status", pa.string())])
BOTH = pa.schema(
    [
        ("o", pa.struct([("order_id", pa.int32()), ("status", pa.string())])),
        (
            "l",
            pa.list_(
                pa.struct(
                    [("order_id", pa.int32()), ("line_no", pa.int32()), ("item", pa.string())]
                )
            ),
        ),
    ]
)


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, shared_database: Callable[[str], str]) -> str:
    where = shared_database(request.param)
    run_sql(where, ORDERS)
    run_sql(where, PLAIN)
    run_sql(where, LINES)
    return where


@pytest.fixture(autouse=True)
def _empty(url: str) -> None:
    own = (
        "instep_sinks",
        "instep_sink_runs",
        "instep_batches",
        "instep_staged_rows",
        "instep_parked",
        "instep_dead_letters",
        "instep_deleted",
    )
    SinkQuery(url, definition.table("plain", key="order_id"), schema=UNORDERED).session.inspect()
    for table in ("order_lines", "orders", "plain", *own):
        run_sql(url, f"DELETE FROM {table}")


@pytest.fixture
def query(url: str) -> Iterator[Callable[..., SinkQuery]]:
    opened: list[SinkQuery] = []

    def make(**options: Any) -> SinkQuery:
        table = definition.table("orders", key="order_id", order="version", delete_when="gone")
        opened.append(SinkQuery(url, table, schema=ROW, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def row(order_id: int, status: str = "new", version: int = 1, gone: bool = False) -> dict[str, Any]:
    return {"order_id": order_id, "status": status, "version": version, "gone": gone}


def orders(url: str) -> list[Any]:
    return run_sql(url, "SELECT order_id, status, version FROM orders ORDER BY order_id")


def test_rows_are_upserted_under_the_guard_and_deleted(
    url: str, query: Callable[..., SinkQuery]
) -> None:
    one = query()
    one.write(0, [row(1), row(2), row(3), row(2, "sent", 2)])
    one.write(1, [row(1, "late", 0), row(3, gone=True, version=2), row(4)])
    one.write(2, [row(3, "late", 1)])

    assert orders(url) == [(1, "new", 1), (2, "sent", 2), (4, "new", 1)]


def test_a_batch_that_comes_again_is_skipped(url: str, query: Callable[..., SinkQuery]) -> None:
    query().write(0, [row(1), row(2)])
    run_sql(url, "DELETE FROM orders")

    again = query().write(0, [row(2), row(1)], run_id="after a crash")

    assert again.step is BatchStep.SKIP
    assert orders(url) == []


def test_a_batch_with_other_rows_is_refused(url: str, query: Callable[..., SinkQuery]) -> None:
    query().write(0, [row(1), row(2)])

    with pytest.raises(errors.BatchDiffers):
        query().write(0, [row(1), row(2), row(3)], run_id="another driver")
    assert len(orders(url)) == 2


def test_an_older_run_is_fenced(url: str, query: Callable[..., SinkQuery]) -> None:
    one, other = query(), query()
    one.write(0, [row(1)], run_id="older")
    other.write(1, [row(2)], run_id="newer")

    with pytest.raises(errors.Fenced):
        one.write(2, [row(3)], run_id="older")
    other.write(2, [row(4)], run_id="newer")
    assert [found[0] for found in orders(url)] == [1, 2, 4]


def test_another_query_is_refused_until_it_is_adopted(
    url: str, query: Callable[..., SinkQuery]
) -> None:
    query().write(0, [row(1)])
    other = query(query_id="new checkpoint")

    with pytest.raises(errors.CheckpointReplaced, match="instep sink adopt orders"):
        other.write(0, [row(2)], run_id="r2")
    batches.adopt(url, "orders")
    other.write(0, [row(2)], run_id="r2")
    assert [found[0] for found in orders(url)] == [1, 2]


def test_missing_batches_are_noticed(url: str, query: Callable[..., SinkQuery]) -> None:
    one = query()
    one.write(0, [row(1)])

    with pytest.raises(errors.BatchesMissing, match="has batch 0, but the query is at 2"):
        one.write(2, [row(2)])
    assert len(orders(url)) == 1


@pytest.mark.parametrize("is_written_to", [False, True], ids=["new", "after a single write"])
def test_a_query_that_has_run_elsewhere_is_refused_until_it_is_adopted(
    url: str, query: Callable[..., SinkQuery], is_written_to: bool
) -> None:
    one = query()
    if is_written_to:
        batch = IncomingBatch("", "of the write", 0, "0:0")
        one.session.merge(batch, [one.message([row(9)])], is_stream=False)

    with pytest.raises(errors.BatchesMissing, match=r"no batch in this database.* at 57"):
        one.write(57, [row(1)])
    batches.adopt(url, "orders")
    batches.adopt(url, "orders")
    one.write(57, [row(1)])

    with pytest.raises(errors.BatchesMissing):
        one.write(59, [row(2)])
    assert [found[0] for found in orders(url)] == ([1, 9] if is_written_to else [1])


def test_a_single_write_does_not_use_up_an_adoption(
    url: str, query: Callable[..., SinkQuery]
) -> None:
    one = query()
    batches.adopt(url, "orders")
    batch = IncomingBatch("", "of the write", 0, "0:0")
    one.session.merge(batch, [one.message([row(9)])], is_stream=False)

    one.write(57, [row(1)])

    assert [found[0] for found in orders(url)] == [1, 9]


def test_staged_rows_are_merged_and_removed(url: str, query: Callable[..., SinkQuery]) -> None:
    one = query()
    message = one.message([row(1), row(2)])
    one.write(0, [row(9)])
    with one.session_open() as opened:
        stage = Batches(opened.connection, "orders").stage
        stage("token", "run", 1, 0, message.chunks)
        stage("lost speculative task", "run", 1, 0, one.message([row(5)]).chunks)
    staged = TaskMessage(message.query_id, "run", message.digest, [], "token", 1)

    one.merge(1, [staged])

    assert [found[0] for found in orders(url)] == [1, 2, 9]
    assert run_sql(url, "SELECT count(*) FROM instep_staged_rows") == [(0,)]


def test_a_single_write_leaves_the_staged_rows_of_others_alone(
    url: str, query: Callable[..., SinkQuery]
) -> None:
    one = query()
    message = one.message([row(1), row(2)])
    write, other = batches.new_write(), batches.new_write()
    with one.session_open() as opened:
        stage = Batches(opened.connection, "orders").stage
        stage("of the write", write, 0, 0, message.chunks)
        stage("of a lost task of it", write, 0, 0, message.chunks)
        stage("of another write", other, 0, 0, message.chunks)
        stage("of a stream", "run", 0, 0, message.chunks)
    staged = TaskMessage("", write, message.digest, [], "of the write", 1)
    batch = IncomingBatch("", write, 0, message.digest)

    one.session.merge(batch, [staged], is_stream=False)
    again = one.session.merge(batch, [staged], is_stream=False)

    assert again.step is BatchStep.SKIP
    assert [found[0] for found in orders(url)] == [1, 2]
    left = run_sql(url, "SELECT token FROM instep_staged_rows ORDER BY token")
    assert left == [("of a stream",), ("of another write",)]


def test_a_stream_that_starts_leaves_the_staged_rows_of_a_running_write_alone(
    url: str, query: Callable[..., SinkQuery]
) -> None:
    one = query()
    message = one.message([row(1), row(2)])
    write = batches.new_write()
    with one.session_open() as opened:
        stage = Batches(opened.connection, "orders").stage
        stage("of the write", write, 0, 0, message.chunks)
        stage("of the stream before", "older run", 0, 0, message.chunks)

    one.write(0, [row(9)])
    staged = TaskMessage("", write, message.digest, [], "of the write", 1)
    one.session.merge(IncomingBatch("", write, 0, message.digest), [staged], is_stream=False)

    assert [found[0] for found in orders(url)] == [1, 2, 9]
    assert run_sql(url, "SELECT count(*) FROM instep_staged_rows") == [(0,)]


@pytest.mark.parametrize("is_stream", [True, False])
def test_rows_of_a_write_that_never_ended_are_removed_after_a_week(
    url: str, query: Callable[..., SinkQuery], is_stream: bool
) -> None:
    one = query()
    message = one.message([row(1)])
    with one.session_open() as opened:
        stage = Batches(opened.connection, "orders").stage
        stage("killed long ago", batches.new_write(8 * 86_400), 0, 0, message.chunks)
        stage("killed lately", batches.new_write(6 * 86_400), 0, 0, message.chunks)

    batch = IncomingBatch("query", batches.new_write(), 0, message.digest)
    one.session.merge(batch, [message], is_stream=is_stream)

    assert run_sql(url, "SELECT token FROM instep_staged_rows") == [("killed lately",)]


def test_lost_staged_rows_are_noticed(url: str, query: Callable[..., SinkQuery]) -> None:
    one = query()
    lost = TaskMessage("query", "run", "2:00", [], "gone", 3)

    with pytest.raises(errors.StagingLost, match="staged 3 pieces"):
        one.merge(0, [one.message([row(1)]), lost])
    assert orders(url) == []


@pytest.mark.parametrize("on_error", ["stop", "park"])
def test_a_staged_row_above_the_packet_size_is_a_refused_row(url: str, on_error: str) -> None:
    if not url.startswith(("mysql", "mariadb")):
        pytest.skip("only MariaDB and MySQL limit the size of a packet")
    [(before,)] = run_sql(url, "SELECT @@GLOBAL.max_allowed_packet")
    run_sql(url, "DROP TABLE IF EXISTS notes")
    run_sql(url, "CREATE TABLE notes (id INTEGER PRIMARY KEY, note LONGTEXT)")
    schema = pa.schema([("id", pa.int32()), ("note", pa.string())])
    # text that cannot be compressed much
    large = random.Random(1).randbytes(1_500_000).hex()
    rows: list[dict[str, Any]] = [{"id": 1, "note": "short"}, {"id": 2, "note": large}]
    run_sql(url, "SET GLOBAL max_allowed_packet = 1048576")
    try:
        one = SinkQuery(url, definition.table("notes", key="id"), schema=schema, on_error=on_error)
        message = one.message(rows)
        stage = task._Stage(one.definition, one.session.inspect()[0], "run", 0)
        stage.add(message.chunks)
        stage.close()
        staged = TaskMessage("query", "run", message.digest, [], stage.token, stage.count)
        assert stage.count > len(message.chunks)

        if on_error == "stop":
            with pytest.raises(errors.RowRefused, match="RECORD_TOO_LARGE"):
                one.merge(0, [staged])
        else:
            assert one.merge(0, [staged]).reasons == {"RECORD_TOO_LARGE": 1}
            assert run_sql(url, "SELECT id, note FROM notes") == [(1, "short")]
        one.close()
    finally:
        run_sql(url, f"SET GLOBAL max_allowed_packet = {before}")


def test_large_chunks_are_staged_in_pieces(url: str, query: Callable[..., SinkQuery]) -> None:
    one = query()
    one.write(0, [row(9)])
    chunks = [b"a" * (2 * batches.PIECE_BYTES + 1), b"b" * batches.PIECE_BYTES, b"", b"c"]
    with one.session_open() as opened:
        state = Batches(opened.connection, "orders")
        count = state.stage("token", "run", 1, 0, chunks)
        found = list(state.staged("token", count))

    assert (count, found) == (6, chunks)


def test_a_refused_row_stops_the_query_and_nothing_is_written(
    url: str, query: Callable[..., SinkQuery]
) -> None:
    with pytest.raises(errors.RowRefused, match="2 rows of the batch cannot be written"):
        query().write(0, [row(1), row(2, "bad"), {**row(3), "order_id": None}])

    assert orders(url) == []
    assert run_sql(url, "SELECT count(*) FROM instep_batches") == [(0,)]


def test_refused_rows_are_parked_and_the_others_written(
    url: str, query: Callable[..., SinkQuery], caplog: pytest.LogCaptureFixture
) -> None:
    one = query(on_error="park")
    result = one.write(0, [row(1), row(2, "bad"), {**row(3), "order_id": None}, row(4)])
    [warning] = caplog.messages
    one.write(1, [row(2, "good", 2), row(4, "sent", 2)])

    assert result.quarantined == 2
    assert "sink 'orders', batch 0: 2 of 4 rows went to quarantine" in warning
    assert "(REFUSED_BY_TARGET: 1, WRONG_TYPE: 1)" in warning
    assert caplog.messages[1].count("1 of 2 rows went to quarantine (WAITS_BEHIND: 1)") == 1
    assert orders(url) == [(1, "new", 1), (4, "sent", 2)]
    reasons = run_sql(url, "SELECT document, reason FROM instep_parked ORDER BY reason")
    assert reasons == [("2", "REFUSED_BY_TARGET"), ("2", "WAITS_BEHIND")]
    assert run_sql(url, "SELECT count(*) FROM instep_dead_letters") == [(1,)]


def test_a_key_occurs_once_without_an_order(url: str) -> None:
    one = SinkQuery(url, definition.table("plain", key="order_id"), schema=UNORDERED)
    one.write(0, [{"order_id": 1, "status": "a"}])
    one.write(1, [{"order_id": 1, "status": "b"}, {"order_id": 2, "status": "b"}])

    with pytest.raises(errors.KeyNotUnique, match="several rows of table plain with the key 2"):
        one.write(2, [{"order_id": 2, "status": "c"}, {"order_id": 2, "status": "d"}])
    one.close()
    found = run_sql(url, "SELECT order_id, status FROM plain ORDER BY order_id")
    assert found == [(1, "b"), (2, "b")]


def two_tables(url: str) -> SinkQuery:
    return SinkQuery(
        url,
        definition.table("orders", key="order_id", column="o"),
        definition.table("order_lines", key=["order_id", "line_no"], column="l"),
        schema=BOTH,
    )


def with_deletes(url: str, on_error: str = "stop") -> SinkQuery:
    order = pa.struct([("order_id", pa.int32()), ("status", pa.string()), ("gone", pa.bool_())])
    line = pa.struct([*BOTH.field("l").type.value_type, ("gone", pa.bool_())])
    return SinkQuery(
        url,
        definition.table("orders", key="order_id", delete_when="gone", column="o"),
        definition.table(
            "order_lines", key=["order_id", "line_no"], delete_when="gone", column="l"
        ),
        schema=pa.schema([("o", order), ("l", pa.list_(line))]),
        on_error=on_error,
    )


def order_and_lines(order_id: int, *items: str, gone: bool | None = None) -> dict[str, Any]:
    found = both(order_id, "new", *items)
    return {
        "o": {**found["o"], "gone": gone},
        "l": [{**line, "gone": gone} for line in found["l"]],
    }


@pytest.mark.parametrize("on_error", ["stop", "park"])
def test_a_parent_and_its_lines_are_deleted_in_one_batch(url: str, on_error: str) -> None:
    one = with_deletes(url, on_error)
    one.write(0, [order_and_lines(1, "pen", "ink"), order_and_lines(2, "cup")])

    result = one.write(
        1, [order_and_lines(1, "pen", "ink", gone=True), order_and_lines(3, "jar", gone=False)]
    )

    one.close()
    assert (result.rows, result.quarantined) == (5, 0)
    assert [found[0] for found in orders(url)] == [2, 3]
    lines = run_sql(url, "SELECT order_id, item FROM order_lines ORDER BY order_id")
    assert lines == [(2, "cup"), (3, "jar")]


def test_a_parent_whose_line_stays_is_parked(url: str) -> None:
    one = with_deletes(url, "park")
    one.write(0, [order_and_lines(1, "pen", "ink")])

    lines = order_and_lines(1, "pen", gone=True)["l"]
    result = one.write(1, [{"o": order_and_lines(1, gone=True)["o"], "l": lines}])

    one.close()
    assert result.reasons == {"REFUSED_BY_TARGET": 1}
    assert run_sql(url, "SELECT order_id, item FROM order_lines") == [(1, "ink")]


def test_a_key_of_several_tables_may_not_be_deleted_and_written_without_an_order(url: str) -> None:
    one = with_deletes(url)

    with pytest.raises(errors.KeyNotUnique, match="several rows of table orders with the key 1"):
        one.write(0, [order_and_lines(1), order_and_lines(1, gone=True)])
    one.close()


def both(order_id: int, status: str, *items: str) -> dict[str, Any]:
    lines = [
        {"order_id": order_id, "line_no": number, "item": item} for number, item in enumerate(items)
    ]
    return {"o": {"order_id": order_id, "status": status}, "l": lines}


def test_a_parent_and_its_lines_are_one_transaction(url: str) -> None:
    one = two_tables(url)
    one.write(0, [both(1, "new", "ink", "paper"), both(2, "new"), {"o": None, "l": None}])
    with pytest.raises(errors.RowRefused):
        one.write(1, [both(1, "sent", "x" * 21)])
    one.close()

    assert orders(url) == [(1, "new", None), (2, "new", None)]
    lines = run_sql(url, "SELECT order_id, line_no, item FROM order_lines ORDER BY line_no")
    assert lines == [(1, 0, "ink"), (1, 1, "paper")]


def test_a_lost_connection_is_opened_again(url: str, query: Callable[..., SinkQuery]) -> None:
    one = query()
    one.write(0, [row(1)])
    with pytest.raises(errors.DatabaseUnreachable), one.session_open() as opened:
        opened.close()

    one.write(1, [row(2)])

    assert len(orders(url)) == 2


@pytest.mark.parametrize(
    ("schema", "table", "problem"),
    [
        (ROW, {"key": "status"}, "not unique"),
        (ROW, {"key": "id"}, "the DataFrame has no column 'id'"),
        (UNORDERED, {"key": "order_id", "order": "version"}, "has no column 'version'"),
        (UNORDERED, {"key": "order_id", "delete_when": "status"}, "not boolean"),
        (UNORDERED.append(pa.field("colour", pa.string())), {"key": "order_id"}, "colour"),
        (pa.schema([("order_id", pa.int32()), ("status", pa.int32())]), {"key": "order_id"}, "int"),
        (pa.schema([("order_id", pa.int32())]), {"key": "order_id"}, "does not allow null"),
        (UNORDERED.append(pa.field("a.b", pa.string())), {"key": "order_id"}, "has a dot"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    url: str, schema: pa.Schema, table: dict[str, Any], problem: str
) -> None:
    one = SinkQuery(url, definition.table("orders", **table), schema=schema)

    with pytest.raises(errors.SettingsError) as caught:
        one.session.inspect()
    assert problem in caught.value.what
