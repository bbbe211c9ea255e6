"""Test how pages behave: accessible, by keyboard, on a phone, in two tabs, without servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest

from instep import errors, settings
from instep.console import access, live, workspace
from instep.console.server import ConsoleServer
from instep.kafka import groups
from instep.kafka.connection import Cluster
from scripts import axe
from tests.support import consoles
from tests.support.cli import settings_text
from tests.support.consoles import PIPELINE, TOPIC, ConsoleFolder
from tests.support.databases import run_sql

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PAGES = (
    "",
    f"pipeline?pipeline={PIPELINE}",
    "document?id=p15",
    "document?id=no-such",
    "dead",
    "dead?reason=NOT_JSON",
    "parked",
    "parked/release?document=p15",
    "parked/skip?document=p15",
    "dead/drop?reason=NOT_JSON",
    f"record?topic={TOPIC}&partition=0&offset=0",
    "overdue",
    "decisions",
    "topics",
    f"topic?topic={TOPIC}",
    f"records?topic={TOPIC}",
    f"records?topic={TOPIC}&live=1",
    f"records?topic={TOPIC}&from=nowhere",
    "groups",
    "rewind",
    "rewind/plan?to=start",
    "reconcile",
    "reconcile/run?id=unknown",
    "nowhere",
    "reports",
    "settings",
    f"findings?pipeline={PIPELINE}",
)
FOCUSED = """(() => {
  const element = document.activeElement;
  return [element.innerText, element.placeholder, element.name].join(" ");
})()"""
IS_TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def rules() -> str:
    try:
        return axe.script()
    except errors.MissingPart as error:
        pytest.skip(f"{error.what}; {error.remedy}")


def violations(page: Page, rules: str) -> list[str]:
    """Return what axe finds on a page."""
    page.evaluate(rules)
    found: list[dict[str, Any]] = page.evaluate("axe.run().then(found => found.violations)")
    return [
        f"{one['id']}: {node['html']} {node['failureSummary']}"
        for one in found
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_accessible_and_fits_a_phone(
    page: Page, console: ConsoleServer, rules: str, path: str
) -> None:
    page.goto(console.address + path)
    assert violations(page, rules) == []
    page.set_viewport_size({"width": 360, "height": 740})
    try:
        assert not page.evaluate(IS_TOO_WIDE)
    finally:
        page.set_viewport_size({"width": 1280, "height": 720})


def test_the_plan_and_the_result_of_an_action_are_accessible(
    page: Page, console: ConsoleServer, rules: str
) -> None:
    page.goto(f"{console.address}dead?reason=NOT_JSON")
    page.locator("input[name=place]").first.check()
    page.get_by_role("button", name="Plan to replay the selected").click()
    page.wait_for_url("**/dead/replay?*")
    assert violations(page, rules) == []
    page.get_by_label("Reason, kept").fill("again")
    page.get_by_role("button", name="Replay as ann").click()
    page.wait_for_url("**/done?id=*")
    assert violations(page, rules) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_of_a_group_are_accessible(
    page: Page,
    console: ConsoleServer,
    cluster: Cluster,
    rules: str,
    scheme: Literal["light", "dark"],
) -> None:
    page.emulate_media(color_scheme=scheme)
    try:
        _look_at_a_group(page, console, cluster, rules)
    finally:
        page.emulate_media(color_scheme="light")


def _look_at_a_group(page: Page, console: ConsoleServer, cluster: Cluster, rules: str) -> None:
    groups.commit(cluster, "console-axe", {(TOPIC, 0): 3})
    for path in ("group?group=console-axe", "group/reset?group=console-axe&to=start"):
        page.goto(console.address + path)
        assert violations(page, rules) == [], path
    page.get_by_role("button", name="Reset the group").click()
    page.wait_for_url("**/group/reset/done?*")
    assert violations(page, rules) == []


def test_the_pages_before_the_sign_in_are_accessible(
    console: ConsoleServer,
    office: ConsoleFolder,
    open_page: Callable[[str], Page],
    tmp_path: Path,
    rules: str,
) -> None:
    assert violations(open_page(console.address), rules) == []
    file = tmp_path / "users.toml"
    file.write_text(access.user_entry("vera", "viewer", "long enough"), encoding="utf-8")
    with consoles.serving(office.loaded, auth=file) as server:
        page = open_page(server.address)
        assert page.inner_text("h1") == "Sign in"
        assert violations(page, rules) == []
        page.get_by_label("Name").fill("vera")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("Name or password is wrong").wait_for()
        assert violations(page, rules) == []


def test_a_document_in_two_pipelines_is_accessible(
    office: ConsoleFolder, open_page: Callable[[str], Page], rules: str
) -> None:
    """Give each pipeline's regions a name of their own, and its records a place of their own."""
    declared = office.loaded.settings
    both = {**declared.pipelines, "copies": office.pipeline}
    several = msgspec.structs.replace(
        office.loaded, settings=msgspec.structs.replace(declared, pipelines=both)
    )
    with consoles.serving(several) as server:
        page = open_page(server.start_url)
        page.goto(f"{server.address}document?id=p17")
        assert page.locator("section").count() == 2
        assert violations(page, rules) == []
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
        assert len(ids) == len(set(ids))
        section = page.get_by_role("region", name=f"Pipeline {PIPELINE}")
        section.get_by_role("link", name="raw").first.click()
        section.locator("[aria-live] pre").last.wait_for()


def test_overdue_documents_are_filtered_and_the_command_filters_too(
    office: ConsoleFolder, open_page: Callable[[str], Page], rules: str
) -> None:
    due = {"QUEUED": "1h", "PRINTED": "1h"}
    with consoles.serving(consoles.changed(office, due=due)) as server:
        page = open_page(server.start_url)
        page.goto(f"{server.address}overdue")
        rows = page.get_by_role("region", name="Overdue documents").locator("tbody tr")
        every = rows.count()
        page.get_by_label("Status").select_option("QUEUED")
        page.get_by_label("For longer than").fill("2h")
        page.get_by_role("button", name="Filter").click()
        page.wait_for_url("**status=QUEUED*")
        assert 0 < rows.count() < every
        assert set(rows.locator("td").nth(0).all_inner_texts()) == {"QUEUED"}
        assert violations(page, rules) == []
        command = page.locator("[data-copy]").get_attribute("data-copy") or ""
        assert "--status QUEUED --older-than 2h" in command
        page.get_by_label("For longer than").fill("9999d")
        page.get_by_role("button", name="Filter").click()
        page.get_by_text("0 documents are overdue").wait_for()


@pytest.mark.parametrize("path", PAGES)
def test_dark_pages_are_legible(page: Page, console: ConsoleServer, rules: str, path: str) -> None:
    page.emulate_media(color_scheme="dark")
    try:
        page.goto(console.address + path)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
        assert violations(page, rules) == []
    finally:
        page.emulate_media(color_scheme="light")


def focus(page: Page, name: str) -> None:
    """Press Tab until an element with this text or name has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if name in page.evaluate(FOCUSED):
            return
    raise AssertionError(f"{name!r} cannot be reached")


def test_a_document_is_released_with_the_keyboard_only(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    consoles.unblock(office, "p9")
    page.goto(console.address)
    focus(page, "Document id")
    page.keyboard.type("p9")
    page.keyboard.press("Enter")
    page.wait_for_url("**/document?id=p9")
    focus(page, "What would happen if released")
    page.keyboard.press("Enter")
    page.wait_for_url("**/parked/release?*")
    focus(page, "why")
    page.keyboard.type("released by keyboard")
    page.keyboard.press("Enter")
    page.wait_for_url("**/done?id=*")
    assert "1 applied" in page.inner_text("main")
    assert "p9" not in consoles.parked_documents(office)


def test_an_event_is_skipped_with_the_keyboard_only(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    page.goto(console.address)
    page.keyboard.press("Tab")
    assert "Skip to the content" in page.evaluate(FOCUSED)
    focus(page, "Document id")
    page.keyboard.type("p16")
    page.keyboard.press("Enter")
    page.wait_for_url("**/document?id=p16")
    focus(page, "Skip the blocking event")
    page.keyboard.press("Enter")
    page.wait_for_url("**/parked/skip?*")
    focus(page, "why")
    page.keyboard.type("by keyboard")
    page.keyboard.press("Enter")
    page.wait_for_url("**/done?id=*")
    decided = run_sql(office.url, "SELECT reason FROM instep_decisions WHERE document = 'p16'")
    assert decided == [("by keyboard",)]


def test_a_tab_in_the_background_closes_its_stream(page: Page, console: ConsoleServer) -> None:
    page.goto(console.address)
    hidden = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
    change = "document.dispatchEvent(new Event('visibilitychange'))"
    page.wait_for_function("document.querySelector('#connection').hidden")
    with page.expect_event("requestfailed", lambda request: "/live/overview" in request.url):
        page.evaluate(hidden % "true")
        page.evaluate(change)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2_500)  # longer than a page waits before it connects again
    assert asked == []
    with page.expect_request("**/live/overview"):
        page.evaluate(hidden % "false")
        page.evaluate(change)


def test_a_lost_console_is_reported_until_it_is_back(
    open_page: Callable[[str], Page], office: ConsoleFolder
) -> None:
    with consoles.serving(office.loaded) as server:
        port = server.port
        page = open_page(server.start_url)
        page.locator("tbody tr").first.wait_for()
    page.get_by_text("The connection to the console is lost").wait_for(timeout=30_000)
    page.get_by_role("link", name=PIPELINE).first.wait_for()
    with consoles.serving(office.loaded, port=port) as server:
        page.goto(server.start_url)
        page.locator("tbody tr").first.wait_for()
        assert page.get_by_text("The connection to the console is lost").is_hidden()


def test_two_tabs_show_the_same_and_do_not_disturb_each_other(
    page: Page, console: ConsoleServer
) -> None:
    """Let both tabs follow the pipeline, and close one of them."""
    read = "[...document.querySelectorAll('dt')].find(t => t.textContent == 'Read')"
    shown = f"{read}.nextElementSibling.textContent.trim()"
    url = f"{console.address}pipeline?pipeline={PIPELINE}"
    page.goto(url)
    second = page.context.new_page()
    second.goto(url)
    for one in (page, second):
        one.wait_for_function(f"before => {shown} != before", arg=one.evaluate(shown))
    # both streams show the same sample within a tick
    page.wait_for_function(f"other => {shown} >= other", arg=second.evaluate(shown))
    second.close()
    page.wait_for_function(f"before => {shown} != before", arg=page.evaluate(shown))


def test_a_command_can_be_copied(page: Page, console: ConsoleServer) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{console.address}topics")
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("Copied", exact=True).wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("instep topics list")


def test_a_command_is_copied_without_https(page: Page, console: ConsoleServer) -> None:
    """Browsers have no clipboard API on pages of plain HTTP from other machines."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{console.address}groups")
    page.evaluate(
        "window.read = navigator.clipboard.readText.bind(navigator.clipboard);"
        "Object.defineProperty(navigator, 'clipboard', {value: undefined})"
    )
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("status").get_by_text("Copied", exact=True).wait_for()
    assert page.evaluate("window.read()").startswith("instep groups list")
    page.goto(f"{console.address}groups")
    page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
        "document.execCommand = () => false"
    )
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("Selected: copy it").wait_for()
    assert page.evaluate("String(getSelection())").startswith("instep groups list")


def test_the_first_page_is_small(browser: Browser, console: ConsoleServer) -> None:
    """Count the bytes on the wire of everything that the first page loads."""
    context = browser.new_context()
    page = context.new_page()
    sizes: list[int] = []

    def add(request: Any) -> None:
        if "/live/" not in request.url:
            sizes.append(request.sizes()["responseBodySize"])

    page.on("requestfinished", add)
    page.goto(console.start_url, wait_until="load")
    hosts = page.evaluate(
        "performance.getEntriesByType('resource').map(entry => new URL(entry.name).host)"
    )
    context.close()
    assert sum(sizes) <= 150_000
    assert set(hosts) == {f"127.0.0.1:{console.port}"}


@contextmanager
def impatient() -> Iterator[None]:
    """Let a console give up sooner on a cluster that does not answer."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(workspace, "KAFKA_TIMEOUT_S", 1.0)
        yield


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleServer]:
    """Serve a console whose cluster and database do not answer."""
    folder = tmp_path_factory.mktemp("broken")
    text = settings_text(
        bootstrap="127.0.0.1:1", topic=TOPIC, target=f"sqlite:///{folder}/none/contracts.db"
    )
    (folder / "instep.toml").write_text(text, encoding="utf-8")
    loaded = settings.load_with_origins(folder / "instep.toml", {})
    with impatient(), consoles.serving(loaded) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("", 200, "cannot be opened"),
        (f"pipeline?pipeline={PIPELINE}", 200, "cannot be opened"),
        ("document?id=d1", 404, "cannot be opened"),
        ("dead", 503, "cannot be opened"),
        ("decisions", 200, "cannot be opened"),
        ("topics", 503, "127.0.0.1:1"),
        ("groups", 503, "127.0.0.1:1"),
        ("settings", 200, "doc_no"),
    ],
)
def test_a_page_without_its_servers_says_why(
    broken: ConsoleServer, broken_page: Page, path: str, status: int, words: str
) -> None:
    answer = broken_page.goto(broken.address + path)
    assert answer
    assert answer.status == status
    broken_page.locator("main").get_by_text(words).first.wait_for()


NO_CLUSTER = [
    ("", 200, "127.0.0.1:1"),
    (f"pipeline?pipeline={PIPELINE}", 200, "dead letters"),
    ("document?id=d3", 200, "PRINTED"),
    ("dead", 200, "NOT_JSON"),
    ("parked/release?document=p15", 200, "Nothing is changed yet"),
    ("topics", 503, "127.0.0.1:1"),
]
NO_DATABASE = [
    ("", 200, "cannot be opened"),
    ("document?id=d3", 404, "cannot be opened"),
    ("parked", 503, "cannot be opened"),
    ("decisions", 200, "cannot be opened"),
    ("topics", 200, TOPIC),
    (f"records?topic={TOPIC}&limit=5", 200, "5 records"),
    ("groups", 200, "groups"),
]


@pytest.fixture(scope="module")
def without_cluster(
    office: ConsoleFolder, open_page: Callable[[str], Page]
) -> Iterator[tuple[str, Page]]:
    declared = office.loaded.settings
    kafka = msgspec.structs.replace(declared.kafka, bootstrap="127.0.0.1:1")
    declared = msgspec.structs.replace(declared, kafka=kafka)
    loaded = msgspec.structs.replace(office.loaded, settings=declared)
    with impatient(), consoles.serving(loaded) as server:
        yield server.address, open_page(server.start_url)


@pytest.fixture(scope="module")
def without_database(
    office: ConsoleFolder, open_page: Callable[[str], Page]
) -> Iterator[tuple[str, Page]]:
    gone = f"sqlite:///{office.folder}/none/contracts.db"
    with consoles.serving(consoles.changed(office, target=gone)) as server:
        yield server.address, open_page(server.start_url)


@pytest.mark.parametrize(("path", "status", "words"), NO_CLUSTER)
def test_only_the_cluster_is_missed_while_it_is_down(
    without_cluster: tuple[str, Page], path: str, status: int, words: str
) -> None:
    address, page = without_cluster
    answer = page.goto(address + path)
    assert answer
    assert answer.status == status
    page.locator("main").get_by_text(words).first.wait_for()


@pytest.mark.parametrize(("path", "status", "words"), NO_DATABASE)
def test_only_the_database_is_missed_while_it_is_down(
    without_database: tuple[str, Page], path: str, status: int, words: str
) -> None:
    address, page = without_database
    answer = page.goto(address + path)
    assert answer
    assert answer.status == status
    page.locator("main").get_by_text(words).first.wait_for()


@pytest.fixture(scope="module")
def broken_page(broken: ConsoleServer, open_page: Callable[[str], Page]) -> Page:
    return open_page(broken.start_url)


def test_a_pipeline_is_chosen_if_there_are_several(
    office: ConsoleFolder, open_page: Callable[[str], Page]
) -> None:
    declared = office.loaded.settings
    both = {**declared.pipelines, "copies <b>": office.pipeline}
    several = msgspec.structs.replace(
        office.loaded, settings=msgspec.structs.replace(declared, pipelines=both)
    )
    with consoles.serving(several) as server:
        page = open_page(server.start_url)
        page.goto(f"{server.address}dead")
        page.get_by_role("link", name="copies <b>").click()
        page.wait_for_url("**/dead?pipeline=*")
        assert page.inner_text("h1") == "Dead letters of copies <b>"


def test_hostile_values_do_not_leave_their_event_of_the_stream() -> None:
    text = "a\n\nevent: part\r\ndata: x\rretry: 1\n"
    assert live.event("part", text) == (
        "event: part\ndata: a\ndata: \ndata: event: part\ndata: data: x\ndata: retry: 1\n\n"
    )
