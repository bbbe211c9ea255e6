"""Test the pages of topics, records and consumer groups."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from instep.console import workspace
from instep.console.server import ConsoleServer
from instep.kafka import groups, offsets, topics
from instep.kafka.connection import Cluster
from tests.support.consoles import PIPELINE, TOPIC
from tests.support.runs import event, send
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page


def records_url(console: ConsoleServer, **values: object) -> str:
    return f"{console.address}records?{urlencode({'topic': TOPIC, **values})}"


@pytest.fixture(scope="module")
def group(cluster: Cluster, console: ConsoleServer) -> str:
    name = "console-readers"
    groups.commit(cluster, name, {(TOPIC, 0): 3, (TOPIC, 1): 1})
    return name


def test_topics_are_filtered_on_the_server(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}topics")
    page.get_by_label("Name contains").fill("nsole-to")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**match=nsole-to*")
    assert page.locator("tbody tr").count() == 1
    row = page.locator("tbody tr").inner_text()
    assert "in sync" in row
    assert "unknown" not in row
    page.reload()
    assert page.locator("tbody tr").count() == 1


def test_no_topic_matches(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}topics?match=no-such-topic")
    assert "No topic matches" in page.inner_text("main")


def test_a_topic_shows_partitions_and_settings(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}topics?match={TOPIC}")
    page.get_by_role("link", name=TOPIC, exact=True).click()
    page.wait_for_url("**/topic?*")
    assert page.get_by_role("region", name="Partitions").locator("tbody tr").count() == 2
    page.get_by_role("link", name=f"pipeline {PIPELINE}").click()
    page.wait_for_url("**/pipeline?*")
    assert page.inner_text("h1") == f"Pipeline {PIPELINE}"


def test_an_unknown_topic_is_explained(page: Page, console: ConsoleServer) -> None:
    answer = page.goto(f"{console.address}topic?topic=console-topik")
    assert answer
    assert answer.status == 404
    assert TOPIC in page.inner_text("main")


def test_the_newest_records_are_shown(page: Page, console: ConsoleServer) -> None:
    page.goto(records_url(console, limit=5))
    assert page.locator("tbody tr").count() == 5


def test_records_are_sought_by_offset_and_filtered(page: Page, console: ConsoleServer) -> None:
    page.goto(records_url(console))
    page.get_by_label("From:").fill("0")
    page.get_by_label("Partition").fill("0")
    page.get_by_label("Filter").fill("status=QUEUED")
    page.get_by_label("At most").fill("7")
    page.get_by_role("button", name="Read").click()
    page.wait_for_url("**filter=status*")
    assert page.locator("tbody tr").count() == 7
    assert page.locator("tbody tr").first.locator("td").first.inner_text() == "0:0"
    assert "--filter status=QUEUED" in page.locator(".command code").inner_text()


def test_records_are_sought_by_key_and_by_time(page: Page, console: ConsoleServer) -> None:
    page.goto(records_url(console, key="q0", partition=1))
    assert page.locator("tbody tr").count() == 2
    page.goto(records_url(console, **{"from": "@2099-01-01"}))
    assert "No record matches" in page.inner_text("main")


@pytest.fixture(scope="module")
def numbered(cluster: Cluster) -> Iterator[str]:
    """Write 40 records to a topic with two partitions, and some odd ones to the second."""
    name = "console-numbered"
    topics.create(cluster, name, 2)
    for number in range(40):
        send(cluster, name, (b"k%d" % number, b"v%d" % number), partition=number % 2)
    odd = [(b"gone", None), (b"null", b"null"), (None, b"\xff\x00\x10"), (b"long", b"x" * 5_000)]
    send(cluster, name, *odd, partition=1)
    yield name
    topics.delete(cluster, name)


def keys(page: Page) -> list[str]:
    return page.locator("tbody td:nth-child(3)").all_inner_texts()


def paged(page: Page, name: str) -> list[list[str]]:
    """Follow the link of this name to the end; return the keys of each page behind it."""
    pages = []
    while page.get_by_role("link", name=name).count():
        page.get_by_role("link", name=name).click()
        page.wait_for_url(f"**{name.lower()}=**")
        page.wait_for_load_state()
        pages.append(keys(page))
        assert len(pages) < 12
    return pages


@pytest.mark.parametrize("search", [{}, {"filter": "key~^k"}], ids=["all", "filtered"])
def test_records_are_paged_to_the_older_and_to_the_newer(
    page: Page, console: ConsoleServer, numbered: str, search: dict[str, str]
) -> None:
    """Show every record of both partitions once, in both directions."""
    page.goto(records_url(console, topic=numbered, limit=7, **search))
    wanted = [f"k{number}" for number in range(40)]
    paged(page, "Newer")
    pages = [keys(page), *paged(page, "Older")]
    assert [key for one in reversed(pages) for key in one if key.startswith("k")] == wanted
    pages = [keys(page), *paged(page, "Newer")]
    assert [key for one in pages for key in one if key.startswith("k")] == wanted


def test_a_record_of_any_topic_is_shown_whole(
    page: Page, console: ConsoleServer, numbered: str
) -> None:
    page.goto(records_url(console, topic=numbered, key="long", partition=1))
    assert "x" * 1_000 not in page.inner_text("main")
    page.get_by_role("link", name="1:23").click()
    page.wait_for_url("**/record?*")
    assert "x" * 5_000 in page.inner_text("main")
    assert "read from the topic" in page.inner_text("main")
    assert "instep peek --partition 1 --offset 23 --limit 1" in page.inner_text(".command code")


def test_a_tombstone_the_text_null_and_bytes_look_different(
    page: Page, console: ConsoleServer, numbered: str
) -> None:
    page.goto(records_url(console, topic=numbered, limit=4, partition=1))
    values = page.locator("tbody td:nth-child(4)").all_inner_texts()
    assert values[:3] == ["tombstone", "null", "hex ff 00 10"]
    assert keys(page)[2] == "no key"
    for offset, words in ((20, "it has no value"), (21, "null"), (22, "in hexadecimal")):
        place = urlencode({"topic": numbered, "partition": 1, "offset": offset})
        page.goto(f"{console.address}record?{place}")
        assert words in page.inner_text("main")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("older", "x", "the URL has a wrong place"),
        ("newer", "9:1", "partition 9"),
        ("from", "yesterday", "is not a range of places in a log"),
        ("filter", "status", "is not a condition"),
        ("filter", "key~[", "is not a regular expression"),
        ("partition", "9", "has no partition 9"),
    ],
)
def test_a_wrong_search_keeps_the_form(
    page: Page, console: ConsoleServer, name: str, value: str, words: str
) -> None:
    page.goto(records_url(console, **{name: value}))
    assert words in page.inner_text("main .problem")
    if name not in ("older", "newer"):
        assert page.locator(f"input[name={name}]").input_value() == value


def test_new_records_are_followed(page: Page, console: ConsoleServer, cluster: Cluster) -> None:
    page.goto(records_url(console))
    page.get_by_role("link", name="follow new records").click()
    page.wait_for_url("**live=1")
    body = page.locator("tbody[data-live]")
    for number in range(60):  # the stream begins at the end of the log when it opens
        send(cluster, TOPIC, event(f"live{number}", 1), partition=1)
        if body.locator("tr").count():
            break
        page.wait_for_timeout(250)
    body.locator("tr").first.wait_for()
    assert "live" in body.inner_text()


def test_a_group_shows_lag_and_unknown_positions(
    page: Page, console: ConsoleServer, group: str
) -> None:
    page.goto(f"{console.address}groups?match={group}")
    page.get_by_role("link", name=group, exact=True).click()
    page.wait_for_url("**/group?*")
    row = page.get_by_role("region", name="Positions").locator("tbody tr").first.inner_text()
    assert row.split("\t")[2] == "3"


def test_the_list_of_groups_shows_their_lag(
    page: Page, console: ConsoleServer, cluster: Cluster
) -> None:
    ends = offsets.latest(cluster, TOPIC, [0, 1])
    groups.commit(cluster, "console-lag", {(TOPIC, 0): ends[0] - 3, (TOPIC, 1): ends[1]})
    groups.commit(cluster, "console-lag-gone", {(TOPIC, 0): ends[0] + 9})

    def lags() -> dict[str, str]:
        page.goto(f"{console.address}groups?match=console-lag")
        rows = page.get_by_role("region", name="Groups").locator("tbody tr").all()
        return {
            row.locator("th").inner_text(): row.locator("td").nth(2).inner_text() for row in rows
        }

    # a list that was read some seconds ago may be shown, and says so
    wait_until(lambda: lags() == {"console-lag": "3", "console-lag-gone": "0"}, "the lags")
    assert page.get_by_text("groups, as of").locator("time").count() == 1


def test_a_list_is_read_again_in_the_background(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[int] = []
    go_on = threading.Event()

    def read() -> int:
        readings.append(1)
        assert len(readings) == 1 or go_on.wait(30)
        return len(readings)

    key, recent = object(), console.workspace.recent
    assert [recent(key, read).value for _ in range(3)] == [1, 1, 1]
    monkeypatch.setattr(workspace, "RECENT_S", 0.0)
    assert [recent(key, read).value for _ in range(3)] == [1, 1, 1], "somebody had to wait"
    go_on.set()
    wait_until(lambda: recent(key, read).value > 1, "the new value")
    monkeypatch.setattr(workspace, "STALE_S", 0.0)
    count = len(readings)
    assert recent(key, read).value > count - 1


def test_an_unknown_group_is_explained(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}group?group=console-reader")
    assert "does not exist" in page.inner_text("main")


def test_a_reset_shows_its_plan_first(
    page: Page,
    console: ConsoleServer,
    group: str,
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "instep.console.audit")
    page.goto(f"{console.address}group?group={group}")
    page.get_by_label("To:").fill("start")
    page.get_by_role("button", name="Plan the reset").click()
    page.wait_for_url("**/group/reset?*")
    assert "Nothing is changed yet" in page.inner_text("main")
    assert groups.all_positions(cluster, group)[TOPIC, 0] == 3
    page.get_by_role("button", name="Reset the group").click()
    page.wait_for_url("**/group/reset/done?*")
    assert page.get_by_text("moved", exact=True).count() == 2
    assert groups.all_positions(cluster, group)[TOPIC, 0] == 0
    assert "ann has reset a group: instep groups reset" in caplog.text


def test_a_reset_is_refused_if_the_group_has_moved_since(
    page: Page, console: ConsoleServer, group: str, cluster: Cluster
) -> None:
    page.goto(f"{console.address}group/reset?{urlencode({'group': group, 'to': 'end'})}")
    groups.commit(cluster, group, {(TOPIC, 0): 2})
    page.get_by_role("button", name="Reset the group").click()
    page.get_by_text("the plan has changed").wait_for()
    assert groups.all_positions(cluster, group)[TOPIC, 0] == 2


def test_a_reset_goes_to_the_end_that_was_shown(
    page: Page, console: ConsoleServer, group: str, cluster: Cluster
) -> None:
    """Confirm a plan while records arrive: the end that it shows is an offset."""
    page.goto(f"{console.address}group/reset?{urlencode({'group': group, 'to': 'end'})}")
    assert "The command looks for end again" in page.inner_text("main")
    plan = page.get_by_role("region", name="Plan").locator("tbody tr")
    shown = [
        int(text.replace(",", "")) for text in plan.locator("td:nth-child(4)").all_inner_texts()
    ]
    send(cluster, TOPIC, event("after-the-plan", 1), partition=0)
    send(cluster, TOPIC, event("after-the-plan", 1), partition=1)
    page.get_by_role("button", name="Reset the group").click()
    page.wait_for_url("**/group/reset/done?*")
    positions = groups.all_positions(cluster, group)
    assert [positions[TOPIC, 0], positions[TOPIC, 1]] == shown


def test_the_next_page_of_a_list(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}topics?page=9999")
    assert "No topic matches" in page.inner_text("main")
    answer = page.goto(f"{console.address}topics?page=x")
    assert answer
    assert answer.status == 400
