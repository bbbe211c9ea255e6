"""Test pages, plans and sessions while databases and brokers are slow."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from instep import errors
from instep.console import reading, threads, workspace
from instep.console.pages import actions
from instep.console.reading import ReadingSessions
from instep.console.server import ConsoleServer
from instep.console.threads import ThreadLimit
from instep.console.workspace import ConsoleOptions, Workspace
from instep.document.reasons import Reason
from instep.pipeline.apply.maintenance import MaintenanceSession
from tests.support import consoles
from tests.support.consoles import PIPELINE, ConsoleFolder, answered, confirmed, cookie_of
from tests.support.databases import run_sql


@pytest.fixture
def space(office: ConsoleFolder) -> Workspace:
    """Return a workspace whose threads are not started."""
    return Workspace(office.loaded, ConsoleOptions())


def in_own_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run in another thread: the browser of other tests has an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(work())).result()


def test_a_thread_counts_until_its_function_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BUSY_AFTER_S", 0.1)
    may_end = threading.Event()
    limit = ThreadLimit(1)

    async def requests() -> None:
        with pytest.raises(TimeoutError):
            await limit.run(may_end.wait, 0.05)
        with pytest.raises(errors.Unreachable, match="the console is busy"):
            await limit.run(may_end.wait)
        may_end.set()
        monkeypatch.setattr(threads, "BUSY_AFTER_S", 10.0)
        assert await limit.run(may_end.wait)

    in_own_loop(requests)


def test_an_error_in_a_thread_is_raised_and_frees_it() -> None:
    limit = ThreadLimit(1)

    async def requests() -> None:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await limit.run(lambda: 1 // 0)

    in_own_loop(requests)


def test_a_session_is_used_again(office: ConsoleFolder) -> None:
    sessions = ReadingSessions(PIPELINE, office.pipeline)
    with sessions.borrow() as first, sessions.borrow() as second:
        assert first is not second
    with sessions.borrow() as third:
        assert third in (first, second)
    with pytest.raises(errors.SettingsError), sessions.borrow() as fourth:
        raise errors.SettingsError("a wrong place")
    with sessions.borrow() as fifth:
        assert fifth is not fourth
    sessions.close()


def test_a_session_that_was_lost_is_replaced(office: ConsoleFolder) -> None:
    sessions = ReadingSessions(PIPELINE, office.pipeline)
    with sessions.borrow() as first:
        pass
    first.sink.close()
    with sessions.borrow() as second:
        assert second.sink.journal.dead_letter_count()
    sessions.close()


def test_a_pipeline_has_few_sessions_at_once(
    office: ConsoleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "AT_ONCE_MAX", 1)
    monkeypatch.setattr(reading, "BUSY_AFTER_S", 0.05)
    sessions = ReadingSessions(PIPELINE, office.pipeline)
    with (
        sessions.borrow(),
        pytest.raises(errors.Unreachable, match=f"the database of pipeline {PIPELINE} is busy"),
        sessions.borrow(),
    ):
        pass
    sessions.close()


def test_a_pipeline_that_does_not_answer_hides_no_other(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "PIPELINE_PATIENCE_S", 0.2)
    may_end = threading.Event()

    def read(name: str) -> int:
        if name == "silent":
            may_end.wait(30)
        if name == "broken":
            raise errors.DatabaseUnreachable("it is down")
        return len(name)

    found, problems = space.of_each(["silent", "a", "broken", "bb"], read)
    may_end.set()
    assert found == [("a", 1), ("bb", 2)]
    assert [(name, str(error).partition("\n")[0]) for name, error in problems] == [
        ("silent", "its servers did not answer within 0 s"),
        ("broken", "it is down"),
    ]


def test_what_is_slow_to_read_is_read_once_and_shown_later(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "READING_PATIENCE_S", 0.05)
    may_end = threading.Event()
    readings: list[int] = []

    def read() -> str:
        readings.append(1)
        may_end.wait(30)
        return "all of it"

    for _ in range(3):
        with pytest.raises(errors.Unreachable, match="still being read"):
            space.recent("slow", read)
    may_end.set()
    monkeypatch.setattr(workspace, "READING_PATIENCE_S", 10.0)
    assert space.recent("slow", read).value == "all of it"
    assert len(readings) == 1


def test_a_slow_value_is_kept_for_longer() -> None:
    now_s = time.monotonic()
    made = workspace.RecentValue(1, datetime.now(UTC), now_s - 60, 100.0)
    assert made.is_kept
    assert not made.is_old


def test_a_plan_that_takes_too_long_counts_the_rest(
    console: ConsoleServer, office: ConsoleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    consoles.add_letters(office, Reason.TEXT_TOO_LONG, ["slow1", "slow2", "slow3"])
    monkeypatch.setattr(actions, "PLAN_S", -1.0)
    monkeypatch.setattr(actions, "PLAN_CHUNK", 1)
    cookie, path = cookie_of(console), "/dead/replay?reason=TEXT_TOO_LONG"
    plan = answered(console, path, Cookie=cookie)
    assert "2 more are selected, and will be done too" in plan.text
    done = confirmed(console, cookie, path, plan, "they are right now")
    assert "3 applied" in done.text


def test_a_plan_counts_only_what_will_be_done(
    console: ConsoleServer, office: ConsoleFolder
) -> None:
    consoles.add_letters(office, Reason.NUMBER_OUT_OF_RANGE, ["old1", "new1", "old2"])
    run_sql(
        office.url,
        "UPDATE instep_dead_letters SET topic = 'a-replaced-topic'"
        " WHERE reason = 'NUMBER_OUT_OF_RANGE' AND key LIKE 'old%'",
        "UPDATE instep_dead_letters SET topic = 'a-replaced-topic'"
        " WHERE reason = 'NUMBER_OUT_OF_RANGE' AND CAST(key AS TEXT) LIKE 'old%'",
    )
    cookie, path = cookie_of(console), "/dead/replay?reason=NUMBER_OUT_OF_RANGE"
    plan = answered(console, path, Cookie=cookie)
    assert "2 of the selected dead letters stay as they are" in plan.text
    assert "more are selected" not in plan.text
    assert "1 applied" in confirmed(console, cookie, path, plan, "a test").text
    run_sql(office.url, "DELETE FROM instep_dead_letters WHERE reason = 'NUMBER_OUT_OF_RANGE'")


def test_a_page_that_is_read_writes_nothing(
    console: ConsoleServer, office: ConsoleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    def seen(*arguments: Any, **named: Any) -> Any:
        opened.append(named["access"])
        return MaintenanceSession(*arguments, **named)

    monkeypatch.setattr(reading, "MaintenanceSession", seen)
    console.workspace._reading[PIPELINE].forget()
    cookie = cookie_of(console)
    for path in ("/dead?reason=NOT_JSON", "/parked", "/decisions", "/document?id=d1"):
        assert answered(console, path, Cookie=cookie).status == 200
    assert [access.read_only for access in opened] == [True]


def test_a_plan_looks_at_the_tables_as_they_are_now(
    office: ConsoleFolder, space: Workspace
) -> None:
    with space.session(PIPELINE, "ann", "read") as session:
        assert not session.sink.target.refuses
    run_sql(
        office.url,
        "CREATE TRIGGER no_drafts BEFORE UPDATE OF print_status ON contract_document"
        " WHEN NEW.print_status = 'DRAFT' BEGIN SELECT RAISE(ABORT, 'no drafts'); END",
    )
    try:
        with space.session(PIPELINE, "ann", "plan") as session:
            assert session.sink.target.refuses
    finally:
        run_sql(office.url, "DROP TRIGGER no_drafts")
