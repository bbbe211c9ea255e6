"""Test who may use the console, and which policy the browser has to follow."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request
from typer.testing import CliRunner

from instep import cli, errors
from instep.console import access
from instep.console.access import (
    DeclaredUser,
    Doorkeeper,
    Person,
    Sessions,
    TrustedProxy,
    UsersFile,
)
from instep.console.pages import ALL
from instep.console.server import ConsoleServer, ServerOptions
from instep.console.workspace import ConsoleOptions
from instep.document.reasons import Reason
from instep.operate import status, timeline
from instep.operate.status import PipelineStatus, RunStatus
from instep.pipeline.apply.maintenance import MaintenanceSession
from tests.support import consoles
from tests.support.consoles import (
    PIPELINE,
    Answer,
    ConsoleFolder,
    answered,
    cookie_of,
    parked_documents,
)
from tests.support.databases import run_sql
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

READING = [page.path for page in ALL if not page.writes]
WRITING = [page.path for page in ALL if page.writes]
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def cookie(console: ConsoleServer) -> str:
    response = answered(console, f"/start?token={console.door.token}")
    assert response.status == 303
    header = response.headers["Set-Cookie"]
    assert "HttpOnly" in header
    assert "samesite=strict" in header.lower()
    return header.partition(";")[0]


@pytest.fixture(scope="module")
def read_only(office: ConsoleFolder) -> Iterator[ConsoleServer]:
    options = ConsoleOptions(read_only=True, hide_values=True)
    with consoles.serving(office.loaded, options) as server:
        yield server


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file with an operator and a viewer."""
    file = tmp_path_factory.mktemp("users") / "users.toml"
    entries = [access.user_entry("olga", "operator", PASSWORD)]
    entries.append(access.user_entry("vera", "viewer", PASSWORD))
    file.write_text("\n".join(entries), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def guarded(office: ConsoleFolder, users_file: Path) -> Iterator[ConsoleServer]:
    with consoles.serving(office.loaded, auth=users_file) as server:
        yield server


def cookie_for(server: ConsoleServer, name: str) -> str:
    """Open a session as if this user had signed in; return its cookie."""
    assert server.door.users is not None
    declared = server.door.users.users[name]
    session = server.door.sessions.open(Person(name, declared.role), declared.password)
    return f"{server.door.sessions.cookie}={session}"


def sign_in(page: Page, name: str, password: str = PASSWORD) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def test_every_page_needs_the_cookie(console: ConsoleServer) -> None:
    for path in (*READING, *WRITING, "/live/overview", "/nowhere"):
        assert answered(console, path).status == 401, path


def test_a_link_from_elsewhere_never_leads_to_another_site(console: ConsoleServer) -> None:
    paths = ("//evil.example/x", "///evil.example", "/%09/evil.example", "/\\evil.example")
    for path in paths:
        answer = answered(console, path, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
        [url] = re.findall(r'content="0;url=([^"]*)"', answer.text)
        assert url in ("/", "/%09/evil.example", "/%5Cevil.example"), path


@pytest.mark.parametrize("url", ["/", "/document?id=%2F%2Fx", "/a//b"])
def test_a_path_of_this_site_is_known(url: str) -> None:
    assert access.is_own_path(url)


@pytest.mark.parametrize("url", ["", "x", "//x", "/\\x", "/\t/x", "/\n/x", "https://x", "\t//x"])
def test_a_path_that_leads_elsewhere_is_known(url: str) -> None:
    assert not access.is_own_path(url)


def test_a_wrong_token_opens_nothing(console: ConsoleServer) -> None:
    for token in ("", "x", console.door.token[:-1], console.door.token + "x"):
        response = answered(console, f"/start?token={token}")
        assert (response.status, response.headers["Set-Cookie"]) == (401, None)


def test_a_one_time_token_opens_one_session(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = console.one_time_url().removeprefix(console.address[:-1])
    assert console.door.token not in path
    assert [answered(console, path).status for _ in range(2)] == [303, 401]
    monkeypatch.setattr(access, "ONE_TIME_S", 0.0)
    late = console.one_time_url().removeprefix(console.address[:-1])
    assert answered(console, late).status == 401


def test_the_browser_is_started_without_the_token(
    office: ConsoleFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give no lasting secret to the arguments of a program, which all users can see."""
    seen = tmp_path / "arguments"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}.part && mv {seen}.part {seen}\n')
    browser.chmod(0o700)
    environment = {**os.environ, "BROWSER": str(browser)}
    arguments = ["console", "--port", "0", "--open"]
    config = ["--config", str(office.folder / "instep.toml")]
    with subprocess.Popen(
        [sys.executable, "-m", "instep", *arguments, *config],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed = process.stdout.readline()
        wait_until(seen.exists, "the browser")
        process.terminate()
    token = printed.strip().partition("token=")[2]
    assert len(token) > 20
    assert "/start?token=" in seen.read_text()
    assert token not in seen.read_text()


def test_another_host_name_is_refused(console: ConsoleServer, cookie: str) -> None:
    """Refuse a name that an attacker's DNS points to this machine."""
    assert answered(console, "/", Cookie=cookie).status == 200
    names = ("evil.example", f"evil.example:{console.port}", "127.0.0.1.evil.example", "", "[")
    for host in names:
        answer = answered(console, "/", Cookie=cookie, Host=host)
        assert answer.status == 403, host
        assert answer.headers["content-security-policy"]
    for path in ("/dead/", "/static/../x", "/nowhere"):
        assert answered(console, path, Cookie=cookie, Host="evil.example").status in (403, 404)


def test_the_case_of_a_host_name_does_not_matter(console: ConsoleServer, cookie: str) -> None:
    host = f"LocalHost:{console.port}"
    assert answered(console, "/", Cookie=cookie, Host=host).status == 200
    origin = f"http://localhost:{console.port}"
    status = answered(console, "/sign-in", "POST", Host=host, Origin=origin).status
    assert status == 303


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Site": "same-origin", "Origin": "http://127.0.0.1:1"},
    ],
    ids=str,
)
def test_a_write_from_elsewhere_is_refused(
    console: ConsoleServer, cookie: str, office: ConsoleFolder, headers: dict[str, str]
) -> None:
    path = f"/parked/release?pipeline={PIPELINE}&document=p11"
    response = answered(console, path, "POST", "why=forged", Cookie=cookie, **headers)
    assert response.status == 403
    assert "p11" in parked_documents(office)


def test_the_policy_is_strict_on_every_response(console: ConsoleServer, cookie: str) -> None:
    for path in ("/", "/nowhere", "/static/console.css", "/dead?reason=NOT_JSON"):
        headers = answered(console, path, Cookie=cookie).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert answered(console, "/", Cookie=cookie).headers["cache-control"] == "no-store"


def test_the_policy_is_strict_on_an_unexpected_error(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_request: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(console.door, "person", fail)
    answer = answered(console, "/")
    assert answer.status == 500
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_form_that_is_too_large_is_refused(console: ConsoleServer, cookie: str) -> None:
    response = answered(
        console,
        f"/parked/release?pipeline={PIPELINE}&document=p11",
        "POST",
        "why=" + "x" * (5 << 20),
        Cookie=cookie,
        Origin=f"http://127.0.0.1:{console.port}",
    )
    assert response.status == 413


def test_read_only_has_no_route_that_writes(read_only: ConsoleServer) -> None:
    response = answered(read_only, f"/start?token={read_only.door.token}")
    cookie = response.headers["Set-Cookie"].partition(";")[0]
    origin = f"http://127.0.0.1:{read_only.port}"
    for path in WRITING:
        for method in ("GET", "POST"):
            status = answered(read_only, path, method, Cookie=cookie, Origin=origin).status
            assert status == 404, path
    for path in READING:
        status = answered(read_only, path, "POST", Cookie=cookie, Origin=origin).status
        assert status == 405, path


def test_read_only_says_why_actions_are_disabled(
    read_only: ConsoleServer, open_page: Callable[[str], Page]
) -> None:
    page = open_page(read_only.start_url)
    page.goto(f"{read_only.address}dead?reason=NOT_JSON")
    button = page.get_by_role("button", name="Plan to drop the selected")
    assert button.is_disabled()
    assert button.get_attribute("title") == "This console is read-only."
    assert "This console is read-only." in page.inner_text("main")


def test_values_are_hidden(read_only: ConsoleServer, open_page: Callable[[str], Page]) -> None:
    page = open_page(read_only.start_url)
    for path in ("dead?reason=NOT_JSON", "document?id=p12", f"records?topic={consoles.TOPIC}"):
        page.goto(read_only.address + path)
        text = page.inner_text("main")
        assert "hidden" in text, path
        assert "{broken" not in text
        assert '"doc_id"' not in text


def test_values_are_hidden_on_the_way_to_a_write(
    office: ConsoleFolder,
) -> None:
    """Hide them on plans, on what was done, on findings, and on a record of any topic."""
    consoles.park(office, Reason.PARENT_MISSING, ["hidden-1", "hidden-2"])
    with consoles.serving(office.loaded, ConsoleOptions(hide_values=True)) as server:
        cookie = cookie_of(server)
        paths = (
            f"/dead/drop?pipeline={PIPELINE}&place=0:100",
            f"/dead/replay?pipeline={PIPELINE}&place=0:101",
            f"/parked/skip?pipeline={PIPELINE}&document=hidden-1",
            f"/parked/release?pipeline={PIPELINE}&document=hidden-2",
        )
        for path in paths:
            plan = answered(server, path, Cookie=cookie)
            done = consoles.confirmed(server, cookie, path, plan, "hidden")
            for page in (plan, done):
                assert page.status == 200, path
                assert "hidden" in page.text, path
                assert "{broken" not in page.text
                assert consoles.LONG_STATUS[:50] not in page.text
                assert "PRINTED" not in page.text
        findings = answered(server, f"/findings?pipeline={PIPELINE}", Cookie=cookie)
        record = f"/record?topic={consoles.TOPIC}&partition=0&offset=0"
        for page in (findings, answered(server, record, Cookie=cookie)):
            assert page.status == 200
            assert "{broken" not in page.text
            assert "doc_id" not in re.sub(r"field doc_id|doc_id\W+is the", "", page.text)


def test_the_text_of_an_unexpected_error_is_hidden_with_the_values(
    read_only: ConsoleServer, console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the value is 4711")

    monkeypatch.setattr(timeline, "read", fail)
    for server, is_shown in ((read_only, False), (console, True)):
        answer = answered(server, "/document?id=d1", Cookie=cookie_of(server))
        assert answer.status == 500
        assert "unexpected error: RuntimeError" in answer.text
        assert ("4711" in answer.text) is is_shown


def test_the_text_of_a_database_is_hidden_with_the_values(
    read_only: ConsoleServer, console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Show the type of an error only: a database quotes the row that it refuses."""

    def fail(*_: object) -> None:
        raise errors.RowRefused("Duplicate entry '4711' for key 'email'")

    monkeypatch.setattr(timeline, "read", fail)
    monkeypatch.setattr(MaintenanceSession, "read", fail)
    for path in ("/document?id=d1", "/decisions", "/dead"):
        for server, is_shown in ((read_only, False), (console, True)):
            text = answered(server, path, Cookie=cookie_of(server)).text
            assert ("4711" in text) is is_shown, path
            assert ("hides its text" in text) is not is_shown, path


def test_why_a_run_ended_is_hidden_with_the_values(
    office: ConsoleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunStatus("stopped", "stopped: two rows with 4711", code="KEY_NOT_UNIQUE", detail="4711")
    found = PipelineStatus(PIPELINE, "t", "sqlite:///x", "exactly-once", run=run)
    monkeypatch.setattr(status, "read", lambda *_: found)
    for options, is_shown in ((ConsoleOptions(hide_values=True), False), (None, True)):
        with consoles.serving(office.loaded, options) as server:
            text = answered(server, f"/pipeline?pipeline={PIPELINE}", Cookie=cookie_of(server)).text
        assert "stopped" in text
        assert ("4711" in text) is is_shown


def test_reasons_of_decisions_are_hidden_with_the_values(
    office: ConsoleFolder, console: ConsoleServer, cookie: str, read_only: ConsoleServer
) -> None:
    """Without a reason of a person, a decision has the text of the database, which quotes rows."""
    run_sql(
        office.url,
        'INSERT INTO instep_decisions (pipeline, topic, partition, "offset", at, document,'
        f" action, outcome, reason, actor) VALUES ('{PIPELINE}', 't', 0, 9,"
        " '2026-11-01 00:00:00', 'd7', 'released', 'REFUSED_BY_TARGET', 'quotes 4711', 'ann')",
    )
    for path in (f"/decisions?pipeline={PIPELINE}", "/document?id=d7"):
        assert "quotes 4711" in answered(console, path, Cookie=cookie).text
        hidden = answered(read_only, path, Cookie=cookie_of(read_only)).text
        assert "REFUSED_BY_TARGET" in hidden
        assert "4711" not in hidden
    run_sql(office.url, "DELETE FROM instep_decisions WHERE reason = 'quotes 4711'")


def test_a_link_from_another_site_works_with_the_cookie(
    console: ConsoleServer, cookie: str
) -> None:
    """Let the browser ask again: it does not send the cookie when a link elsewhere is followed."""
    first = answered(console, "/decisions", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
    assert first.status == 200
    again = answered(console, "/decisions", Sec_Fetch_Site="same-origin", Cookie=cookie)
    assert again.status == 200


def test_people_sign_in_and_come_back_to_their_page(
    guarded: ConsoleServer, open_page: Callable[[str], Page]
) -> None:
    page = open_page(f"{guarded.address}document?id=d5")
    sign_in(page, "olga", "wrong password")
    page.get_by_text("Name or password is wrong").wait_for()
    sign_in(page, "nobody")
    page.get_by_text("Name or password is wrong").wait_for()
    sign_in(page, "olga")
    page.wait_for_url("**/document?id=d5")
    assert "olga, operator" in page.inner_text("header")


def test_a_session_that_ends_does_not_show_the_sign_in_within_a_page(
    guarded: ConsoleServer, open_page: Callable[[str], Page]
) -> None:
    """Lead from a record on demand to the sign-in page, and back to the document."""
    page = open_page(f"{guarded.address}document?id=d5")
    sign_in(page, "vera")
    page.wait_for_url("**/document?id=d5")
    guarded.door.sessions = Sessions(guarded.door.sessions.cookie)
    page.get_by_role("link", name="raw").first.click()
    page.wait_for_url("**/sign-in?*")
    sign_in(page, "vera")
    page.wait_for_url("**/document?id=d5")
    page.get_by_role("link", name="raw").first.click()
    page.locator("#record-1 pre").last.wait_for()


def test_people_sign_out(guarded: ConsoleServer, open_page: Callable[[str], Page]) -> None:
    page = open_page(guarded.address)
    sign_in(page, "vera")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_text("You are signed out").wait_for()
    page.goto(guarded.address)
    assert page.inner_text("h1") == "Sign in"


def test_a_viewer_sees_all_and_changes_nothing(
    guarded: ConsoleServer, open_page: Callable[[str], Page], office: ConsoleFolder
) -> None:
    page = open_page(guarded.address)
    sign_in(page, "vera")
    page.goto(f"{guarded.address}document?id=p13")
    assert page.get_by_role("button", name="What would happen").is_disabled()
    assert "needs the role operator" in page.inner_text("main")
    answer = page.goto(f"{guarded.address}parked/release?document=p13")
    assert answer
    assert answer.status == 403
    assert "p13" in parked_documents(office)


def test_a_decision_names_who_signed_in(
    guarded: ConsoleServer, open_page: Callable[[str], Page]
) -> None:
    page = open_page(guarded.address)
    sign_in(page, "olga")
    page.goto(f"{guarded.address}parked/skip?document=p14")
    page.get_by_label("Reason, kept").fill("signed in")
    page.get_by_role("button", name="Skip as olga").click()
    page.wait_for_url("**/done?id=*")
    page.goto(f"{guarded.address}decisions")
    assert "olga" in page.locator("tbody tr").first.inner_text()


def test_signing_in_never_leads_to_another_site(guarded: ConsoleServer) -> None:
    origin = f"http://127.0.0.1:{guarded.port}"
    for following in ("//evil.example", "/\\evil.example", "https://evil.example", "%0d%0aX:y"):
        response = answered(
            guarded,
            f"/sign-in?next={following}",
            "POST",
            f"name=olga&password={PASSWORD.replace(' ', '+')}",
            Origin=origin,
        )
        assert (response.status, response.headers["location"]) == (303, "/"), following


def test_strangers_who_sign_in_keep_nobody_from_the_pages(guarded: ConsoleServer) -> None:
    """Refuse more sign-ins than a few at a time; pages have threads of their own."""
    origin = f"http://127.0.0.1:{guarded.port}"

    def sign_in_wrongly(number: int) -> Answer:
        return answered(guarded, "/sign-in", "POST", f"name=x{number}&password=y", Origin=origin)

    page = f"/settings?pipeline={PIPELINE}"
    cookie = cookie_for(guarded, "vera")
    with ThreadPoolExecutor(24) as pool:
        answers = pool.map(sign_in_wrongly, range(48))
        # it gives up after 30 seconds
        assert answered(guarded, page, Cookie=cookie).status == 200
        by_status = {answer.status: answer for answer in answers}
    assert set(by_status) == {401, 429}
    assert by_status[429].headers["retry-after"]
    assert "Many people are signing in" in by_status[429].text


def test_wrong_passwords_make_only_their_sender_wait(
    guarded: ConsoleServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Refuse a name that failed from an address for a while, there and not elsewhere."""
    caplog.set_level(logging.INFO, "instep.console.audit")
    origin = f"http://127.0.0.1:{guarded.port}"

    def attempt(name: str, password: str = "wrong") -> Answer:
        body = urlencode({"name": name, "password": password})
        return answered(guarded, "/sign-in", "POST", body, Origin=origin)

    name = "olga\n2026 signed in: eve"
    assert [attempt(name).status for _ in range(4)] == [401, 401, 401, 429]
    refused = attempt(name)
    assert 0 < int(refused.headers["retry-after"]) <= 2
    assert "Too many wrong passwords" in refused.text
    assert guarded.door.failures.wait_s(name, "192.0.2.1") == 0.0
    assert attempt("olga", PASSWORD).status == 303
    assert "signed in: olga, operator, from 127.0.0.1" in caplog.messages
    assert sum("sign-in failed: olga\\n2026" in one for one in caplog.messages) == 3
    assert PASSWORD not in caplog.text


def test_the_wait_after_wrong_passwords_doubles_and_ends_with_a_right_one() -> None:
    failures, waits = access.Failures(), []
    for _ in range(6):
        failures.add("vera", "192.0.2.1")
        waits.append(round(failures.wait_s("vera", "192.0.2.1")))
    assert waits == [0, 0, 2, 4, 8, 16]
    failures.forget("vera", "192.0.2.1")
    assert failures.wait_s("vera", "192.0.2.1") == 0.0


@pytest.mark.parametrize(
    ("peer", "said", "address"),
    [
        ("10.0.0.5", ["192.0.2.7"], "192.0.2.7"),
        ("10.0.0.5", ["1.1.1.1, 192.0.2.7"], "192.0.2.7"),
        ("10.0.0.5", ["1.1.1.1", "192.0.2.7"], "192.0.2.7"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.6", ["192.0.2.7"], "10.0.0.6"),
    ],
)
def test_only_a_declared_proxy_says_where_a_sign_in_comes_from(
    peer: str, said: list[str], address: str
) -> None:
    users = UsersFile({"vera": DeclaredUser()}, forwarded_from=["10.0.0.5"])
    headers = [(b"x-forwarded-for", one.encode()) for one in said]
    request = Request({"type": "http", "client": (peer, 1), "headers": headers})
    assert access.client_address(request, users) == address


def test_one_person_cannot_end_the_sessions_of_another() -> None:
    sessions = Sessions("c")
    kept = sessions.open(Person("vera"))
    own = [sessions.open(Person("olga")) for _ in range(access.SESSIONS_OF_PERSON_MAX + 3)]
    assert sessions.find(kept)
    assert [bool(sessions.find(one)) for one in own[:5]] == [False, False, False, True, True]


def test_the_cookie_is_secure_if_the_browser_speaks_https(
    office: ConsoleFolder, users_file: Path, tmp_path: Path
) -> None:
    """Tell it by the form's origin: a proxy's own connection is plain."""
    file = tmp_path / "users.toml"
    file.write_text('hosts = ["console.example"]\n' + users_file.read_text(), encoding="utf-8")
    body = urlencode({"name": "olga", "password": PASSWORD})
    with consoles.serving(office.loaded, auth=file) as server:
        for host, origin, is_secure in (
            ("console.example", "https://console.example", True),
            ("console.example:443", "https://console.example", True),
            ("console.example", "http://console.example", False),
        ):
            answer = answered(server, "/sign-in", "POST", body, Host=host, Origin=origin)
            assert answer.status == 303, origin
            assert ("secure" in answer.headers["set-cookie"].lower()) is is_secure


def test_a_changed_users_file_counts_at_once(
    office: ConsoleFolder, users_file: Path, tmp_path: Path
) -> None:
    """End the session of a removed user, and of one with another password; change a role."""
    file = tmp_path / "users.toml"
    entries = users_file.read_text()
    file.write_text(entries, encoding="utf-8")
    with consoles.serving(office.loaded, auth=file) as server:
        olga, vera = cookie_for(server, "olga"), cookie_for(server, "vera")
        file.write_text(entries.replace('"viewer"', '"operator"'), encoding="utf-8")
        assert "vera, operator" in answered(server, "/", Cookie=vera).text
        file.write_text("[[", encoding="utf-8")
        assert answered(server, "/", Cookie=vera).status == 200
        file.write_text(access.user_entry("olga", "operator", "another one"), encoding="utf-8")
        assert answered(server, "/", Cookie=vera).status == 303
        assert answered(server, "/", Cookie=olga).headers["location"].startswith("/sign-in")


@pytest.mark.parametrize(
    ("host", "origin", "is_own"),
    [
        ("name", "https://name", True),
        ("name:443", "https://name", True),
        ("name:80", "http://name", True),
        ("NAME:8080", "http://name:8080", True),
        ("[::1]:8080", "http://[::1]:8080", True),
        ("name:443", "http://name", False),
        ("name:80", "https://name", False),
        ("name:8080", "http://name", False),
        ("name", "https://name:8443", False),
        ("name", "null", False),
        ("name", "https://", False),
        ("name", "http://name:port", False),
    ],
)
def test_an_origin_is_own_by_name_and_port(host: str, origin: str, is_own: bool) -> None:
    headers = Headers({"host": host, "origin": origin})
    assert (access.refusal(headers, "POST", frozenset({"name", "::1"})) is None) is is_own


def test_a_plan_is_not_made_for_a_page_of_another_site(console: ConsoleServer, cookie: str) -> None:
    """Let a link of a colleague work after a click on a page of the console's own."""
    for site in ("cross-site", "same-site"):
        for path in WRITING:
            answer = answered(console, path, Cookie=cookie, Sec_Fetch_Site=site)
            assert answer.status in (403, 405), path
        named = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate"}
        link = answered(console, "/parked/release?document=p13", Cookie=cookie, **named)
        assert link.status == 200
        assert "A link on another site leads to a page" in link.text
        assert "http-equiv" not in link.text
        assert 'href="/parked/release?document=p13"' in link.text
    own = {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "navigate"}
    assert answered(console, "/rewind/plan?to=start", Cookie=cookie, **own).status == 200


def test_a_viewer_can_write_nothing(guarded: ConsoleServer, office: ConsoleFolder) -> None:
    """Refuse every page that writes, whatever is sent to it."""
    cookie, origin = cookie_for(guarded, "vera"), f"http://127.0.0.1:{guarded.port}"
    before = parked_documents(office)
    for path in WRITING:
        for method in ("GET", "POST"):
            url = f"{path}?pipeline={PIPELINE}&document=p13&all=1&to=start&reason=NOT_JSON"
            answer = answered(guarded, url, method, "why=x", Cookie=cookie, Origin=origin)
            assert answer.status in (403, 405), (method, path)
    assert parked_documents(office) == before


def test_an_operator_writes_through_a_proxy(office: ConsoleFolder, tmp_path: Path) -> None:
    """Take the name from the proxy's header, and the origin of a page served by HTTPS."""
    file = tmp_path / "users.toml"
    file.write_text(
        'hosts = ["console.example"]\n[proxy]\nheader = "X-User"\nfrom = ["127.0.0.1"]\n'
        '[users.olga]\nrole = "operator"\n',
        encoding="utf-8",
    )
    consoles.park(office, Reason.PARENT_MISSING, ["by-proxy"])
    path = "/parked/skip?document=by-proxy"
    named = {"X_User": "olga", "Host": "console.example:443"}
    with consoles.serving(office.loaded, auth=file) as server:
        plan = answered(server, path, **named)
        body = urlencode([*plan.fields, ("why", "through the proxy")])
        for origin, status in (("https://evil.example", 403), ("https://console.example", 303)):
            answer = answered(server, path, "POST", body, Origin=origin, **named)
            assert answer.status == status
    decided = "SELECT actor FROM instep_decisions WHERE reason = 'through the proxy'"
    assert run_sql(office.url, decided) == [("olga",)]


def test_a_large_form_of_a_stranger_is_refused(guarded: ConsoleServer) -> None:
    origin = f"http://127.0.0.1:{guarded.port}"
    body = "name=x&password=" + "y" * (16 << 10)
    answer = answered(guarded, "/sign-in", "POST", body, Origin=origin)
    assert answer.status == 413
    assert "The form is too large" in answer.text


def test_the_token_opens_nothing_where_people_sign_in(guarded: ConsoleServer) -> None:
    assert answered(guarded, f"/start?token={guarded.door.token}").status == 401


def test_a_trusted_proxy_names_the_user(office: ConsoleFolder, tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    text = '[proxy]\nheader = "X-User"\nfrom = ["{}"]\n[users.vera]\nrole = "viewer"\n'
    file.write_text(text.format("127.0.0.1"), encoding="utf-8")
    with consoles.serving(office.loaded, auth=file) as server:
        assert answered(server, "/", X_User="vera").status == 200
        assert answered(server, "/", X_User="eve").status == 401
        assert answered(server, "/").status == 401
        assert answered(server, "/parked/release", X_User="vera").status == 403
    file.write_text(text.format("192.0.2.0/24"), encoding="utf-8")
    with consoles.serving(office.loaded, auth=file) as server:
        assert answered(server, "/", X_User="vera").status == 401


@pytest.mark.parametrize(
    ("client", "names", "is_known"),
    [
        (("10.0.0.5", 1), ["vera"], True),
        (("::ffff:10.0.0.5", 1), ["vera"], True),
        (("10.0.0.6", 1), ["vera"], False),
        (("::ffff:10.0.0.6", 1), ["vera"], False),
        (("10.0.0.5", 1), ["vera", "olga"], False),
        (("10.0.0.5", 1), ["vera", "vera"], False),
        (("10.0.0.5", 1), [], False),
        (("a socket", 0), ["vera"], False),
        (None, ["vera"], False),
    ],
    ids=str,
)
def test_the_proxy_is_known_by_its_address_and_names_one_user(
    client: tuple[str, int] | None, names: list[str], is_known: bool
) -> None:
    users = UsersFile({"vera": DeclaredUser()}, TrustedProxy("X-User", ["10.0.0.5/32"]))
    door = Doorkeeper(Sessions("c"), token_user="ann", users=users)
    headers = [(b"x-user", name.encode()) for name in names]
    request = Request({"type": "http", "client": client, "headers": headers})
    assert (door.person(request) is not None) is is_known


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "declares no users"),
        ("[users.a]\npassword = 'plain'", "not an argon2 hash"),
        ("[users.a]\nrole = 'root'", "not a users file"),
        ("[proxy]\nheader='x'\nfrom=['nowhere']\n[users.a]", "not a users file"),
        ("[[", "not a users file"),
    ],
)
def test_a_wrong_users_file_is_explained(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "users.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(errors.SettingsError, match=words):
        access.load_users(file)


def test_another_address_needs_users(office: ConsoleFolder) -> None:
    with pytest.raises(errors.SettingsError, match="people have to sign in"):
        ConsoleServer(office.loaded, ConsoleOptions(), ServerOptions("ann", "0.0.0.0", 0))


def test_a_taken_port_is_explained(console: ConsoleServer, office: ConsoleFolder) -> None:
    with pytest.raises(errors.PortTaken, match="the console cannot listen"):
        ConsoleServer(office.loaded, ConsoleOptions(), ServerOptions("ann", port=console.port))


def test_the_command_makes_an_entry_for_the_users_file(tmp_path: Path) -> None:
    arguments = ["console", "user", 'o"lga', "--role", "operator"]
    made = CliRunner().invoke(cli.build_app(["console"]), arguments, input="long enough\n" * 2)
    assert made.exit_code == 0, made.output
    file = tmp_path / "users.toml"
    file.write_text(made.stdout, encoding="utf-8")
    assert access.load_users(file).users['o"lga'].role == "operator"
