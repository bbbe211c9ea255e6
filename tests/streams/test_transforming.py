"""Test streams with a transformation: what they publish, refuse and set apart."""

from __future__ import annotations

import json
import re
import threading
import time
import tomllib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from instep import errors
from instep.document.decoding import Record
from instep.kafka import configs, topics
from instep.kafka.connection import Cluster
from instep.kafka.offsets import LogRecord
from instep.pipeline.runner import RunnerState
from instep.streams import output, reset, starts, transforming
from instep.streams.output import OutputRecord
from instep.streams.runner import StreamRunner
from instep.streams.transforming import OutputPlan
from tests.support.producing import IN_ORDER
from tests.support.streams import Copy, by_key, contents, declare, log, own_id
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GUIDE = Path(__file__).parents[2] / "docs/guides/process-in-two-stages.md"
SCHEMA = "no INT, state STRING, lines ARRAY<STRUCT<id STRING, pages INT>>"
ORDER = f"(SELECT *, from_json(value, '{SCHEMA}') AS o FROM records)"
FILTERED = f"SELECT value FROM {ORDER} WHERE o.state <> 'DRAFT'"
SPLIT = (
    f"SELECT line.id AS key, to_json(line) AS value FROM {ORDER}"
    " LATERAL VIEW explode(o.lines) AS line"
)
CAST = "SELECT CAST(CAST(value AS INT) + 1 AS STRING) AS value FROM records"


def publish(cluster: Cluster, topic: str, values: Sequence[Any], partition: int = 0) -> None:
    """Publish values under the keys key-0, key-1 and so on."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    for number, value in enumerate(values):
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, text, f"key-{number}", partition, headers=[("no", b"%d" % number)])
    assert producer.flush(30) == 0


def ended(run: StreamRunner) -> StreamRunner:
    run.join(90)
    assert not run.is_alive()
    if run.error:
        raise run.error
    return run


def own_headers(record: LogRecord) -> dict[str, bytes | None]:
    return {name: value for name, value in record.headers if name != output.ID}


def test_a_filter_drops_records_and_the_position_passes_them(cluster: Cluster, copy: Copy) -> None:
    name, stream = declare(cluster, sql=FILTERED)
    values = [{"no": n, "state": "DRAFT" if n % 3 == 2 else "NEW"} for n in range(20)]
    publish(cluster, stream.source, values)
    run = ended(copy(name, stream, once=True))
    found = log(cluster, stream.target)
    assert {record.key: json.loads(record.value or b"") for record in found} == {
        f"key-{n}".encode(): value for n, value in enumerate(values) if value["state"] == "NEW"
    }
    assert all(own_headers(one) == {"no": (one.key or b"")[4:]} for one in found)
    totals = run.progress.totals
    assert (totals["records"], totals["applied"]) == (20, len(found))
    position = starts.read_positions(cluster, name)[0]
    assert (position.next_offset, position.records, position.published) == (20, 20, len(found))


def test_a_record_is_split_into_records_with_keys_of_their_own(
    cluster: Cluster, copy: Copy
) -> None:
    name, stream = declare(cluster, sql=SPLIT, partitions=(1, 3))
    orders = [
        {"no": n, "lines": [{"id": f"line-{line}", "pages": n} for line in range(n % 4)]}
        for n in range(12)
    ]
    publish(cluster, stream.source, orders)
    ended(copy(name, stream, once=True))
    found = log(cluster, stream.target)
    expected: dict[bytes | None, list[bytes | None]] = {}
    for order in orders:
        for line in order["lines"]:  # type: ignore[attr-defined]
            value = json.dumps(line, separators=(",", ":")).encode()
            expected.setdefault(line["id"].encode(), []).append(value)
    assert by_key(found) == expected
    topic_id = topics.kafka_spelling(topics.describe(cluster, stream.source).id)
    ids = {own_id(record) for record in found}
    assert ids == {f"{name}/{topic_id}/0/{n}/{line}" for n in range(12) for line in range(n % 4)}


def test_a_reader_that_is_not_read_committed_recognises_repeats_by_their_ids(
    cluster: Cluster, copy: Copy
) -> None:
    name, stream = declare(cluster, sql=SPLIT, partitions=(1, 1))
    lines = [{"id": "a", "pages": 1}, {"id": "b", "pages": 2}]
    publish(cluster, stream.source, [{"lines": lines}])
    ended(copy(name, stream, once=True))
    reset.execute(cluster, name, stream, reset.plan(cluster, name, stream, "start", ()))
    ended(copy(name, stream, once=True))
    found = log(cluster, stream.target, committed=False)
    unique = {own_id(record): record.value for record in found}
    assert len(found) == 4
    assert list(unique.values()) == [b'{"id":"a","pages":1}', b'{"id":"b","pages":2}']


def lines_of_orders(records: DataFrame) -> DataFrame:
    """Return a record per line, joined with a static table: a user's function."""
    from pyspark.sql import functions as sf

    spark = records.sparkSession
    printers = spark.createDataFrame([("line-1", "inkjet")], "id STRING, printer STRING")
    order = records.select(sf.from_json("value", SCHEMA).alias("o"))
    line = order.select(sf.explode("o.lines").alias("line"))
    joined = line.join(printers, sf.col("line.id") == sf.col("id"), "left")
    return joined.select(
        sf.col("line.id").alias("key"),
        sf.coalesce("printer", sf.lit("laser")).alias("value"),
        sf.create_map(sf.lit("pages"), sf.col("line.pages").cast("string")).alias("headers"),
    )


def test_a_python_function_can_join_a_table_and_set_headers(cluster: Cluster, copy: Copy) -> None:
    function = f"{__name__}:lines_of_orders"
    name, stream = declare(cluster, python=function, partitions=(2, 2))
    order = {"lines": [{"id": f"line-{n}", "pages": n} for n in range(3)]}
    publish(cluster, stream.source, [order])
    ended(copy(name, stream, once=True))
    found = {one.key: (one.value, own_headers(one)) for one in log(cluster, stream.target)}
    assert found == {
        b"line-0": (b"laser", {"pages": b"0"}),
        b"line-1": (b"inkjet", {"pages": b"1"}),
        b"line-2": (b"laser", {"pages": b"2"}),
    }


def _examples(language: str) -> list[str]:
    guide = GUIDE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)


def test_the_sql_example_of_the_guide_works(cluster: Cluster, copy: Copy) -> None:
    _, example = _examples("toml")  # the first one is that of two stages
    sql = tomllib.loads(example)["streams"]["order-lines"]["sql"]
    name, stream = declare(cluster, sql=sql, partitions=(1, 2))
    lines = [{"id": "L-1", "pages": 3}, {"id": "L-2", "pages": 5}]
    publish(cluster, stream.source, [{"lines": lines}, {"lines": []}])
    ended(copy(name, stream, once=True))
    assert {one.key: one.value for one in log(cluster, stream.target)} == {
        b"L-1": b'{"id":"L-1","pages":3}',
        b"L-2": b'{"id":"L-2","pages":5}',
    }


def test_the_python_example_of_the_guide_works(
    cluster: Cluster, copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [example] = _examples("py")
    printers = tmp_path / "printers.json"
    printers.write_text('{"id": 1, "name": "inkjet"}\n', encoding="utf-8")
    module = tmp_path / "shop_streams.py"
    module.write_text(example.replace("printers.json", str(printers)), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    name, stream = declare(cluster, python="shop_streams:lines", partitions=(1, 2))
    lines = [{"id": "L-1", "printer": 1}, {"id": "L-2", "printer": 2}]
    publish(cluster, stream.source, [{"lines": lines}])
    ended(copy(name, stream, once=True))
    assert {one.key: one.value for one in log(cluster, stream.target)} == {
        b"L-1": b'{"id":"L-1","name":"inkjet"}',
        b"L-2": b'{"id":"L-2"}',
    }


def test_a_stream_follows_the_log_and_continues_behind_a_stop(cluster: Cluster, copy: Copy) -> None:
    name, stream = declare(cluster, sql=FILTERED)
    first = copy(name, stream)
    wait_until(lambda: first.state is RunnerState.RUNNING, "the stream to run")
    publish(cluster, stream.source, [{"state": "NEW"}] * 5, partition=1)
    wait_until(lambda: len(log(cluster, stream.target)) == 5, "the first records")
    publish(cluster, stream.source, [{"state": "NEW"}] * 5, partition=2)
    wait_until(lambda: len(log(cluster, stream.target)) == 10, "the next records")
    first.stop(patience_s=60)
    publish(cluster, stream.source, [{"state": "NEW"}] * 5)
    assert ended(copy(name, stream, once=True)).progress.totals["records"] == 5
    assert len({own_id(record) for record in log(cluster, stream.target)}) == 15


def test_a_batch_is_cut_at_its_size_and_nothing_is_lost(
    cluster: Cluster, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = []

    class CountedOutputs(transforming.BatchOutputs):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            batches.append(self)

    monkeypatch.setattr(transforming, "BatchOutputs", CountedOutputs)
    monkeypatch.setattr(transforming, "BATCH_BYTES_MAX", 1_000)
    name, stream = declare(cluster, sql="SELECT value FROM records")
    for partition in range(3):
        publish(cluster, stream.source, [f"{partition}-{n}" for n in range(300)], partition)
    ended(copy(name, stream, once=True))
    found = log(cluster, stream.target)
    assert len(found) == len({own_id(record) for record in found}) == 900
    assert contents(found) == contents(log(cluster, stream.source))
    assert len(batches) > 5  # without a limit, one batch would have all of them


def test_batches_become_smaller_if_a_transformation_yields_much(
    cluster: Cluster, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job fails on a record, so none is searched; and later batches become larger again."""
    batches: list[int] = []

    class MeasuredOutputs(transforming.BatchOutputs):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            batches.append(sum(map(len, self.outputs.values())))

    monkeypatch.setattr(transforming, "BatchOutputs", MeasuredOutputs)
    monkeypatch.setattr(transforming, "OUTPUT_BYTES_MAX", 500_000)
    large = "if(value LIKE '\"large%', 100000, 1)"
    name, stream = declare(cluster, sql=f"SELECT repeat(value, {large}) AS value FROM records")
    values = ["large"] * 3 + [f"{n}" for n in range(90)]
    publish(cluster, stream.source, values)
    ended(copy(name, stream, once=True))
    found = log(cluster, stream.target)
    assert len(found) == len({own_id(record) for record in found}) == len(values)
    lengths = sorted(len(record.value or b"") for record in found)
    assert lengths[-3:] == [700_000] * 3
    assert batches[-1] > 1
    assert len(batches) < 12


def test_of_two_runs_at_once_the_older_one_ends(cluster: Cluster, copy: Copy) -> None:
    name, stream = declare(cluster, sql=FILTERED)
    publish(cluster, stream.source, [{"state": "NEW"}] * 20)
    older = copy(name, stream)
    wait_until(lambda: len(log(cluster, stream.target)) == 20, "the first records")
    newer = copy(name, stream)
    wait_until(lambda: newer.state is RunnerState.RUNNING, "the newer run")
    publish(cluster, stream.source, [{"state": "NEW"}] * 20)
    wait_until(lambda: older.state is RunnerState.ENDED, "the end of the older run")
    wait_until(lambda: len(log(cluster, stream.target)) == 40, "the next records")
    assert isinstance(older.error, errors.Fenced)
    assert newer.state is not RunnerState.ENDED


# --- records that fail ----------------------------------------------------------------------------


def test_a_record_that_cannot_be_transformed_stops_the_stream_or_is_a_dead_letter(
    cluster: Cluster, copy: Copy
) -> None:
    name, stream = declare(cluster, sql=CAST, partitions=(1, 1))
    publish(cluster, stream.source, [b"1", b"no number", b"3"])
    with pytest.raises(errors.RecordNotTransformed, match=f"record {stream.source}:0:1: .*CAST"):
        ended(copy(name, stream, once=True))
    assert log(cluster, stream.target) == []
    dead = f"{name}-dead"
    topics.create(cluster, dead, 1)
    run = ended(copy(name, msgspec.structs.replace(stream, dead_letters=dead), once=True))
    assert [one.value for one in log(cluster, stream.target)] == [b"2", b"4"]
    [letter] = log(cluster, dead)
    assert (letter.key, letter.value) == (b"key-1", b"no number")
    headers = dict(letter.headers)
    assert headers[output.REASON] == b"TRANSFORMATION_FAILED"
    assert b"cannot transform record" in (headers[output.DETAIL] or b"")
    assert (run.progress.totals["applied"], run.progress.totals["dead"]) == (2, 1)
    assert starts.read_positions(cluster, name)[0].next_offset == 3


def test_a_stop_while_a_record_is_searched_makes_no_good_record_a_dead_letter(
    cluster: Cluster, copy: Copy, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop cancels the job of a single record, which is not to blame."""
    dead = f"dead-{uuid.uuid4().hex}"
    topics.create(cluster, dead, 1)
    name, stream = declare(cluster, sql=CAST, partitions=(1, 1), dead_letters=dead)
    publish(cluster, stream.source, [b"no number", b"2"])
    run: StreamRunner
    is_reached = threading.Event()
    given = OutputPlan.given

    def slow(self: OutputPlan, records: Sequence[Record]) -> list[OutputRecord]:
        if [record.offset for record in records] == [1]:
            is_reached.set()
            spark.sparkContext.parallelize([0], 1).foreach(lambda _: time.sleep(60))
        return given(self, records)

    with monkeypatch.context() as patched:
        patched.setattr(OutputPlan, "given", slow)
        run = copy(name, stream)
        assert is_reached.wait(60)
        jobs = spark.sparkContext.statusTracker()
        wait_until(lambda: bool(jobs.getActiveJobsIds()), "the job that is cancelled")
        run.stop(patience_s=60)
    assert not run.is_alive()
    assert run.error is None
    ended(copy(name, stream, once=True))
    assert [one.value for one in log(cluster, dead)] == [b"no number"]
    assert [one.value for one in log(cluster, stream.target)] == [b"3"]


def test_output_without_a_key_or_too_large_is_a_dead_letter(cluster: Cluster, copy: Copy) -> None:
    sql = "SELECT if(value = 'a', null, key) AS key, repeat(value, 2000000) AS value FROM records"
    name, stream = declare(cluster, sql=sql, partitions=(1, 1))
    dead = f"{name}-dead"
    topics.create(cluster, dead, 1)
    configs.alter_topic(cluster, dead, {"max.message.bytes": "4000000"})
    stream = msgspec.structs.replace(stream, dead_letters=dead)
    publish(cluster, stream.source, [b"a", b"b"])
    ended(copy(name, stream, once=True))
    reasons = [dict(one.headers)[output.REASON] for one in log(cluster, dead)]
    assert reasons == [b"KEY_MISSING", b"TOO_LARGE"]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT count(*) AS value FROM records", "an aggregation combines several records"),
        ("SELECT value FROM records ORDER BY key", "ORDER BY changes the order"),
        ("SELECT value, rand() AS key FROM records", "depends on chance"),
        ("SELECT key FROM records", "does not yield the column 'value'"),
        ("SELECT value, offset FROM records", "yields the column 'offset', which has no place"),
        ("SELECT offset AS value FROM records", "yields bigint as 'value'"),
        ("SELECT value, struct(key) AS headers FROM records", "as 'headers', which is not a map"),
        ("SELECT value FROM record", "TABLE_OR_VIEW_NOT_FOUND"),
    ],
)
def test_a_transformation_that_does_not_fit_ends_the_stream_before_it_reads(
    sql: str, found: str, cluster: Cluster, copy: Copy
) -> None:
    name, stream = declare(cluster, sql=sql)
    with pytest.raises(errors.SettingsError) as refused:
        ended(copy(name, stream, once=True))
    assert found in refused.value.what
    assert refused.value.what.startswith(f"streams.{name}.sql")
    assert refused.value.remedy


# --- pure -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30))
def test_records_of_one_offset_are_numbered(rows: list[tuple[int, int]]) -> None:
    """The rows of a partition come in the order of offsets, mixed with those of others."""
    ordered = sorted(rows, key=lambda row: row[1])
    found = pa.Table.from_pylist(
        [
            {"partition": part, "offset": offset, "timestamp_ms": at, "key": b"%d" % at}
            for at, (part, offset) in enumerate(ordered)
        ],
        schema=transforming.ROW_SCHEMA,
    )
    seen: dict[tuple[int, int], int] = {}
    expected: dict[int, list[tuple[int, int, bytes]]] = {}
    for at, (part, offset) in enumerate(ordered):
        index = seen[part, offset] = seen.get((part, offset), -1) + 1
        expected.setdefault(part, []).append((offset, index, b"%d" % at))
    numbered = {
        part: [(one.offset, one.index, one.key) for one in outputs]
        for part, outputs, _ in transforming.by_partition(found)
    }
    assert numbered == expected


def test_rows_of_a_batch_say_what_is_published_and_how_far_was_read() -> None:
    output_row = {"partition": 1, "offset": 7, "timestamp_ms": 5, "key": b"k", "value": b"v"}
    rows = [
        output_row,
        {"partition": 1, "offset": 9, "records": 3, "next_offset": 12, "digest": "d"},
        {"partition": 2, "records": 0, "next_offset": 4},
    ]
    found = transforming.BatchOutputs(
        pa.Table.from_pylist(rows, schema=transforming.ROW_SCHEMA), {1: 7, 2: 0}
    )
    assert [one.offset for one in found.outputs[1]] == [7]
    assert found.read_to == {1: 12, 2: 4}
    assert list(found.sources) == [1]
    source = found.sources[1]
    assert (source.first, source.last, source.records) == (7, 9, 3)
    assert (source.last_digest, source.timestamps_ms) == ("d", [5])
