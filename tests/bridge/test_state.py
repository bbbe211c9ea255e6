"""Test the state file: one process at a time, foreign files, and what survives."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from instep import errors
from instep.sinks.bridge_state import BridgeState


def opened(path: Path, mapping: str = "m", topic: str = "t") -> BridgeState:
    return BridgeState(path, mapping=mapping, topic=topic)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BridgeState]:
    opened_state = opened(tmp_path / "state.db")
    yield opened_state
    opened_state.close()


def listed(state: BridgeState, *ids: str) -> None:
    listing = state.begin_listing(resume=False)
    state.add_ids(listing, ids, None)
    state.end_listing(listing, 0.0)


def test_a_second_process_is_refused_with_the_id_of_the_first(state: BridgeState) -> None:
    with pytest.raises(errors.BridgeBusy, match=r"process \d+"):
        opened(state.path)
    state.close()
    opened(state.path).close()


def test_only_its_user_can_read_the_file(state: BridgeState) -> None:
    assert state.path.stat().st_mode & 0o077 == 0


def test_a_foreign_or_damaged_file_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE contracts (id)")
    connection.close()
    with pytest.raises(errors.StateUnusable, match="not the state file of a bridge"):
        opened(foreign)
    text = tmp_path / "text.db"
    text.write_text("no database" * 100, encoding="utf-8")
    with pytest.raises(errors.StateUnusable, match="damaged, or not a SQLite file"):
        opened(text)
    with pytest.raises(errors.StateUnusable, match="cannot be written"):
        opened(tmp_path / "no" / "folder.db")
    newer = tmp_path / "newer.db"
    opened(newer).close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(errors.StateUnusable, match="another version of instep"):
        opened(newer)


def test_documents_are_due_in_the_order_of_their_times(state: BridgeState) -> None:
    listed(state, "a", "b", "c")
    rows = {row.id: row for row in state.due(1.0, 10)}
    times = {"a": 30.0, "b": 20.0, "c": None}
    state.save([msgspec.structs.replace(rows[one], next_at=at) for one, at in times.items()])
    assert [row.id for row in state.due(30.0, 10)] == ["b", "a"]
    assert [row.id for row in state.due(30.0, 1)] == ["b"]
    assert state.due(19.0, 10) == []
    assert (state.next_due(19.0), state.next_due(25.0), state.next_due(30.0)) == (20.0, 30.0, None)
    state.clamp(25.0, 1.0)  # the clock was set back
    assert [row.id for row in state.due(1.0, 10)] == ["a"]


def test_a_postponed_document_keeps_what_is_pending(state: BridgeState) -> None:
    listed(state, "a")
    (row,) = state.due(0.0, 1)
    pending = msgspec.structs.replace(row, pending_digest=b"x", pending_version=7)
    state.save([pending])
    state.save([], [msgspec.structs.replace(row, failures=2, next_at=5.0)])
    (after,) = state.due(5.0, 1)
    assert (after.pending_digest, after.pending_version, after.failures) == (b"x", 7, 2)


def test_a_document_that_is_listed_again_while_it_is_asked_stays(state: BridgeState) -> None:
    listed(state, "a", "b")
    listed(state, "b")
    leaving = next(row for row in state.due(0.0, 10) if row.id == "a")
    listed(state, "a", "b")
    state.save([msgspec.structs.replace(leaving, state=0)])
    assert {row.id for row in state.due(0.0, 10)} == {"a", "b"}


def test_an_interrupted_listing_continues_and_a_complete_one_begins_again(
    state: BridgeState,
) -> None:
    first = state.begin_listing(resume=True)
    state.add_ids(first, ["a"], "page 2")
    assert state.begin_listing(resume=True) == msgspec.structs.replace(first, page="page 2")
    state.add_ids(first, ["b"], None)
    state.end_listing(first, 3.0)
    assert state.listed_at() == 3.0
    assert state.begin_listing(resume=True).number == first.number + 1
    assert state.listed_at() is None


def test_an_interrupted_pass_continues_for_a_while(state: BridgeState) -> None:
    assert state.begin_pass(100.0, 60.0) == (1, False)
    assert state.begin_pass(150.0, 60.0) == (1, True)
    assert state.begin_pass(161.0, 60.0) == (2, False)
    state.end_pass()
    assert state.begin_pass(162.0, 60.0) == (3, False)
