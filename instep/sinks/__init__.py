"""STORED: one file per database behind one narrow interface; the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from instep.sinks.sink import Sink
    from instep.sinks.target import Target


def open_sink(to: Target) -> Sink:
    """A connection to the target; its URL picks the database, and only that one's driver is imported."""
    match to.url.partition("+")[0].partition(":")[0]:
        case "sqlite":
            from instep.sinks.sqlite import SqliteSink

            return SqliteSink(to)
        case "postgresql":
            from instep.sinks.postgres import PostgresSink

            return PostgresSink(to)
        case _:
            from instep.sinks.mysql import MysqlSink

            return MysqlSink(to)
