"""The contract system: it only reads its own table, which the pipeline keeps up to date."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from fastapi import FastAPI

NAMES = ("id", "title", "status", "version", "changed_ms")


def documents(file: Path) -> list[dict[str, Any]]:
    """Return what the contract system knows about its documents."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)) as connection:
        rows = connection.execute(
            "SELECT doc_no, title, print_status, print_version, changed_ms"
            " FROM contract_document ORDER BY rowid"
        ).fetchall()
    return [dict(zip(NAMES, row, strict=True)) for row in rows]


def application(file: Path) -> FastAPI:
    """Return the contract system's web service."""
    app = FastAPI(title="Contract system")

    @app.get("/documents")
    def list_documents() -> list[dict[str, Any]]:
        return documents(file)

    return app
