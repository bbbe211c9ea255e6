"""Test the check of a table, with the faults that it must find, and pipelines of one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from instep import errors, settings
from instep_bench import bench_servers, load, row_check

EVENTS, DOCUMENTS = 25, 10


@pytest.fixture
def database(tmp_path: Path) -> bench_servers.TargetDatabase:
    url = f"sqlite:///{tmp_path / 'target.db'}"
    return bench_servers.TargetDatabase("sqlite", url, tmp_path, is_ours=True)


def write(declared: bench_servers.BenchPipeline, rows: dict[str, tuple[str, int]]) -> None:
    with declared.sink() as sink, sink.transaction():
        for name, (status, version) in rows.items():
            sink.connection.execute(
                f"INSERT INTO {declared.table} (doc_id, status, version)"
                f" VALUES ('{name}', '{status}', {version})"
            )


@pytest.mark.parametrize("events", [1, 9, 10, 11, EVENTS])
def test_the_expected_rows_are_those_of_the_last_events(events: int) -> None:
    rows = {}
    for number in range(events):
        version, which = divmod(number, DOCUMENTS)
        rows[load.document(which)] = (load.status(version + 1), version + 1)
    assert row_check.expected(events, DOCUMENTS) == rows


def test_a_complete_table_is_accepted(database: bench_servers.TargetDatabase) -> None:
    declared = database.declare("localhost:9092", "a-topic")
    write(declared, row_check.expected(EVENTS, DOCUMENTS))
    row_check.refuse_differences(declared, EVENTS, DOCUMENTS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"doc-0000003": None},
        {"doc-0000003": (load.status(2), 2)},
        {"doc-0000003": ("OTHER", 3)},
        {"doc-0000099": ("CREATED", 1)},
    ],
)
def test_a_wrong_table_is_refused(
    database: bench_servers.TargetDatabase, wrong: dict[str, tuple[str, int] | None]
) -> None:
    rows = {**row_check.expected(EVENTS, DOCUMENTS), **wrong}
    declared = database.declare("localhost:9092", "a-topic")
    write(declared, {name: row for name, row in rows.items() if row})
    with pytest.raises(errors.InstepError, match=f"1 documents differ, such as {min(wrong)}"):
        row_check.refuse_differences(declared, EVENTS, DOCUMENTS)


def test_an_incomplete_history_is_refused(database: bench_servers.TargetDatabase) -> None:
    declared = database.declare("localhost:9092", "a-topic", history=True)
    write(declared, row_check.expected(EVENTS, DOCUMENTS))
    with pytest.raises(errors.InstepError, match="holds 0 events of 25"):
        row_check.refuse_differences(declared, EVENTS, DOCUMENTS)


def test_pipelines_declared_together_share_one_file(
    database: bench_servers.TargetDatabase,
) -> None:
    declared = database.declare_together("localhost:9092", ["one", "two"], history=True)
    [config] = {pipeline.config for pipeline in declared}
    assert list(settings.load(config).pipelines) == [pipeline.name for pipeline in declared]
    assert [pipeline.pipeline.topic for pipeline in declared] == ["one", "two"]
    assert len({pipeline.table for pipeline in declared}) == 2
    assert all(pipeline.pipeline.history for pipeline in declared)
    assert database.pipelines == [pipeline.name for pipeline in declared]
