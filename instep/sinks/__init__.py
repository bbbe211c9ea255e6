"""The target databases: one file per database; connection, ledger, journal and target table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from instep.sinks.sink import Sink
    from instep.sinks.target import Target


def open_sink(to: Target) -> Sink:
    """Open a connection to the target. Its URL decides which driver is imported."""
    match to.url.partition("+")[0].partition(":")[0]:
        case "sqlite":
            from instep.sinks import sqlite

            return sqlite.open_sink(to)
        case "postgresql":
            from instep.sinks import postgres

            return postgres.open_sink(to)
        case _:
            from instep.sinks import mysql

            return mysql.open_sink(to)
