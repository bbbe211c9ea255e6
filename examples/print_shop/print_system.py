"""The print system: it owns the print jobs, and adds an event to its outbox with every change."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException

from instep import Outbox, StatusEvent

STEPS = ("QUEUED", "PRINTING", "PRINTED")
STEP_S = 0.7  # how long a printer takes for a step

outbox = Outbox()


class PrintSystem:
    """Print jobs in a SQLite file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with self._transaction() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS print_job"
                " (id TEXT PRIMARY KEY, title TEXT, status TEXT, version INTEGER, changed_ms REAL)"
            )

    def add(self, title: str) -> str:
        """Add a job and return its id."""
        with self._transaction() as connection:
            (count,) = connection.execute("SELECT count(*) FROM print_job").fetchone()
            job = f"C-{count + 1}"
            connection.execute("INSERT INTO print_job VALUES (?, ?, '', 0, 0)", (job, title))
            self._change(connection, job, "NEW")
        return job

    def change(self, job: str, status: str) -> None:
        """Change the status: the job and its event are committed together, or not at all."""
        with self._transaction() as connection:
            self._change(connection, job, status)

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs."""
        with self._transaction() as connection:
            rows = connection.execute("SELECT * FROM print_job ORDER BY rowid").fetchall()
        names = ("id", "title", "status", "version", "changed_ms")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _change(self, connection: sqlite3.Connection, job: str, status: str) -> None:
        now_ms = time.time() * 1_000
        changed = connection.execute(
            "UPDATE print_job SET status = ?, version = version + 1, changed_ms = ? WHERE id = ?"
            " RETURNING version, title",
            (status, now_ms, job),
        ).fetchone()
        if changed is None:
            raise KeyError(job)
        version, title = changed
        event = StatusEvent(
            document=job,
            status=status,
            version=version,
            fields={"title": title, "changed_ms": now_ms},
        )
        outbox.add(connection, event)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._file, timeout=10, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            with connection:  # commits, or rolls back
                yield connection
        finally:
            connection.close()


def application(system: PrintSystem) -> FastAPI:
    """Return the print system's web service."""
    app = FastAPI(title="Print system")

    @app.get("/jobs")
    def jobs() -> list[dict[str, Any]]:
        return system.jobs()

    @app.post("/jobs")
    def add(title: str = "Contract") -> dict[str, str]:
        return {"id": system.add(title[:200])}

    @app.post("/jobs/{job}/print")
    def start_printing(job: str) -> dict[str, str]:
        try:
            system.change(job, STEPS[0])
        except KeyError:
            raise HTTPException(404, "no such job") from None

        def printer() -> None:
            for status in STEPS[1:]:
                time.sleep(STEP_S)
                system.change(job, status)

        threading.Thread(target=printer, daemon=True).start()
        return {"id": job, "status": STEPS[0]}

    return app
