"""Test that rows made by each database have the names that the workload gives its documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from instep import errors, settings, sinks
from instep.sinks import inspection, preparation
from instep_bench import backlog_writer, load

SETTINGS = """
[pipelines.contracts]
topic = "t"
target = "{url}"
table = "filled"
key = "doc_no"

[pipelines.contracts.event]
status = "status"
order = "version"

[pipelines.contracts.columns]
status = "status"
version = "version"
"""


def test_the_database_generates_rows(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = settings.parse(SETTINGS.format(url=database_url)).pipelines["contracts"]
    preparation.prepare(pipeline)
    sink = sinks.open_sink(inspection.inspect("contracts", pipeline))
    try:
        backlog_writer.fill(sink, "status", "version", 3)
        backlog_writer.fill(sink, "status", "version", 12, start=3)
        rows = sorted(
            sink.connection.select(f"SELECT doc_no, status, version FROM {sink.table.name}")
        )
        assert rows == [(load.document(number), "NEW", 0) for number in range(12)]
        backlog_writer.fill(sink, "status", "version", 100_012, start=12)
        assert backlog_writer.total(sink, "version") == (100_012, 0)
        last = sink.connection.select(
            f"SELECT doc_no FROM {sink.table.name} ORDER BY doc_no DESC LIMIT 1"
        )
        assert last == [(load.document(100_011),)]
        backlog_writer.refuse_difference(sink, "version", 100_012, 0)
        with pytest.raises(
            errors.InstepError, match="7 events were expected, 100,012 and 0 were found"
        ):
            backlog_writer.refuse_difference(sink, "version", 100_012, 7)
    finally:
        sink.close()
