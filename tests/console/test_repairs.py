"""Test reconcile, rewind, overdue, settings, findings and reports."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from urllib.parse import urlencode

import pytest

from instep.console.command_runs import CommandRuns
from instep.console.pages import repairs
from instep.console.server import ConsoleServer
from instep.console.workspace import ConsoleOptions
from instep.kafka.connection import Cluster
from tests.support import consoles
from tests.support.consoles import PIPELINE, TOPIC, ConsoleFolder, answered, cookie_of
from tests.support.databases import run_sql
from tests.support.runs import event, send
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page


REPORT: dict[str, Any] = {
    "table": "contract_document",
    "verdict": "not in step",
    "rows_file": "rows.jsonl",
    "repaired": None,
    "notes": [],
    "first_rows": [],
    **dict.fromkeys(repairs.COUNTS, 0),
}


def ledger(office: ConsoleFolder) -> dict[int, int]:
    return dict(run_sql(office.url, 'SELECT "partition", next_offset FROM instep_ledger'))


def test_a_rewind_shows_before_and_after(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    before = ledger(office)
    page.goto(f"{console.address}rewind")
    page.get_by_label("To:").fill("1")
    page.get_by_label("Partitions").fill("1")
    page.get_by_role("button", name="Plan the rewind").click()
    page.wait_for_url("**/rewind/plan?*")
    assert page.get_by_role("region", name="Plan").locator("tbody tr").count() == 1
    assert "The command looks for" not in page.inner_text("main")
    assert ledger(office) == before
    page.get_by_label("Reason, kept").fill("read it again")
    page.get_by_role("button", name="Rewind as ann").click()
    page.wait_for_url("**/rewind/done?*")
    assert ledger(office) == {**before, 1: 1}
    page.goto(f"{console.address}decisions")
    assert "read it again" in page.locator("tbody tr").first.inner_text()


def test_a_rewind_is_refused_if_the_ledger_has_moved_since(
    page: Page, console: ConsoleServer, office: ConsoleFolder
) -> None:
    page.goto(f"{console.address}rewind/plan?to=start&partition=0")
    run_sql(
        office.url, 'UPDATE instep_ledger SET next_offset = next_offset - 1 WHERE "partition" = 0'
    )
    before = ledger(office)
    page.get_by_label("Reason, kept").fill("too late")
    page.get_by_role("button", name="Rewind as ann").click()
    page.get_by_text("Nothing was changed: ").wait_for()
    assert page.get_by_label("Reason, kept").input_value() == "too late"
    assert ledger(office) == before
    run_sql(
        office.url, 'UPDATE instep_ledger SET next_offset = next_offset + 1 WHERE "partition" = 0'
    )


@pytest.mark.parametrize(("place", "is_confirmed"), [("start", True), ("end", False)])
def test_a_busy_pipeline_is_moved_to_a_place_behind_it_only(
    console: ConsoleServer,
    office: ConsoleFolder,
    cluster: Cluster,
    place: str,
    is_confirmed: bool,
) -> None:
    """Let the ledger move while the plan is looked at and confirmed."""
    cookie, path = cookie_of(console), f"/rewind/plan?to={place}&partition=0"
    send(
        cluster, TOPIC, *(event("behind-the-ledger", number) for number in range(300)), partition=0
    )
    with committing(office):
        plan = answered(console, path, Cookie=cookie)
        before = ledger(office)[0]
        wait_until(lambda: ledger(office)[0] > before, "a commit")
        done = consoles.confirmed(console, cookie, path, plan, "while it commits")
        after = ledger(office)[0]
    if is_confirmed:
        assert (done.status, after < before) == (200, True)
        decided = "SELECT outcome FROM instep_decisions WHERE reason = 'while it commits'"
        [(outcome,)] = run_sql(office.url, decided)
        assert outcome.endswith(" to 0")
        assert int(outcome.split()[1]) > before
    else:
        assert (done.status, after > before) == (409, True)
        assert "if the pipeline runs, stop it first" in done.text


@contextmanager
def committing(office: ConsoleFolder) -> Iterator[None]:
    """Move the ledger of partition 0 forward again and again, as a pipeline does."""
    where = 'WHERE "partition" = 0'
    [(offset, digest)] = run_sql(
        office.url, f"SELECT next_offset, last_digest FROM instep_ledger {where}"
    )
    ended = threading.Event()

    def commit() -> None:
        for _ in range(300):
            if ended.wait(0.02):
                return
            run_sql(
                office.url,
                "UPDATE instep_ledger SET next_offset = next_offset + 1, last_digest = NULL "
                + where,
            )

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        wait_until(lambda: ledger(office)[0] > offset, "a commit")
        yield
    finally:
        ended.set()
        thread.join()
        kept = "NULL" if digest is None else f"'{digest}'"
        run_sql(
            office.url,
            f"UPDATE instep_ledger SET next_offset = {offset}, last_digest = {kept} {where}",
        )


def test_a_rewind_goes_to_the_end_that_was_shown(
    page: Page, console: ConsoleServer, office: ConsoleFolder, cluster: Cluster
) -> None:
    """Confirm a plan while records arrive: the end that it shows is an offset."""
    before = ledger(office)
    page.goto(f"{console.address}rewind/plan?to=end&partition=1")
    shown = page.get_by_role("region", name="Plan").locator("td:nth-child(3)").inner_text()
    assert "The command looks for end again" in page.inner_text("main")
    send(cluster, TOPIC, event("after-the-plan", 1), partition=1)
    page.get_by_label("Reason, kept").fill("skip the backlog")
    page.get_by_role("button", name="Rewind as ann").click()
    page.wait_for_url("**/rewind/done?*")
    assert ledger(office) == {**before, 1: int(shown.replace(",", ""))}


def test_a_rewind_needs_its_plan(console: ConsoleServer, office: ConsoleFolder) -> None:
    cookie, before = cookie_of(console), ledger(office)
    origin = f"http://127.0.0.1:{console.port}"
    for seen in ("", "x", "0:1:0", "0:None:0 1:None:0"):
        body = urlencode({"why": "unseen", "seen": seen})
        answer = answered(
            console, "/rewind/plan?to=start", "POST", body, Cookie=cookie, Origin=origin
        )
        assert answer.status == 409, seen
        assert "The plan has changed" in answer.text
    assert ledger(office) == before


def test_a_wrong_place_is_explained(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}rewind/plan?to=nowhere")
    assert "is not a place in a log" in page.inner_text("main")


def test_settings_are_shown_with_their_origin(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}settings?pipeline={PIPELINE}")
    row = page.locator("tbody tr").filter(has_text=f"pipelines.{PIPELINE}.key").first
    assert "doc_no" in row.inner_text()
    assert "instep.toml" in row.inner_text()


def test_findings_of_vet_are_shown(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}findings?pipeline={PIPELINE}")
    assert "rules:" in page.inner_text("main")
    assert page.locator("main section").count() >= 1


def test_overdue_needs_limits_in_the_settings(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}overdue")
    assert f"[pipelines.{PIPELINE}.due]" in page.inner_text("main")


def test_reports_are_shown_under_their_own_policy(
    page: Page, console: ConsoleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mark = '<!doctype html><html lang="en"><head><meta name="generator" content="instep lab">'
    text = f"{mark}<title>x</title></head><body><script>window.hacked=1</script>fine</body></html>"
    (tmp_path / "lab-report.html").write_text(text, encoding="utf-8")
    (tmp_path / "other.html").write_text("<html></html>", encoding="utf-8")
    page.goto(f"{console.address}reports")
    assert page.get_by_role("region", name="Reports").locator("tbody tr").count() == 1
    answer = page.request.get(f"{console.address}report?name=lab-report.html")
    policy = answer.headers["content-security-policy"]
    assert "script-src" not in policy
    assert policy.startswith("default-src 'none'; style-src 'none'")
    assert policy.endswith("; sandbox")
    page.goto(f"{console.address}report?{urlencode({'name': '../../etc/passwd'})}")
    assert "there is no report" in page.inner_text("main")


def test_reconcile_offers_to_compare(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}reconcile")
    assert page.get_by_role("button", name="Compare", exact=True).is_enabled()
    page.goto(f"{console.address}reconcile/run?id=unknown")
    assert "this run is not known" in page.inner_text("main")


def test_a_command_that_has_just_ended_is_stopped(
    office: ConsoleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = CommandRuns()
    run = runs.start("Settings", PIPELINE, "ann", "", ["settings", "--json"])
    wait_until(lambda: not run.is_running, "the command")
    monkeypatch.setattr(run._process, "poll", lambda: None)
    run.stop()


def test_a_report_that_is_not_utf8_is_shown_as_it_is(
    console: ConsoleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = b'<meta name="generator" content="instep lab"><p>caf\xe9'
    (tmp_path / "lab-report.html").write_bytes(text)
    cookie = cookie_of(console)
    assert answered(console, "/report?name=lab-report.html", Cookie=cookie).status == 200
    for name in ("", "../lab-report.html", "a/b/c.html", "/etc/passwd", "lab%00.html", "x.html"):
        assert answered(console, f"/report?name={name}", Cookie=cookie).status == 400, name


def test_a_command_runs_as_the_person_who_started_it(office: ConsoleFolder) -> None:
    runs = CommandRuns()
    config = str(office.folder / "instep.toml")
    run = runs.start("Settings", PIPELINE, "ann", "", ["settings", "--json", "--config", config])
    wait_until(lambda: not run.is_running, "the command")
    assert run.status == 0, run.lines
    assert f"pipelines.{PIPELINE}.topic" in run.result()["settings"]
    assert runs.of(PIPELINE) == [run]
    runs.end()


def test_the_output_of_a_command_is_hidden_with_the_values(office: ConsoleFolder) -> None:
    config = str(office.folder / "instep.toml")
    with consoles.serving(office.loaded, ConsoleOptions(hide_values=True)) as server:
        arguments = ["status", "no-such-pipeline", "--config", config]
        run = server.workspace.runs.start("Comparison", PIPELINE, "ann", "", arguments)
        wait_until(lambda: not run.is_running, "the command")
        assert "no-such-pipeline" in "".join(run.lines)
        page = answered(server, f"/reconcile/run?id={run.id}", Cookie=cookie_of(server)).text
    assert f"({len(run.lines)} lines)" in page
    assert "no-such-pipeline" not in page


def test_a_repair_needs_the_plan_that_was_shown(
    console: ConsoleServer, office: ConsoleFolder
) -> None:
    """Refuse a repair without a plan, of an unknown one, or of a run that has planned nothing."""
    cookie, origin = cookie_of(console), f"http://127.0.0.1:{console.port}"
    run = console.workspace.runs.start("Comparison", PIPELINE, "ann", "", ["--help"])
    wait_until(lambda: not run.is_running, "the command")
    started = len(console.workspace.runs.of(PIPELINE))
    for plan in ({}, {"plan": "unknown"}, {"plan": run.id}):
        body = urlencode({"kind": "repair", **plan})
        answer = answered(console, "/reconcile/start", "POST", body, Cookie=cookie, Origin=origin)
        assert answer.status == 400, plan
    assert len(console.workspace.runs.of(PIPELINE)) == started


def test_a_viewer_sees_why_a_comparison_cannot_be_stopped_or_repaired(
    office: ConsoleFolder, tmp_path: Path
) -> None:
    """Show the buttons, disabled, with the reason."""
    with consoles.serving(office.loaded, ConsoleOptions(read_only=True)) as server:
        values = {"status": 0, "result.return_value": {"pipelines": [REPORT]}, "lines": []}
        run = Mock(is_running=False, pipeline=PIPELINE, started_at=datetime.now(UTC), **values)
        run.configure_mock(name="Comparison with repair plan", id="one", actor="ann", command="")
        run.ended_at = run.started_at
        server.workspace.runs._runs.append(run)
        cookie = cookie_of(server)
        ended = answered(server, "/reconcile/run?id=one", Cookie=cookie).text
        run.is_running = True
        running = answered(server, "/reconcile/run?id=one", Cookie=cookie).text
        server.workspace.runs._runs.remove(run)
    for text, button in ((ended, "repair as planned"), (running, "Stop it")):
        assert re.search(
            rf'<button[^>]* disabled title="This console is read-only."[^>]*>[^<]*{button}', text
        )
        assert '<p class="muted">This console' in text or '<span class="muted">This console' in text


def test_a_comparison_is_stopped(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}reconcile")
    page.get_by_role("button", name="Compare", exact=True).click()
    page.wait_for_url("**/reconcile/run?*")
    page.get_by_text("running", exact=True).wait_for()
    page.get_by_role("button", name="Stop it").click()
    page.get_by_text("with exit status").wait_for(timeout=180_000)
    assert page.get_by_role("button", name="Stop it").count() == 0
    assert page.get_by_role("button", name="repair as planned").count() == 0
    page.get_by_role("link", name="all comparisons").click()
    page.wait_for_url("**/reconcile?pipeline=*")
    rows = page.get_by_role("region", name="Started here").locator("tbody tr")
    assert "exit status" in rows.first.inner_text()


@pytest.mark.long
def test_a_comparison_shows_progress_and_differences(
    page: Page,
    console: ConsoleServer,
    office: ConsoleFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # the command writes the list of differences there
    run_sql(office.url, "DELETE FROM contract_document WHERE doc_no = 'd0'")
    page.goto(f"{console.address}reconcile")
    page.get_by_role("button", name="Compare and plan the repair").click()
    page.wait_for_url("**/reconcile/run?*")
    page.get_by_text("not in step").first.wait_for(timeout=180_000)
    assert "d0" in page.get_by_role("region", name="Differences").inner_text()
    run_sql(office.url, "DELETE FROM contract_document WHERE doc_no = 'd1'")
    page.get_by_label("Reason, kept").fill("found in a test")
    page.get_by_role("button", name="Compare again, and repair").click()
    page.get_by_text("1 inserted").wait_for(timeout=180_000)
    kept = "SELECT doc_no FROM contract_document WHERE doc_no IN ('d0', 'd1')"
    assert run_sql(office.url, kept) == [("d0",)]
    assert "d1: it differs otherwise than in the plan" in page.inner_text("main")
    assert "--planned" in page.locator(".command code").inner_text()
    decided = run_sql(office.url, "SELECT reason FROM instep_decisions WHERE action = 'repaired'")
    assert [reason.endswith(": found in a test") for (reason,) in decided] == [True]
