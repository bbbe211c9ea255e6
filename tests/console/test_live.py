"""Test streams: what they send, when they end, and what they cost the pages."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec
import pytest

from instep.console import live, regexes
from instep.console.pages import overview
from instep.console.server import ConsoleServer
from instep.console.workspace import Workspace
from instep.kafka.connection import Cluster
from tests.support import consoles
from tests.support.consoles import PIPELINE, TOPIC, ConsoleFolder, answered, cookie_of
from tests.support.runs import event, send
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

LOST = "The connection to the console is lost"
STILL_HERE = ": still here"
ENDED = "Open the start URL that it printed last"


class OpenStream:
    """A stream that a thread reads until it ends."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.lines: list[str] = []
        self._response = response
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def parts(self) -> int:
        """Return the number of parts that were sent."""
        return self.lines.count("event: part")

    def has_whole_part(self) -> bool:
        """Return whether a part was sent up to its end, which is an empty line."""
        return self.parts > 0 and "" in self.lines[self.lines.index("event: part") :]

    def _read(self) -> None:
        for line in self._response:
            self.lines.append(line.decode().rstrip("\r\n"))


@contextmanager
def streaming(server: ConsoleServer, path: str, cookie: str) -> Iterator[OpenStream]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path, headers={"Cookie": cookie})
    response = connection.getresponse()
    assert response.status == 200
    stream = OpenStream(response)
    try:
        yield stream
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: stream.has_ended, "the end of the stream")
        connection.close()


def test_a_stream_ends_when_the_person_signs_out(console: ConsoleServer) -> None:
    cookie = cookie_of(console)
    with streaming(console, "/live/overview", cookie) as stream:
        wait_until(lambda: stream.parts > 0, "the first part")
        origin = f"http://127.0.0.1:{console.port}"
        answered(console, "/sign-out", "POST", Cookie=cookie, Origin=origin)
        wait_until(lambda: stream.has_ended, "the end of the stream")
    assert answered(console, "/live/overview", Cookie=cookie).status == 401


def test_an_unchanged_error_is_sent_once(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send what nobody foresaw as an error too, and do not end the stream."""
    monkeypatch.setattr(live, "TICK_S", 0.05)
    monkeypatch.setattr(live, "PING_S", 0.5)

    def fail(_view: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as broken:
        # an earlier test may have left a table of the same samples
        broken.setattr(Workspace, "cached", lambda _self, _key, _seconds, read: read())
        broken.setattr(overview, "_overview_values", fail)
        with streaming(console, "/live/overview", cookie_of(console)) as stream:
            wait_until(lambda: STILL_HERE in stream.lines, "a sign of life")
            assert stream.parts == 1
            assert any("unexpected error: RuntimeError" in line for line in stream.lines)
            broken.undo()
            # the next sample may come meanwhile
            wait_until(lambda: stream.parts >= 2, "the part itself")


def test_a_pipeline_with_the_name_of_a_page_has_its_own_part(office: ConsoleFolder) -> None:
    declared = msgspec.structs.replace(
        office.loaded.settings, pipelines={"overview": office.pipeline}
    )
    loaded = msgspec.structs.replace(office.loaded, settings=declared)
    with consoles.serving(loaded) as server:
        cookie = cookie_of(server)
        for sampler in server.workspace.samplers.values():
            assert sampler.watch(30) is not None
            sampler.end()
        for path, heading in (
            ("/live/overview", 'aria-label="Pipelines"'),
            ("/live/pipeline?pipeline=overview", 'aria-label="Partitions"'),
        ):
            with streaming(server, path, cookie) as stream:
                wait_until(stream.has_whole_part, "the first part")
                assert any(heading in line for line in stream.lines), path


def test_a_search_that_takes_too_long_is_not_tried_again(
    console: ConsoleServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regexes, "SEARCH_S", 0.3)
    monkeypatch.setattr(live, "TICK_S", 0.05)
    monkeypatch.setattr(live, "PING_S", 0.5)
    started: list[str] = []
    before = regexes.RegexProcess

    def start(pattern: str) -> regexes.RegexProcess:
        started.append(pattern)
        return before(pattern)

    monkeypatch.setattr(regexes, "RegexProcess", start)
    path = f"/live/records?{urlencode({'topic': TOPIC, 'filter': 'key~(a+)+!'})}"
    with streaming(console, path, cookie_of(console)) as stream:

        def is_ended() -> bool:
            send(cluster, TOPIC, event("a" * 60, 1), partition=1)
            return any("takes too long" in line for line in stream.lines)

        wait_until(is_ended, "the end of the search")
        count = len(started)
        signs = stream.lines.count(STILL_HERE)
        wait_until(lambda: stream.lines.count(STILL_HERE) > signs + 1, "further signs of life")
        assert len(started) == count


def test_streams_that_hang_keep_no_page_waiting(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie, go_on = cookie_of(console), threading.Event()
    before = overview._numbers

    def hang(*arguments: object) -> tuple[object, ...]:
        go_on.wait(30)
        return before(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(overview, "_numbers", hang)
    opened = [streaming(console, "/live/overview", cookie) for _ in range(40)]
    streams = [one.__enter__() for one in opened]
    began = time.monotonic()
    assert answered(console, f"/settings?pipeline={PIPELINE}", Cookie=cookie).status == 200
    took_s = time.monotonic() - began
    go_on.set()
    wait_until(lambda: all(stream.parts for stream in streams), "all parts")
    for one in opened:
        one.__exit__(None, None, None)
    assert took_s < 15


def test_a_page_connects_again_by_itself(
    open_page: Callable[[str], Page], office: ConsoleFolder
) -> None:
    """Lose the server and get it back on the same port, with the same sessions."""
    with consoles.serving(office.loaded) as first:
        page = open_page(first.start_url)
        page.locator("tbody tr").first.wait_for()
    page.get_by_text(LOST).wait_for()
    with consoles.serving(office.loaded, port=first.port) as second:
        second.door.sessions = first.door.sessions
        page.get_by_text(LOST).wait_for(state="hidden")
        page.get_by_role("link", name=PIPELINE).first.wait_for()
        assert page.url == second.address


def test_a_page_of_an_ended_session_says_so_and_stops(
    open_page: Callable[[str], Page], office: ConsoleFolder
) -> None:
    with consoles.serving(office.loaded) as first:
        page = open_page(first.start_url)
        page.locator("tbody tr").first.wait_for()
    page.get_by_text(LOST).wait_for()
    with consoles.serving(office.loaded, port=first.port):
        page.get_by_text(ENDED).wait_for()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(3_000)
    assert asked == []
    assert page.get_by_text(ENDED).is_visible()
