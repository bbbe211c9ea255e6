"""Test the page of a document, quarantine, its plans, and the decisions."""

from __future__ import annotations

import html
import re
import shlex
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec
import pytest

from instep import settings
from instep.console.pages import documents, quarantine
from instep.console.server import ConsoleServer
from instep.document.reasons import Reason
from instep.kafka import offsets, reading
from instep.kafka.connection import Cluster
from instep.operate import dead_letters, timeline
from instep.settings import FurtherTable, Transform
from tests.support import consoles
from tests.support.consoles import (
    HOSTILE_VALUES,
    LETTER_OFFSET,
    LONG_STATUS,
    PIPELINE,
    TOPIC,
    ConsoleFolder,
    answered,
    confirmed,
    cookie_of,
    parked_documents,
)
from tests.support.databases import run_sql
from tests.support.runs import event, send

if TYPE_CHECKING:
    from playwright.sync_api import Page

LIST_PAGES = (
    "dead?reason=NOT_JSON",
    "dead?reason=FIELD_MISSING",
    "parked",
    "decisions",
    "",
    f"pipeline?pipeline={PIPELINE}",
)


# values that a page shows escaped, or that forms, URLs or shells might change
CHANGED_ON_THE_WAY = ("lines", "stream", "spaces", "control", "direction", "emoji", "path", "sql")


def document(page: Page, console: ConsoleServer, name: str) -> None:
    page.goto(f"{console.address}document?{urlencode({'id': name})}")


def decisions(office: ConsoleFolder, name: str) -> list[tuple[str, str, str, str]]:
    """Return action, outcome, reason and actor of the decisions about a document."""
    return run_sql(
        office.url,
        "SELECT action, outcome, reason, actor FROM instep_decisions"
        f" WHERE document = '{name}' ORDER BY at",
    )


def statuses(office: ConsoleFolder, prefix: str) -> dict[str, str]:
    """Return the statuses of the documents whose ids begin so."""
    table = "SELECT doc_no, print_status FROM contract_document"
    return dict(run_sql(office.url, f"{table} WHERE doc_no LIKE '{prefix}_'"))


def words_in_shell(command: str) -> list[str]:
    """Return the words of a command as a shell passes them on."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True
    )
    return done.stdout.decode().split("\0")[:-1]


def rejected(office: ConsoleFolder, reason: str) -> int:
    [(count,)] = run_sql(
        office.url, f"SELECT count(*) FROM instep_dead_letters WHERE reason = '{reason}'"
    )
    return int(count)


def test_a_document_is_found_by_its_id(page: Page, console: ConsoleServer) -> None:
    page.goto(console.address)
    page.get_by_placeholder("Document id").fill("d3")
    page.keyboard.press("Enter")
    page.wait_for_url("**/document?id=d3")
    events = page.get_by_role("region", name="Timeline").locator("tbody tr")
    assert events.count() == 2
    assert "PRINTED" in page.locator("dl.facts").nth(1).inner_text()


def test_a_document_says_what_waits_for_it_in_the_topic(
    page: Page, console: ConsoleServer, cluster: Cluster
) -> None:
    """Show events behind the ledger, and that no pipeline runs that would apply them."""
    send(cluster, TOPIC, event("d6", 3, "SENT"), event("d7", 3, "SENT"), partition=0)
    document(page, console, "d6")
    facts = page.locator("dl.facts").first.inner_text()
    assert "never" in facts
    assert "behind the topic" in facts or "has read the whole topic" in facts
    assert "1 of its events wait in the topic" in facts
    last = page.get_by_role("region", name="Timeline").locator("tbody tr").last.inner_text()
    assert "not applied yet" in last
    assert "SENT" in last
    document(page, console, "d8")
    assert "none of its events waits in the topic" in page.inner_text("main")


def test_a_document_that_is_only_in_the_topic_is_found(
    page: Page, console: ConsoleServer, cluster: Cluster
) -> None:
    send(cluster, TOPIC, event("only-in-the-topic", 1), partition=1)
    document(page, console, "only-in-the-topic")
    assert "1 of its events wait in the topic" in page.inner_text("main")
    assert "The table has no row for it" in page.inner_text("main")


def test_a_far_away_end_of_the_topic_is_not_read(
    page: Page, console: ConsoleServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "PENDING_OFFSETS_MAX", 2)
    send(cluster, TOPIC, *(event("far", number) for number in range(5)), partition=0)
    document(page, console, "d9")
    assert "further offsets were not looked at" in page.inner_text("main")


def test_a_document_says_whether_it_is_overdue_and_tried_again(
    office: ConsoleFolder, open_page: Callable[[str], Page]
) -> None:
    redrive = settings.Redrive(reason=["TEXT_TOO_LONG"])
    loaded = consoles.changed(office, due={"QUEUED": "1h"}, redrive=redrive)
    with consoles.serving(loaded) as server:
        page = open_page(server.start_url)
        page.goto(f"{server.address}document?id=p18")
        facts = page.locator("dl.facts").first.inner_text()
        assert "QUEUED for at most 1h" in facts
        assert "overdue" in facts
        assert "Retried by itself" in facts
        assert "next 20" in facts
        page.goto(f"{server.address}overdue")
        assert "never run: events that change these documents may be waiting" in page.inner_text(
            "main"
        )


def test_dead_letters_are_in_the_timeline_by_time(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    """Show a dead letter before the events that came after it."""
    consoles.add_letters(office, Reason.UNFORESEEN, ["q0"])
    run_sql(
        office.url,
        "UPDATE instep_dead_letters SET at = '2020-01-01 00:00:00.000000'"
        " WHERE reason = 'UNFORESEEN'",
    )
    document(page, console, "q0")
    verdicts = page.get_by_role("region", name="Timeline").locator("tbody .state")
    assert verdicts.all_inner_texts()[:2] == ["dead", "applied"]
    run_sql(office.url, "DELETE FROM instep_dead_letters WHERE reason = 'UNFORESEEN'")


def test_an_unknown_document_is_explained(page: Page, console: ConsoleServer) -> None:
    document(page, console, "no-such")
    assert "No pipeline knows document no-such" in page.inner_text("main")
    assert "Searched: contracts" in page.inner_text("main")


def test_a_parked_document_shows_what_waits(page: Page, console: ConsoleServer) -> None:
    document(page, console, "p19")
    assert "2 events wait" in page.inner_text("main")
    assert page.get_by_role("region", name="Waiting events").locator("tbody tr").count() == 2


def test_a_raw_record_is_loaded_on_demand(page: Page, console: ConsoleServer) -> None:
    document(page, console, "d4")
    assert page.locator("#record-1 pre").count() == 0
    page.get_by_role("link", name="raw").first.click()
    page.locator("#record-1 pre").last.wait_for()
    assert '"status": "QUEUED"' in page.locator("#record-1 pre").last.inner_text()
    assert page.url.endswith("document?id=d4")


def test_a_raw_record_has_a_page_of_its_own(page: Page, console: ConsoleServer) -> None:
    place = {"pipeline": PIPELINE, "topic": TOPIC, "partition": 0, "offset": 0}
    page.goto(f"{console.address}record?{urlencode(place)}")
    assert "read from the topic" in page.inner_text("main")
    answer = page.goto(f"{console.address}record?{urlencode({**place, 'offset': 10**9})}")
    assert answer
    assert answer.status == 400
    assert "holds no record at 0:1000000000" in page.inner_text("main")


def test_a_later_result_of_a_record_is_linked_and_selected(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    """Find the record of a place such as 0:0#1; the topic has no such name."""
    consoles.add_letters(office, Reason.NOT_A_CHOICE, ["result"])
    run_sql(
        office.url,
        f"UPDATE instep_dead_letters SET topic = '{TOPIC}#1' WHERE reason = 'NOT_A_CHOICE'",
    )
    page.goto(f"{console.address}dead?reason=NOT_A_CHOICE")
    row = page.get_by_role("region", name="Dead letters").locator("tbody tr")
    assert row.locator("td").nth(1).inner_text() == f"1:{LETTER_OFFSET}#1"
    row.get_by_role("checkbox").check()
    page.get_by_role("button", name="Plan to drop the selected").click()
    page.wait_for_url("**/dead/drop?*")
    assert page.get_by_role("region", name="Changes").locator("tbody tr").count() == 1
    page.go_back()
    page.get_by_role("link", name="raw").click()
    page.get_by_text("kept in quarantine: NOT_A_CHOICE").wait_for()
    run_sql(office.url, "DELETE FROM instep_dead_letters WHERE reason = 'NOT_A_CHOICE'")
    place = {"pipeline": PIPELINE, "topic": f"{TOPIC}#1", "partition": 0, "offset": 0}
    page.goto(f"{console.address}record?{urlencode(place)}")
    page.get_by_text("read from the topic").wait_for()


def test_what_would_happen_is_shown_without_doing_it(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    document(page, console, "p1")
    page.get_by_role("button", name="What would happen if released").click()
    page.wait_for_url("**/parked/release?*")
    assert "Nothing is changed yet" in page.inner_text("main")
    assert "TEXT_TOO_LONG" in page.get_by_role("region", name="Changes").inner_text()
    page.reload()
    assert "Nothing is changed yet" in page.inner_text("main")
    assert "p1" in parked_documents(office)
    assert decisions(office, "p1") == []


def test_an_event_is_skipped_and_its_document_released(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    document(page, console, "p2")
    page.get_by_role("button", name="Skip the blocking event").click()
    page.get_by_label("Reason, kept").fill("the printer sent rubbish")
    page.get_by_role("button", name="Skip as ann").click()
    page.wait_for_url("**/done?id=*")
    assert "1 skipped" in page.inner_text("main")
    document(page, console, "p2")
    page.get_by_role("button", name="What would happen if released").click()
    page.wait_for_url("**/parked/release?*")
    command = page.locator(".command code").inner_text()
    assert shlex.split(command)[:3] == ["instep", "parked", "release"]
    page.get_by_label("Reason, kept").fill("it may continue")
    page.get_by_role("button", name="Release as ann").click()
    page.wait_for_url("**/done?id=*")
    assert "1 applied" in page.inner_text("main")
    assert "p2" not in parked_documents(office)
    assert decisions(office, "p2") == [
        ("skipped", "TEXT_TOO_LONG", "the printer sent rubbish", "ann"),
        ("released", "applied", "it may continue", "ann"),
    ]


def test_the_result_survives_a_reload_and_the_back_button_repeats_nothing(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    page.goto(f"{console.address}parked/skip?document=p3")
    page.get_by_label("Reason, kept").fill("once")
    page.get_by_role("button", name="Skip as ann").click()
    page.wait_for_url("**/done?id=*")
    page.reload()
    assert "1 skipped" in page.inner_text("main")
    page.go_back()
    page.wait_for_url("**/parked/skip?document=p3*")
    assert [row[0] for row in decisions(office, "p3")] == ["skipped"]


def test_a_reason_is_required(page: Page, console: ConsoleServer, office: ConsoleFolder) -> None:
    page.goto(f"{console.address}parked/skip?document=p4")
    page.get_by_role("button", name="Skip as ann").click()
    assert page.url.endswith("parked/skip?document=p4")
    page.get_by_label("Reason, kept").fill("   ")
    page.get_by_role("button", name="Skip as ann").click()
    page.get_by_text("Give a reason").wait_for()
    assert decisions(office, "p4") == []


def test_the_second_of_two_people_sees_what_happened(
    page: Page, console: ConsoleServer, open_page: Callable[[str], Page], office: ConsoleFolder
) -> None:
    url = f"{console.address}parked/skip?document=p5"
    other = open_page(console.start_url)
    for one in (page, other):
        one.goto(url)
        one.get_by_label("Reason, kept").fill("me first")
    for one in (page, other):
        one.get_by_role("button", name="Skip as ann").click()
        one.wait_for_url("**/done?id=*")
    assert "1 skipped" in page.inner_text("main")
    assert "p5 was left alone" in other.inner_text("main")
    assert "ann decided about it: skipped" in other.inner_text("main")
    assert "Nothing was changed" in other.inner_text("main")
    # the event behind it was never refused: it still waits
    assert [row[0] for row in decisions(office, "p5")] == ["skipped"]
    assert "p5" in parked_documents(office)


def test_an_action_needs_its_plan(console: ConsoleServer, office: ConsoleFolder) -> None:
    """Refuse what did not come from the form of a plan, and show the plan."""
    cookie = cookie_of(console)
    before = rejected(office, "NOT_JSON"), decisions(office, "p5")
    for path in (
        "/parked/skip?document=p5",
        "/parked/release?document=p5",
        "/dead/drop?reason=NOT_JSON",
        "/dead/drop?all=1",
    ):
        answer = answered(
            console,
            path,
            "POST",
            "why=unseen",
            Cookie=cookie,
            Origin=f"http://127.0.0.1:{console.port}",
        )
        assert answer.status == 409, path
        assert "look at the plan first" in answer.text
    assert (rejected(office, "NOT_JSON"), decisions(office, "p5")) == before


def test_an_action_refuses_what_another_one_selects_by(
    console: ConsoleServer, office: ConsoleFolder
) -> None:
    """Never take a parameter that an action does not know for "everything"."""
    cookie, origin = cookie_of(console), f"http://127.0.0.1:{console.port}"
    before = rejected(office, "NOT_JSON"), parked_documents(office)
    for path in (
        "/dead/drop?document=p5",
        "/dead/replay?document=p5&all=1",
        "/parked/release?place=0:1",
        "/parked/skip?document=p5&place=0:1",
    ):
        for method in ("GET", "POST"):
            answer = answered(console, path, method, "why=unseen", Cookie=cookie, Origin=origin)
            assert answer.status == 400, (path, method)
            assert "selects by" in answer.text
    assert (rejected(office, "NOT_JSON"), parked_documents(office)) == before


def test_a_release_leaves_alone_what_joined_the_document_after_the_plan(
    console: ConsoleServer, office: ConsoleFolder, cluster: Cluster
) -> None:
    cookie, path = cookie_of(console), "/parked/release?document=joined"

    def publish(version: int, status: str) -> None:
        event = {"doc_id": "joined", "status": status, "version": version, "updated_at": 1}
        consoles.apply(cluster, office, 1, [("joined", event)])

    publish(1, LONG_STATUS)
    publish(2, "PRINTED")
    consoles.unblock(office, "joined")
    plan = answered(console, path, Cookie=cookie)
    publish(3, "SENT")
    done = confirmed(console, cookie, path, plan, "what I saw").text
    assert "1 applied, 1 parked" in done
    assert "it arrived after the plan" in done
    assert [row[1] for row in decisions(office, "joined")] == ["applied"]
    assert "joined" in parked_documents(office)
    again = confirmed(console, cookie, path, plan, "once more").text
    assert "joined</strong> was left alone" in again
    assert "Nothing was changed" in again
    now = answered(console, path, Cookie=cookie)
    assert "1 applied" in confirmed(console, cookie, path, now, "the rest").text
    assert "joined" not in parked_documents(office)


def test_two_people_release_a_document_at_once(
    console: ConsoleServer, office: ConsoleFolder
) -> None:
    """Apply its events once, and tell the other person who was faster."""
    cookie = cookie_of(console)
    path = "/parked/release?document=p5"
    plans = [answered(console, path, Cookie=cookie) for _ in range(2)]
    begin = threading.Barrier(2)

    def confirm(number: int) -> str:
        begin.wait(10)
        return confirmed(console, cookie, path, plans[number], f"person {number}").text

    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(confirm, (0, 1)))
    first, second = sorted(texts, key=lambda text: "Nothing was changed" in text)
    assert "1 applied" in first
    assert "is no longer in quarantine" in second
    assert "ann decided: released (applied)" in second
    assert [row[0] for row in decisions(office, "p5")] == ["skipped", "released"]
    assert "p5" not in parked_documents(office)


def test_selected_documents_are_skipped_together(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    page.goto(f"{console.address}parked?reason=TEXT_TOO_LONG")
    for name in ("p6", "p7"):
        page.get_by_label(f"Select {name}", exact=True).check()
    page.get_by_role("button", name="Plan to skip what blocks the selected").click()
    page.wait_for_url("**/parked/skip?*")
    assert page.get_by_role("region", name="Changes").locator("tbody tr").count() == 2
    page.get_by_label("Reason, kept").fill("both")
    page.get_by_role("button", name="Skip as ann").click()
    page.wait_for_url("**/done?id=*")
    assert [row[0] for name in ("p6", "p7") for row in decisions(office, name)] == ["skipped"] * 2


def test_one_checkbox_selects_all(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}dead?reason=NOT_JSON")
    page.get_by_label("Select all on this page").check()
    boxes = page.locator("input[name=place]")
    assert page.locator("input[name=place]:checked").count() == boxes.count() > 50


def test_nothing_selected_is_explained(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}dead?reason=NOT_JSON")
    page.get_by_role("button", name="Plan to drop the selected").click()
    page.wait_for_url("**/dead/drop?*")
    assert "nothing is selected" in page.inner_text("main")
    page.go_back()
    assert page.inner_text("h1") == f"Dead letters of {PIPELINE}"


def test_a_dead_letter_is_dropped_with_a_reason(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    before = rejected(office, "NOT_JSON")
    page.goto(f"{console.address}dead?reason=NOT_JSON")
    page.locator("input[name=place]").nth(0).check()
    page.locator("input[name=place]").nth(1).check()
    page.get_by_role("button", name="Plan to drop the selected").click()
    page.get_by_label("Reason, kept").fill("a test of the source")
    page.get_by_role("button", name="Drop as ann").click()
    page.wait_for_url("**/done?id=*")
    assert "2 dropped" in page.inner_text("main")
    assert rejected(office, "NOT_JSON") == before - 2


def test_a_replay_that_is_refused_again_keeps_the_letter(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    before = rejected(office, "NOT_JSON")
    page.goto(f"{console.address}dead?reason=NOT_JSON")
    page.locator("input[name=place]").last.check()
    page.get_by_role("button", name="Plan to replay the selected").click()
    page.get_by_label("Reason, kept").fill("try it")
    page.get_by_role("button", name="Replay as ann").click()
    page.wait_for_url("**/done?id=*")
    assert "1 dead" in page.inner_text("main")
    assert rejected(office, "NOT_JSON") == before


def test_a_dead_letter_that_can_be_read_now_is_replayed(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    consoles.add_letters(office, Reason.NOT_A_TIME, ["r0", "r1", "r2", "r3"])
    page.goto(f"{console.address}dead?reason=NOT_A_TIME")
    page.get_by_label(f"Select 1:{LETTER_OFFSET}", exact=True).check()
    page.get_by_role("button", name="Plan to replay the selected").click()
    page.wait_for_url("**/dead/replay?*")
    assert "PRINTED" in page.get_by_role("region", name="Changes").inner_text()
    assert statuses(office, "r") == {}
    page.get_by_label("Reason, kept").fill("the settings are right now")
    page.get_by_role("button", name="Replay as ann").click()
    page.wait_for_url("**/done?id=*")
    assert "1 applied" in page.inner_text("main")
    assert statuses(office, "r") == {"r0": "PRINTED"}


def test_a_whole_reason_is_replayed_except_what_came_after_the_plan(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    page.goto(f"{console.address}dead?reason=NOT_A_TIME")
    page.get_by_role("button", name="Plan to replay all of NOT_A_TIME").click()
    page.wait_for_url("**/dead/replay?*")
    run_sql(
        office.url,
        f'UPDATE instep_dead_letters SET "offset" = {LETTER_OFFSET + 9}'
        f' WHERE "offset" = {LETTER_OFFSET + 3}',
    )
    page.get_by_label("Reason, kept").fill("all of them")
    page.get_by_role("button", name="Replay as ann").click()
    page.wait_for_url("**/done?id=*")
    assert "2 applied" in page.inner_text("main")
    assert set(statuses(office, "r")) == {"r0", "r1", "r2"}
    assert rejected(office, "NOT_A_TIME") == 1


def test_selected_documents_are_released_together(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    consoles.unblock(office, "p17", "p18", "p19")
    page.goto(f"{console.address}parked?reason=WAITS_BEHIND")
    for name in ("p17", "p18"):
        page.get_by_label(f"Select {name}", exact=True).check()
    page.get_by_role("button", name="Plan to release the selected").click()
    page.wait_for_url("**/parked/release?*")
    assert {"p17", "p18", "p19"} <= parked_documents(office)
    page.get_by_label("Reason, kept").fill("both")
    page.get_by_role("button", name="Release as ann").click()
    page.wait_for_url("**/done?id=*")
    assert "2 applied" in page.inner_text("main")
    assert {"p17", "p18", "p19"} & parked_documents(office) == {"p19"}


def test_a_whole_reason_is_released_except_what_was_parked_after_the_plan(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    page.goto(f"{console.address}parked?reason=WAITS_BEHIND")
    page.get_by_role("button", name="Plan to release all of WAITS_BEHIND").click()
    page.wait_for_url("**/parked/release?*")
    planned = set(
        page.get_by_role("region", name="Changes").locator("td:nth-child(2)").all_inner_texts()
    )
    assert "p19" in planned
    later = "strftime('%Y-%m-%d %H:%M:%S.000000', 'now', '+1 hour')"
    consoles.unblock(office, "p0")
    run_sql(office.url, f"UPDATE instep_parked SET at = {later} WHERE document = 'p0'")
    page.get_by_label("Reason, kept").fill("all of them")
    page.get_by_role("button", name="Release as ann").click()
    page.wait_for_url("**/done?id=*")
    assert planned & parked_documents(office) == set()
    assert "p0" in parked_documents(office)


def test_a_pipeline_with_a_transformation_names_the_command(office: ConsoleFolder) -> None:
    """Disable what decodes records: it would need Spark."""
    sql = Transform(sql="SELECT * FROM records")
    with consoles.serving(consoles.changed(office, transform=sql)) as server:
        cookie = cookie_of(server)
        listed = answered(server, "/dead?reason=NOT_JSON", Cookie=cookie)
        replay, drop = re.findall(r"<button formaction[^>]*>", listed.text)[:2]
        assert "which needs Spark" in replay
        assert "disabled" not in drop
        for path in ("/dead/replay?reason=NOT_JSON", "/parked/release?document=p12"):
            answer = answered(server, path, Cookie=cookie)
            assert answer.status == 400
            assert "which needs Spark" in answer.text
            command = "instep " + path[1:].partition("?")[0].replace("/", " ")
            assert command in answer.text
        answer = answered(server, "/dead/drop?reason=NOT_JSON", Cookie=cookie)
        assert answer.status == 200


def test_without_a_history_only_the_newest_records_are_read(
    office: ConsoleFolder, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with consoles.serving(consoles.changed(office, history=False)) as server:
        cookie = cookie_of(server)
        whole = answered(server, "/document?id=d0", Cookie=cookie).text
        assert "the topic was read" in whole
        assert "older ones were not" not in whole
        assert whole.count('<td class="number">0:') == 2
        read: list[tuple[int, int]] = []
        before = reading.read

        def remember(*arguments: Any) -> Any:
            read.extend(arguments[2].values())
            return before(*arguments)

        monkeypatch.setattr(reading, "read", remember)
        monkeypatch.setattr(timeline, "OFFSETS_MAX", 20)
        text = answered(server, "/document?id=d0", Cookie=cookie).text
        assert max(end - start for start, end in read) == 10
        left_out = sum(max(0, end - 10) for end in offsets.latest(cluster, TOPIC, [0, 1]).values())
        assert f"read; {left_out:,} older ones were not" in text


def test_the_rows_of_further_tables_are_shown(office: ConsoleFolder) -> None:
    run_sql(
        office.url,
        "CREATE TABLE contract_line (doc_no TEXT NOT NULL, version BIGINT NOT NULL,"
        " note TEXT, PRIMARY KEY (doc_no, version))",
    )
    run_sql(office.url, "INSERT INTO contract_line VALUES ('d4', 1, 'first'), ('d4', 2, NULL)")
    table = {
        "table": "contract_line",
        "key": "doc_no",
        "line_key": "version",
        "columns": {"version": "version", "note": "status"},
    }
    further = [msgspec.convert(table, FurtherTable)]
    with consoles.serving(consoles.changed(office, tables=further)) as server:
        text = answered(server, "/document?id=d4", Cookie=cookie_of(server)).text
    run_sql(office.url, "DROP TABLE contract_line")
    rows = text.partition("Rows in contract_line")[2].partition("</table>")[0]
    assert re.findall(r"<td>([^<]*)</td>", rows) == ["d4", "1", "first", "d4", "2", "null"]


def test_a_long_timeline_says_what_it_leaves_out(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "NEWEST_MAX", 1)
    text = answered(console, "/document?id=p12", Cookie=cookie_of(console)).text
    assert "Showing the newest 1 events" in text
    assert "Showing the first 1 of 2" in text


def test_a_whole_reason_is_dropped_except_what_came_after_the_plan(
    page: Page, console: ConsoleServer, office: ConsoleFolder, cluster: Cluster
) -> None:
    before = rejected(office, "FIELD_MISSING")
    page.goto(f"{console.address}dead?reason=FIELD_MISSING")
    page.get_by_role("button", name="Plan to drop all of FIELD_MISSING").click()
    page.wait_for_url("**/dead/drop?*")
    assert "--until" in page.locator(".command code").inner_text()
    for partition in (0, 1):  # the plan has no letter of partition 1 at all
        consoles.apply(cluster, office, partition, [("later", {"doc_id": "later"})])
    page.get_by_label("Reason, kept").fill("all of them")
    page.get_by_role("button", name="Drop as ann").click()
    page.wait_for_url("**/done?id=*")
    assert f"{before} dropped" in page.inner_text("main")
    assert rejected(office, "FIELD_MISSING") == 2


def test_an_error_midway_shows_what_was_done_before(
    console: ConsoleServer, office: ConsoleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "CHUNK_LETTERS", 10)
    cookie, path = cookie_of(console), "/dead/drop?reason=NOT_JSON"
    [(offset,)] = run_sql(
        office.url,
        "SELECT \"offset\" FROM instep_dead_letters WHERE reason = 'NOT_JSON'"
        ' ORDER BY "offset" LIMIT 1 OFFSET 25',
    )
    before = rejected(office, "NOT_JSON")
    plan = answered(console, path, Cookie=cookie)
    run_sql(
        office.url,
        "CREATE TRIGGER keep BEFORE DELETE ON instep_dead_letters"
        f" WHEN old.\"offset\" = {offset} BEGIN SELECT RAISE(ABORT, 'kept by a trigger'); END",
    )
    try:
        answer = confirmed(console, cookie, path, plan, "until the trigger")
    finally:
        run_sql(office.url, "DROP TRIGGER keep")
    assert "An error ended the action" in answer.text
    assert "20 dropped" in answer.text
    assert rejected(office, "NOT_JSON") == before - 20
    done = "SELECT count(*) FROM instep_decisions WHERE reason = 'until the trigger'"
    assert run_sql(office.url, done) == [(20,)]


def test_decisions_of_one_transaction_are_on_several_pages(
    console: ConsoleServer, office: ConsoleFolder
) -> None:
    values = ", ".join(
        f"('{PIPELINE}', '{TOPIC}', {number % 2}, {number}, '2020-01-01 00:00:00.000000', 'many',"
        " 'dropped', 'x', 'y', 'z')"
        for number in range(250)
    )
    run_sql(office.url, f"INSERT INTO instep_decisions VALUES {values}")
    cookie, path, found = cookie_of(console), "/decisions", []
    while path:
        text = answered(console, path, Cookie=cookie).text
        found += re.findall(r'<td class="number">(\d:\d+)</td>\s*<td><a[^>]*>many<', text)
        [path] = re.findall(r'<a href="([^"]*)">Earlier</a>', text) or [""]
        path = html.unescape(path)
    run_sql(office.url, "DELETE FROM instep_decisions WHERE document = 'many'")
    assert sorted(found) == sorted(f"{number % 2}:{number}" for number in range(250))


def test_decisions_name_actor_and_reason(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    page.goto(f"{console.address}parked/skip?document=p8")
    page.get_by_label("Reason, kept").fill("seen on the page")
    page.get_by_role("button", name="Skip as ann").click()
    page.wait_for_url("**/done?id=*")
    page.get_by_label("Continue").get_by_role("link", name="Decisions").click()
    page.wait_for_url("**/decisions*")
    first = page.locator("tbody tr").first.inner_text()
    assert "seen on the page" in first
    assert "ann" in first


@pytest.mark.parametrize("name", HOSTILE_VALUES)
def test_a_hostile_document_is_only_text(page: Page, console: ConsoleServer, name: str) -> None:
    value = HOSTILE_VALUES[name]
    document(page, console, value)
    assert page.evaluate("window.hacked") is None
    page.get_by_role("link", name="raw").first.click()
    page.locator("#record-1 pre").last.wait_for()
    assert page.locator("main script, main img, main [onerror], #injected").count() == 0
    assert page.evaluate("window.hacked") is None
    page.goto(f"{console.address}parked/release?{urlencode({'document': value})}")
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("path", LIST_PAGES)
def test_lists_of_hostile_values_are_only_text(
    page: Page, console: ConsoleServer, path: str
) -> None:
    page.goto(console.address + path)
    page.wait_for_load_state("load")
    assert page.locator("main script, main img, main [onerror], #injected").count() == 0
    assert page.evaluate("window.hacked") is None


def test_hostile_documents_are_selected_exactly(page: Page, console: ConsoleServer) -> None:
    """Submit ids as they are, with line breaks, and spaces that a page shows escaped."""
    page.goto(f"{console.address}parked?reason=TEXT_TOO_LONG")
    page.get_by_label("Select all on this page").check()
    count = page.locator("tbody input[type=checkbox]:checked").count()
    page.get_by_role("button", name="Plan to release the selected").click()
    page.wait_for_url("**/parked/release?*")
    assert "no longer in quarantine" not in page.inner_text("main")
    assert count >= len(HOSTILE_VALUES)
    documents = page.get_by_role("region", name="Changes").locator("tbody td:nth-child(2)")
    assert len(set(documents.all_inner_texts())) == count


def test_a_page_of_the_longest_ids_is_selected(
    console: ConsoleServer, office: ConsoleFolder, page: Page
) -> None:
    """Take a URL with a whole page of ids, each of 255 characters that take much room in it."""
    names = [f"{number:03}\r\n" + "😀" * 250 for number in range(quarantine.SHOWN)]
    consoles.park(office, Reason.PARENT_MISSING, names)
    try:
        page.goto(f"{console.address}parked?reason=PARENT_MISSING")
        page.get_by_label("Select all on this page").check()
        page.get_by_role("button", name="Plan to skip what blocks the selected").click()
        page.wait_for_url("**/parked/skip?*")
        changes = page.get_by_role("region", name="Changes").locator("tbody tr")
        assert changes.count() == len(names)
        page.get_by_label("Reason, kept").fill("long ids")
        page.get_by_role("button", name="Skip as ann").click()
        page.wait_for_url("**/done?id=*")
        assert f"{len(names)} skipped" in page.inner_text("main")
    finally:
        run_sql(office.url, "DELETE FROM instep_parked WHERE reason = 'PARENT_MISSING'")


def test_hostile_parameters_are_only_text(page: Page, console: ConsoleServer) -> None:
    for path in ("document?id=", "dead?reason=", "parked?page=", "decisions?before=", "done?id="):
        page.goto(console.address + path + quote(HOSTILE_VALUES["image"]))
        assert page.locator("main img").count() == 0
        assert page.evaluate("window.hacked") is None


def test_a_long_status_is_shortened(page: Page, console: ConsoleServer) -> None:
    document(page, console, "p10")
    assert LONG_STATUS not in page.get_by_role("region", name="Timeline").inner_text()


@pytest.mark.parametrize("name", CHANGED_ON_THE_WAY)
def test_the_buttons_act_on_a_hostile_document(
    page: Page, console: ConsoleServer, office: ConsoleFolder, name: str
) -> None:
    value = HOSTILE_VALUES[name]
    document(page, console, value)
    page.get_by_role("button", name="Skip the blocking event").click()
    page.wait_for_url("**/parked/skip?*")
    command = page.locator("[data-copy]").get_attribute("data-copy") or ""
    assert words_in_shell(command)[-1] == value
    page.get_by_label("Reason, kept").fill("hostile")
    page.get_by_role("button", name="Skip as ann").click()
    page.wait_for_url("**/done?id=*")
    assert "1 skipped" in page.inner_text("main")
    assert value not in parked_documents(office)
