"""Compare records and results in columns with plain models that take them one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from instep.document.decoding import Record
from instep.document.results import SLOTS, Result
from instep.kafka import reading
from instep.kafka.connection import Cluster
from instep.kafka.reading import RecordColumns
from instep.pipeline.micro_batch import arrow_records
from instep.pipeline.transformed import worker
from instep.pipeline.transformed.collector import ResultCollector
from instep.streams import transforming
from instep.streams.output import OutputRecord

PARTITIONS = range(3)
INT64 = st.integers(-(2**63), 2**63 - 1)
TIMESTAMPS = st.one_of(st.sampled_from([-1, 0, 1_790_000_000_000]), INT64)
BYTES = st.one_of(st.none(), st.just(b""), st.binary(max_size=8), st.just(b"x" * 100_000))
NAMES = st.one_of(st.sampled_from(["", "a", "b"]), st.text(max_size=3))
HEADERS = st.one_of(
    st.just(()), st.lists(st.tuples(NAMES, BYTES), max_size=4).map(tuple)
)  # names may be repeated


class Row(NamedTuple):
    """A record, or a result of one."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    event: bytes | None = b"{}"
    deleted: bytes | None = None


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    """Return records of several partitions, mixed; offsets rise in each, with gaps."""
    ends = dict.fromkeys(PARTITIONS, 0)
    rows = []
    for partition in draw(st.lists(st.sampled_from(PARTITIONS), max_size=12)):
        ends[partition] += draw(st.integers(1, 3))
        fields = (draw(TIMESTAMPS), draw(BYTES), draw(BYTES), draw(HEADERS))
        rows.append(Row(partition, ends[partition] - 1, *fields))
    return rows


@st.composite
def results(draw: st.DrawFn) -> list[Row]:
    """Return what a transformation yields of records: nothing, one row, or several."""
    return [
        one._replace(event=draw(BYTES), deleted=draw(BYTES))
        for one in draw(logs())
        for _ in range(draw(st.integers(0, 3)))
    ]


def cut(rows: Sequence[Row], cuts: Sequence[int]) -> list[Sequence[Row]]:
    """Return rows in the batches in which Spark may pass them."""
    edges = [0, *sorted(min(one, len(rows)) for one in cuts), len(rows)]
    return [rows[start:end] for start, end in itertools.pairwise(edges)]


CUTS = st.lists(st.integers(0, 30), max_size=4)


# --- records --------------------------------------------------------------------------------------


@given(logs(), st.booleans())
def test_records_are_the_same_in_columns(log: list[Row], headers: bool) -> None:
    records = [
        Record(r.offset, r.timestamp_ms, r.key, r.value, r.partition, r.headers) for r in log
    ]
    found = worker._arrow(worker._given(records, headers=headers))
    assert found.schema == worker.SCHEMA
    expected = [(*one[:5], one.headers if headers else ()) for one in log]
    assert list(arrow_records.rows(found)) == expected


@given(logs(), st.booleans())
def test_the_last_record_of_each_partition_is_known(log: list[Row], headers: bool) -> None:
    columns = RecordColumns(
        [one.partition for one in log],
        [one.offset for one in log],
        [one.timestamp_ms for one in log],
        [one.key for one in log],
        [one.value for one in log],
        [one.headers for one in log] if headers else None,
    )
    expected = {
        one.partition: Record(
            one.offset,
            one.timestamp_ms,
            one.key,
            one.value,
            one.partition,
            one.headers if headers else (),
        )
        for one in log
    }
    assert worker._last_records(columns) == expected


class Sent:
    """A message as the client returns it."""

    def __init__(self, row: Row) -> None:
        self._row = row

    def __len__(self) -> int:
        return len(self._row.value or b"")

    def partition(self) -> int:
        return self._row.partition

    def offset(self) -> int:
        return self._row.offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._row.timestamp_ms

    def key(self) -> bytes | None:
        return self._row.key

    def value(self) -> bytes | None:
        return self._row.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return list(self._row.headers) or None


def size(rows: Sequence[Row]) -> int:
    return sum(len(one.key or b"") + len(one.value or b"") for one in rows)


@given(
    logs(),
    st.booleans(),
    st.sampled_from([0, 1, 150_000, 10**9]),
    st.sampled_from([1, 3, 10_000]),
    st.sampled_from([1, 150_000, 8_000_000]),
)
def test_chunks_have_every_record_up_to_the_cut_and_limits(
    log: list[Row], headers: bool, bytes_max: int, records_max: int, chunk_bytes: int
) -> None:
    messages = [(one.partition, Sent(one)) for one in log]
    with (
        mock.patch.object(reading, "messages", return_value=messages),
        mock.patch.object(reading, "CHUNK_RECORDS", records_max),
        mock.patch.object(reading, "CHUNK_BYTES", chunk_bytes),
    ):
        chunks = list(
            reading.columns(cast("Cluster", None), "t", {}, headers=headers, bytes_max=bytes_max)
        )
    found = [row for chunk in chunks for row in arrow_records.rows(worker._arrow(chunk))]
    expected = [(*one[:5], one.headers if headers else ()) for one in log]
    assert found == expected[: len(found)]
    assert all(chunk.offsets for chunk in chunks)
    assert all(not chunk.is_cut for chunk in chunks[:-1])
    is_cut = bool(chunks) and chunks[-1].is_cut
    if is_cut:
        assert size(log[: len(found)]) >= bytes_max > size(log[: len(found) - 1])
    else:
        assert len(found) == len(log)
        assert bytes_max == 0 or size(log) < bytes_max
    begin = 0
    for chunk in chunks:
        end = begin + len(chunk.offsets)
        assert end - begin <= records_max
        assert end - begin == 1 or size(log[begin : end - 1]) < chunk_bytes
        begin = end


# --- results of a pipeline ------------------------------------------------------------------------


def batch(rows: Sequence[Row], *, headers: bool, deleted: bool) -> pa.RecordBatch:
    """Return rows as Spark passes them to the end of a task."""
    schema = [*arrow_records.schema(headers=headers), ("event", pa.binary())]
    if deleted:
        schema.append(("deleted", pa.binary()))
    table = [
        one._asdict() | {"headers": [{"key": k, "value": v} for k, v in one.headers] or None}
        for one in rows
    ]
    return pa.RecordBatch.from_pylist(table, schema=pa.schema(schema))


def model(rows: Sequence[Row], *, headers: bool, deleted: bool) -> dict[int, list[Result]]:
    """Return the results of each partition, made one by one."""
    made: dict[int, list[Result]] = {}
    last: dict[int, tuple[int, int]] = {}
    for one in rows:
        offset, number = last.get(one.partition, (-1, 0))
        number = number + 1 if offset == one.offset else 0
        last[one.partition] = one.offset, number
        document = one.deleted if deleted and one.event is None else one.key
        made.setdefault(one.partition, []).append(
            Result(
                one.offset * SLOTS + number,
                one.timestamp_ms,
                document,
                one.event,
                one.partition,
                one.headers if headers else (),
                source_key=one.key,
                source_value=one.value,
                records=0 if number else 1,
            )
        )
    return made


@given(results(), CUTS, st.booleans(), st.booleans(), st.booleans())
def test_results_are_those_of_a_model(
    rows: list[Row], cuts: list[int], headers: bool, deleted: bool, taken: bool
) -> None:
    collected = ResultCollector()
    found: dict[int, list[Result]] = {}
    for some in cut(rows, cuts):
        collected.add(batch(some, headers=headers, deleted=deleted))
        for partition, complete in collected.take_complete() if taken else ():
            found.setdefault(partition, []).extend(complete)
    for partition in collected.partitions:
        found.setdefault(partition, []).extend(collected.take_rest(partition))
    assert found == model(rows, headers=headers, deleted=deleted)
    for partition in found:
        distinct = {one.offset for one in rows if one.partition == partition}
        assert collected.records(partition) == len(distinct)


# --- what a stream publishes ----------------------------------------------------------------------


@given(results(), CUTS)
def test_what_a_stream_publishes_is_that_of_a_model(rows: list[Row], cuts: list[int]) -> None:
    """The rows come in chunks, and between them rows say how far a range was read."""
    chunks = []
    for some in cut(rows, cuts):
        table: list[dict[str, Any]] = [
            one._asdict() | {"headers": [{"key": k, "value": v} for k, v in one.headers] or None}
            for one in some
        ]
        chunks.append(pa.RecordBatch.from_pylist(table, schema=transforming.ROW_SCHEMA))
        read = {"partition": 0, "records": 1, "next_offset": 99}
        chunks.append(pa.RecordBatch.from_pylist([read], schema=transforming.ROW_SCHEMA))
    found = pa.Table.from_batches(chunks, schema=transforming.ROW_SCHEMA)
    outputs = found.filter(pc.is_null(found["records"]))
    expected = {
        partition: [
            OutputRecord(
                one.offset // SLOTS,
                one.offset % SLOTS,
                one.source_key,
                one.source_value,
                one.headers,
                timestamp_ms=one.timestamp_ms,
            )
            for one in made
        ]
        for partition, made in model(rows, headers=True, deleted=False).items()
    }
    made = {partition: records for partition, records, _ in transforming.by_partition(outputs)}
    assert made == expected
    for _, records, timestamps in transforming.by_partition(outputs):
        assert timestamps == [one.timestamp_ms for one in records]
