"""Test the connection to a source database."""

from __future__ import annotations

import pytest

from instep import errors, settings
from instep.sources import tables


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
