"""Test actions that take long: their progress, lost connections, and how they are stopped."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from instep import errors
from instep.console import action_runs
from instep.console.action_runs import ActionResult, ActionRun, ActionRuns
from instep.console.pages import actions
from instep.console.server import ConsoleServer
from instep.document.reasons import Reason
from instep.operate import dead_letters
from instep.pipeline.apply import maintenance
from tests.support import consoles
from tests.support.consoles import Answer, ConsoleFolder, answered, confirmed, cookie_of
from tests.support.databases import run_sql
from tests.support.waiting import wait_until

LETTERS = 5
PATH = "/dead/drop?reason=NULL_NOT_ALLOWED"


class Gate:
    """Lets an action do one transaction after the other."""

    def __init__(self, real: Callable[..., Iterator[Any]]) -> None:
        self.may_go_on, self._real = threading.Semaphore(0), real

    def chunks(self, *arguments: Any, **named: Any) -> Iterator[Any]:
        for chunk in self._real(*arguments, **named):
            yield chunk
            assert not named["execute"] or self.may_go_on.acquire(timeout=30)


@pytest.fixture
def gate(office: ConsoleFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Let a bulk action wait after each dead letter."""
    made = Gate(dead_letters.drop_chunks)
    monkeypatch.setattr(dead_letters, "CHUNK_LETTERS", 1)
    monkeypatch.setattr(dead_letters, "drop_chunks", made.chunks)
    monkeypatch.setattr(actions, "SOON_S", 0.05)
    consoles.add_letters(office, Reason.NULL_NOT_ALLOWED, [f"bulk{n}" for n in range(LETTERS)])
    yield made
    for _ in range(LETTERS):
        made.may_go_on.release()
    run_sql(office.url, "DELETE FROM instep_dead_letters WHERE reason = 'NULL_NOT_ALLOWED'")


def letters(office: ConsoleFolder) -> int:
    [(count,)] = run_sql(
        office.url, "SELECT count(*) FROM instep_dead_letters WHERE reason = 'NULL_NOT_ALLOWED'"
    )
    return int(count)


@pytest.fixture
def cookie(console: ConsoleServer) -> str:
    return cookie_of(console)


def posted(console: ConsoleServer, cookie: str, path: str) -> Answer:
    origin = f"http://127.0.0.1:{console.port}"
    return answered(console, path, "POST", Cookie=cookie, Origin=origin)


def started(console: ConsoleServer, cookie: str) -> str:
    """Start the action; return the path of its page."""
    plan = answered(console, PATH, Cookie=cookie)
    origin = f"http://127.0.0.1:{console.port}"
    body = urlencode([*plan.fields, ("why", "a test")])
    response = answered(console, PATH, "POST", body, Cookie=cookie, Origin=origin)
    assert response.status == 303
    return str(response.headers["location"])


def wait_for(console: ConsoleServer, cookie: str, path: str, text: str) -> None:
    wait_until(lambda: text in answered(console, path, Cookie=cookie).text, text)


def test_a_bulk_action_shows_its_progress(
    console: ConsoleServer, cookie: str, office: ConsoleFolder, gate: Gate
) -> None:
    page = started(console, cookie)
    wait_for(console, cookie, page, f"Running: 1 of {LETTERS} done")
    for _ in range(2):
        gate.may_go_on.release()
    wait_for(console, cookie, page, f"Running: 3 of {LETTERS} done")
    assert 'data-live="/live/action?id=' in answered(console, page, Cookie=cookie).text
    for _ in range(LETTERS):
        gate.may_go_on.release()
    wait_for(console, cookie, page, f"{LETTERS} dropped")
    assert "Running" not in answered(console, page, Cookie=cookie).text
    assert letters(office) == 0


def test_a_bulk_action_is_stopped_between_two_transactions(
    console: ConsoleServer, cookie: str, office: ConsoleFolder, gate: Gate
) -> None:
    page = started(console, cookie)
    wait_for(console, cookie, page, "Running")
    stopped = posted(console, cookie, page.replace("/done?", "/done/stop?"))
    assert (stopped.status, stopped.headers["location"]) == (303, page)
    gate.may_go_on.release()
    wait_for(console, cookie, page, "The action was stopped")
    assert letters(office) == LETTERS - 2


def test_a_bulk_action_goes_on_if_the_browser_leaves(
    console: ConsoleServer, cookie: str, office: ConsoleFolder, gate: Gate
) -> None:
    plan = answered(console, PATH, Cookie=cookie)
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=30)
    headers = {"Cookie": cookie, "Origin": f"http://127.0.0.1:{console.port}"}
    connection.request("POST", PATH, urlencode([*plan.fields, ("why", "a test")]), headers)
    wait_until(lambda: letters(office) < LETTERS)
    connection.close()
    for _ in range(LETTERS):
        gate.may_go_on.release()
    wait_until(lambda: letters(office) == 0)


def test_a_small_action_has_ended_when_its_page_is_shown(
    console: ConsoleServer, cookie: str, office: ConsoleFolder
) -> None:
    consoles.add_letters(office, Reason.NULL_NOT_ALLOWED, ["small"])
    plan = answered(console, PATH, Cookie=cookie)
    done = confirmed(console, cookie, PATH, plan, "a test")
    assert "1 dropped" in done.text
    assert "data-live" not in done.text


def test_only_a_few_actions_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_runs, "RUNNING_MAX", 1)
    runs, may_end = ActionRuns(), threading.Event()
    result = ActionResult("Drop", "contracts", "ann", maintenance.now(), "a test", [])

    def work(_run: ActionRun) -> None:
        may_end.wait(30)

    run = runs.start(result, work)
    with pytest.raises(errors.SettingsError, match="running already"):
        runs.start(result, lambda _run: None)
    may_end.set()
    assert run.wait(10)
    assert runs.start(result, lambda _run: None).wait(10)


def test_an_action_ends_with_the_console() -> None:
    runs = ActionRuns()
    result = ActionResult("Drop", "contracts", "ann", maintenance.now(), "a test", [])

    def work(run: ActionRun) -> None:
        while True:
            run.add([])
            threading.Event().wait(0.01)

    run = runs.start(result, work)
    runs.end()
    assert not run.is_running
    assert run.is_stopped
