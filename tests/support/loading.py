"""Loads of existing documents into a real target, and what they leave in instep's own tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from instep import settings
from instep.operate import load
from instep.operate.row_source import RowSource
from tests.support.databases import run_sql


def row(document: str, version: int, status: str = "LOADED", **fields: Any) -> dict[str, Any]:
    """Return a row of the source, with the fields of an event."""
    return {
        "doc_id": document,
        "status": status,
        "version": version,
        "updated_at": 1_790_000_000_000,
        **fields,
    }


def write_lines(file: Path, rows: Iterable[Any]) -> Path:
    """Write rows as JSON lines; a text is written as it is."""
    lines = (one if isinstance(one, str) else json.dumps(one) for one in rows)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def loaded(
    pipeline: settings.Pipeline, source: RowSource | Path, *, execute: bool = True, **options: Any
) -> load.LoadReport:
    """Load a source, and return the report."""
    if isinstance(source, Path):
        source = RowSource(file=str(source))
    request = load.LoadRequest(source, **{"actor": "tester", **options})
    return load.run("contracts", pipeline, request, execute=execute)


def counts(report: load.LoadReport) -> dict[str, int]:
    """Return the totals of a load that are not 0."""
    return {name: count for name, count in report.totals.items() if count}


def history(url: str) -> list[Any]:
    """Return document, row number and verdict of each row in the history, by document and row."""
    quoted = "`offset`" if url.startswith("m") else '"offset"'
    return run_sql(
        url,
        f"SELECT document, {quoted}, verdict FROM instep_history"
        f" WHERE topic LIKE 'load:%' ORDER BY document, topic, {quoted}",
    )
