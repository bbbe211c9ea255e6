"""One console, one browser and one page for all tests of the console."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from instep import errors
from instep.console import application, workspace
from instep.console.server import ConsoleServer
from instep.console.workspace import ConsoleOptions
from instep.kafka.connection import Cluster
from scripts import chromium
from tests.support import consoles
from tests.support.consoles import ConsoleFolder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Let consoles wait longer for servers than they do for people: the machine may be busy."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(workspace, "KAFKA_TIMEOUT_S", 20.0)
        patched.setattr(application, "READ_PATIENCE_S", 60.0)
        yield


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Start a browser until the tests of the console end: while it runs, asyncio cannot be used."""
    try:
        found = chromium.browser()
        opened = found.__enter__()
    except errors.MissingPart as error:
        pytest.skip(f"no browser: {error.what}; {error.remedy}")
    yield opened
    found.__exit__(None, None, None)


@pytest.fixture(scope="session")
def office(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> ConsoleFolder:
    """Return a folder with a database and a topic that hold good and bad records."""
    return consoles.prepare(tmp_path_factory.mktemp("console"), cluster)


@pytest.fixture(scope="package")
def console(office: ConsoleFolder) -> Iterator[ConsoleServer]:
    options = ConsoleOptions(office.folder / "instep.toml")
    with consoles.serving(office.loaded, options) as server:
        yield server


@pytest.fixture(scope="package")
def open_page(browser: Browser) -> Iterator[Callable[[str], Page]]:
    """Return a function that opens a page with a profile of its own."""
    contexts = []

    def make(url: str) -> Page:
        context = browser.new_context(timezone_id="Europe/Berlin", locale="en-GB")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.goto(url)
        return page

    yield make
    for context in contexts:
        context.close()


@pytest.fixture(scope="package")
def shared_page(console: ConsoleServer, open_page: Callable[[str], Page]) -> Page:
    return open_page(console.start_url)


@pytest.fixture
def page(shared_page: Page) -> Iterator[Page]:
    """Return a signed-in page. No script of a record may run, and nothing may break the policy."""
    problems: list[str] = []

    def see(message: ConsoleMessage) -> None:
        # a page that reports a problem has a status of 400 or more, which browsers log
        if message.type == "error" and "Failed to load resource" not in message.text:
            problems.append(message.text)

    def fail(error: Exception) -> None:
        problems.append(str(error))

    shared_page.on("console", see)
    shared_page.on("pageerror", fail)
    yield shared_page
    hacked = shared_page.evaluate("window.hacked")
    shared_page.remove_listener("console", see)
    shared_page.remove_listener("pageerror", fail)
    assert (problems, hacked) == ([], None)
