"""Test streams: what they send, when they end, and what they cost the pages."""

from __future__ import annotations

import http.client
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec
import pytest

from instep import errors
from instep.console import live, regexes
from instep.console.pages import cluster as cluster_pages
from instep.console.pages import overview
from instep.console.server import ConsoleServer
from instep.console.workspace import Workspace
from instep.kafka import offsets
from instep.kafka.connection import Cluster
from tests.support import consoles
from tests.support.consoles import PIPELINE, TOPIC, ConsoleFolder, answered, cookie_of
from tests.support.runs import event, send
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

LOST = "The connection to the console is lost"
STILL_HERE = "event: ping"
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
def streaming(
    server: ConsoleServer, path: str, cookie: str, **headers: str
) -> Iterator[OpenStream]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path, headers={"Cookie": cookie, **headers})
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
            assert (stream.parts, stream.lines.count("event: problem")) == (0, 1)
            assert any("unexpected error: RuntimeError" in line for line in stream.lines)
            broken.undo()
            # the next sample may come meanwhile
            wait_until(lambda: stream.parts >= 1, "the part itself")


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


def places_of(stream: OpenStream) -> list[str]:
    return [line.removeprefix("id: ") for line in stream.lines if line.startswith("id: ")]


def following(**values: str) -> str:
    return f"/live/records?{urlencode({'topic': TOPIC, 'partition': '1', **values})}"


def test_followed_records_continue_where_the_browser_was(
    console: ConsoleServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lose nothing that arrived while there was no connection, and show nothing twice."""
    monkeypatch.setattr(live, "TICK_S", 0.05)
    cookie = cookie_of(console)
    with streaming(console, following(), cookie) as stream:
        wait_until(lambda: bool(places_of(stream)), "the first place")
        send(cluster, TOPIC, event("while-connected", 1), partition=1)
        wait_until(lambda: "while-connected" in "".join(stream.lines), "the record")
        place = places_of(stream)[-1]
    send(cluster, TOPIC, event("while-away", 1), partition=1)
    for path, headers in ((following(after=place), {}), (following(), {"Last-Event-ID": place})):
        with streaming(console, path, cookie, **headers) as stream:
            wait_until(lambda: "while-away" in "".join(stream.lines), "the record")
            text = "".join(stream.lines)
            assert "while-connected" not in text
            assert "left out" not in text


def test_a_gap_in_followed_records_is_named(
    console: ConsoleServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_pages, "FOLLOWED_MAX", 5)
    end = offsets.latest(cluster, TOPIC, [1])[1]
    for number in range(12):
        send(cluster, TOPIC, event(f"burst{number}", 1), partition=1)
    with streaming(console, following(after=f"1:{end}"), cookie_of(console)) as stream:
        wait_until(stream.has_whole_part, "the first part")
    text = "".join(stream.lines)
    assert "Up to 7 records are left out here" in text
    assert "burst6" not in text
    assert all(f"burst{number}" in text for number in range(7, 12))


def test_a_log_that_has_become_shorter_is_named(console: ConsoleServer, cluster: Cluster) -> None:
    end = offsets.latest(cluster, TOPIC, [1])[1]
    with streaming(console, following(after=f"1:{end + 9}"), cookie_of(console)) as stream:
        wait_until(stream.has_whole_part, "the first part")
        assert "partition 1 is shorter than before" in "".join(stream.lines)
        assert places_of(stream) == [f"1:{end}"]


def test_a_tab_in_the_background_continues_where_it_was(
    open_page: Callable[[str], Page], console: ConsoleServer, cluster: Cluster
) -> None:
    page = open_page(console.start_url)
    page.goto(f"{console.address}records?{urlencode({'topic': TOPIC, 'live': '1'})}")
    body = page.locator("tbody[data-live]")

    def show(state: str) -> None:
        page.evaluate(
            "state => { Object.defineProperty(document, 'hidden',"
            " {value: state == 'hidden', configurable: true});"
            " document.dispatchEvent(new Event('visibilitychange')); }",
            state,
        )

    def is_shown() -> bool:
        send(cluster, TOPIC, event("in-front", 1), partition=0)
        return "in-front" in body.inner_text()

    wait_until(is_shown, "a record")
    show("hidden")
    send(cluster, TOPIC, event("behind", 1), partition=0)
    show("visible")
    body.get_by_text('"behind"').first.wait_for()


def test_streams_that_hang_keep_no_page_waiting(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie, go_on = cookie_of(console), threading.Event()
    before = overview._numbers

    def hang(*arguments: object) -> tuple[object, ...]:
        go_on.wait(120)
        return before(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(overview, "_numbers", hang)
    opened = [streaming(console, "/live/overview", cookie) for _ in range(40)]
    streams = [one.__enter__() for one in opened]
    # it gives up after 30 seconds
    assert answered(console, f"/settings?pipeline={PIPELINE}", Cookie=cookie).status == 200
    go_on.set()
    wait_until(lambda: all(stream.parts for stream in streams), "all parts")
    for one in opened:
        one.__exit__(None, None, None)


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
        # what opens a stream again at once, and then a request that shows that none came before it
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.evaluate("fetch('/static/console.css?after')")
        wait_until(lambda: bool(asked), "a request")
    assert [url.rpartition("?")[2] for url in asked] == ["after"]
    assert page.get_by_text(ENDED).is_visible()


def test_a_connection_that_is_lost_without_a_word_is_noticed(
    open_page: Callable[[str], Page], office: ConsoleFolder
) -> None:
    """Stop the console's process: its connections stay open, and nothing comes any more."""
    with consoles.started(office) as (process, start_url):
        page = open_page("about:blank")
        page.clock.install()
        with page.expect_response("**/live/overview"):
            page.goto(start_url)
        page.clock.fast_forward(20_000)
        assert page.get_by_text(LOST).is_hidden()
        process.send_signal(signal.SIGSTOP)
        page.clock.fast_forward(26_000)
        page.get_by_text(LOST).wait_for()
        page.clock.fast_forward(26_000)
        process.send_signal(signal.SIGCONT)
        page.get_by_text(LOST).wait_for(state="hidden")


def test_a_server_that_does_not_answer_is_no_lost_connection(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send signs of life while a part is read."""
    monkeypatch.setattr(live, "PING_S", 0.1)
    go_on = threading.Event()
    monkeypatch.setattr(overview, "_numbers", lambda *_: go_on.wait(60))
    with streaming(console, "/live/overview", cookie_of(console)) as stream:
        wait_until(lambda: stream.lines.count(STILL_HERE) > 2, "signs of life")
        go_on.set()


def test_a_stream_asks_to_be_opened_again_after_a_while(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a proxy see a request from time to time: only then can it refuse a person."""
    monkeypatch.setattr(live, "LIFE_S", 0.2)
    monkeypatch.setattr(live, "TICK_S", 0.05)
    with streaming(console, "/live/overview", cookie_of(console)) as stream:
        wait_until(lambda: stream.has_ended, "the end of the stream")
        assert "event: again" in stream.lines


def test_a_page_opens_its_stream_again_without_a_word(
    open_page: Callable[[str], Page], console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LIFE_S", 0.2)
    monkeypatch.setattr(live, "TICK_S", 0.05)
    page = open_page(console.start_url)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    def is_open_again() -> bool:
        page.wait_for_timeout(50)
        return len(asked) > 2

    wait_until(is_open_again, "further streams")
    assert all("/live/overview" in url for url in asked)
    page.wait_for_timeout(300)
    assert page.locator("#connection").is_hidden()
    assert not page.get_by_text(LOST).is_visible()


READ_AT = "[...document.querySelectorAll('dt')].find(t => t.textContent == 'Read')"
READ_TIME = f"{READ_AT}.nextElementSibling.textContent.trim()"


def test_a_part_changes_without_losing_scroll_focus_and_selection(
    open_page: Callable[[str], Page], console: ConsoleServer
) -> None:
    page = open_page(console.start_url)
    page.set_viewport_size({"width": 400, "height": 740})
    page.goto(f"{console.address}pipeline?pipeline={PIPELINE}")
    kept = """() => {
      const wide = document.querySelector('#live .wide');
      return [wide.scrollLeft, document.activeElement === wide, String(getSelection())];
    }"""
    page.evaluate(
        """() => {
          const wide = document.querySelector('#live .wide');
          wide.scrollLeft = 60;
          wide.focus();
          getSelection().selectAllChildren(wide.querySelector('thead th'));
        }"""
    )
    before = page.evaluate(kept)
    assert before == [60, True, "Partition"]
    for _ in range(2):
        shown = page.evaluate(READ_TIME)
        page.wait_for_function(f"before => {READ_TIME} != before", arg=shown)
    assert page.evaluate(kept) == before


def test_focus_stays_with_its_pipeline_when_the_order_changes(
    office: ConsoleFolder, open_page: Callable[[str], Page]
) -> None:
    declared = office.loaded.settings
    both = {**declared.pipelines, "copies of <b>": office.pipeline}
    several = msgspec.structs.replace(
        office.loaded, settings=msgspec.structs.replace(declared, pipelines=both)
    )
    with consoles.serving(several) as server:
        page = open_page(server.start_url)
        page.get_by_role("button", name="Pause updates").click()
        page.get_by_role("link", name="copies of <b>").focus()
        page.evaluate(
            """() => {
              const area = document.querySelector('#live');
              const fresh = area.cloneNode(true);
              const body = fresh.querySelector('tbody');
              body.append(body.firstElementChild);
              window.rows = [...area.querySelectorAll('tbody tr')];
              update(area, fresh.innerHTML);
            }"""
        )
        assert page.evaluate("document.activeElement.textContent") == "copies of <b>"
        # the rows are the same elements in another order
        assert page.evaluate(
            "rows[0] === document.querySelectorAll('#live tbody tr')[1]"
            " && rows[1] === document.querySelectorAll('#live tbody tr')[0]"
        )


def test_updates_are_paused_and_continued(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}pipeline?pipeline={PIPELINE}")
    page.get_by_role("button", name="Pause updates").click()
    page.get_by_text("this page shows the state of then").wait_for()
    shown = page.evaluate(READ_TIME)
    page.wait_for_timeout(4_500)  # longer than a sample takes
    assert page.evaluate(READ_TIME) == shown
    page.get_by_role("button", name="Continue updates").click()
    page.wait_for_function(f"before => {READ_TIME} != before", arg=shown)
    assert page.get_by_text("this page shows the state of then").count() == 0


def test_a_problem_with_followed_records_is_above_them(
    page: Page, console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep the records that are shown, and leave the table a table."""

    def fail(*_: object) -> None:
        raise errors.BrokerUnreachable("the cluster does not answer", "start it")

    monkeypatch.setattr(cluster_pages, "_followed_from", fail)
    page.goto(f"{console.address}records?{urlencode({'topic': TOPIC, 'live': '1'})}")
    page.get_by_text("Unknown: the cluster does not answer").wait_for()
    assert page.locator("tbody > :not(tr)").count() == 0
    monkeypatch.undo()
    page.get_by_text("Unknown: the cluster does not answer").wait_for(state="detached")
