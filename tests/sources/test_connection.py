"""Test the connection to a source database."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from instep import errors, settings
from instep.sources import tables
from instep.sources.connection import SourceConnection
from tests.support.waiting import wait_until

KILLS = {
    "postgres": ("pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mariadb": ("CONNECTION_ID()", "KILL CONNECTION {}"),
    "mysql": ("CONNECTION_ID()", "KILL CONNECTION {}"),
}


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("nonsense", "the source is not a database URL"),
        ("sqlite://", "a SQLite source must be a file"),
        ("oracle://db/x", "instep does not support the source's database 'oracle'"),
        ("postgresql://u@127.0.0.1:1/d", "correct host and port in `source`"),
    ],
)
def test_a_wrong_source_is_named_as_such(source: str, what: str) -> None:
    with pytest.raises(errors.InstepError) as caught:
        tables.prepare(settings.Relay(source=source, topic="t"), "r")
    assert what in str(caught.value)
    assert "target" not in str(caught.value)


@pytest.mark.parametrize("kind", list(KILLS))
def test_a_lost_connection_is_closed_without_a_traceback(
    kind: str, new_database: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    url = new_database(kind)
    own_number, kill = KILLS[kind]
    with SourceConnection(url) as lost, SourceConnection(url) as other:
        number = lost.value(f"SELECT {own_number}")
        other.run(kill.format(number))
        wait_until(lambda: _is_lost(lost), "the end of the connection")
    assert not caplog.records


def _is_lost(opened: SourceConnection) -> bool:
    try:
        opened.value("SELECT 1")
    except errors.DatabaseUnreachable:
        return True
    return False
