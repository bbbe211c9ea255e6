"""Compares a table with the rows that events by number must leave in it."""

from __future__ import annotations

from instep import errors
from instep_bench import load
from instep_bench.bench_servers import BenchPipeline


def expected(events: int, documents: int, loaded: int = 0) -> dict[str, tuple[str, int]]:
    """Return status and version of each document after this number of fresh events.

    The first `loaded` documents were loaded, with version 1.
    """
    rows = {load.document(which): (load.status(1), 1) for which in range(loaded)}
    for which in range(min(events, documents)):
        version = (events - which - 1) // documents + 1
        rows[load.document(which)] = (load.status(version), version)
    return rows


def refuse_differences(
    declared: BenchPipeline, events: int, documents: int, *, loaded: int = 0
) -> None:
    """Raise unless the table holds the expected rows and the history, if kept, every event."""
    column = {field: name for name, field in declared.pipeline.columns.items()}
    with declared.sink() as sink:
        names = f"{sink.table.key}, {column['status']}, {column['version']}"
        rows = sink.connection.select(f"SELECT {names} FROM {sink.table.name}")  # noqa: S608
        of_pipeline = f"FROM instep_history WHERE pipeline = {sink.connection.placeholder}"
        kept = sink.connection.select(f"SELECT count(*) {of_pipeline}", (declared.name,))[0][0]
    wanted = expected(events, documents, loaded)
    found = {str(row[0]): (row[1], int(row[2])) for row in rows}
    wrong = [name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)]
    if wrong:
        raise errors.InstepError(
            f"the table is not in step after {events:,} events:"
            f" {len(wrong):,} documents differ, such as {min(wrong)}"
        )
    if declared.pipeline.history and kept != events + loaded:
        raise errors.InstepError(f"the history holds {kept:,} events of {events + loaded:,}")
