"""The target databases: one file per database; connection, ledger, journal and target table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from instep.sinks.connection import WRITING, Access

if TYPE_CHECKING:
    from instep.sinks.sink import Sink
    from instep.sinks.target import Target


def open_sink(to: Target, access: Access = WRITING) -> Sink:
    """Open a connection to the target, with all its tables."""
    first, *further = open_sinks([to, *to.further], access)
    return first.with_further(further) if further else first


def open_sinks(targets: Sequence[Target], access: Access = WRITING) -> list[Sink]:
    """Open one connection for targets in the same database, written in one transaction.

    Its URL decides which driver is imported. The first sink begins and ends transactions.
    """
    match targets[0].url.partition("+")[0].partition(":")[0]:
        case "sqlite":
            from instep.sinks import sqlite

            return sqlite.open_sinks(targets, access)
        case "postgresql":
            from instep.sinks import postgres

            return postgres.open_sinks(targets, access)
        case _:
            from instep.sinks import mysql

            return mysql.open_sinks(targets, access)
