"""Test the bridge against a real query service: what it asks, and what it publishes."""

from __future__ import annotations

import email.utils
import gzip
import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from instep import errors
from instep.bridge import pacing, poller, schedule
from instep.bridge.failures import FailureCode
from instep.bridge.metrics import BridgeMetrics
from instep.emit import MemoryPublisher
from instep.emit.deliveries import Receipt
from tests.bridge.conftest import BridgeUnderTest
from tests.support.authority import Authority
from tests.support.databases import run_sql
from tests.support.query_service import QueryService, Reply, Request
from tests.support.waiting import wait_until

PATIENCE_S = 15.0


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make retries and pauses short: their length is tested with a clock that the test sets."""
    monkeypatch.setattr(schedule, "RETRY_S", 0.01)
    monkeypatch.setattr(pacing, "PAUSE_S", 0.01)


def printed(version: int, status: str = "PRINTED", **further: Any) -> dict[str, Any]:
    return {"status": status, "version": version, **further}


def replies(*given: Reply | dict[str, Any]) -> Callable[[Request], Reply]:
    """Return these replies one after the other; the last one stays."""
    left = [
        one if isinstance(one, Reply) else Reply(200, json.dumps(one).encode()) for one in given
    ]
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def published(bridge: BridgeUnderTest) -> list[tuple[str, str, int]]:
    """Return document, status and version of what the last run published."""
    return [
        (document, value["status"], value["version"]) for document, value in bridge.events if value
    ]


# --- what is published ----------------------------------------------------------------------------


def test_a_pass_publishes_every_document_and_the_next_one_only_changes(
    bridge: BridgeUnderTest,
) -> None:
    bridge.ids = ["C-1", "C-2"]
    bridge.service.documents = {"C-1": printed(1, "QUEUED"), "C-2": printed(4)}
    first = bridge.once()
    assert sorted(bridge.events) == [
        ("C-1", {"doc_id": "C-1", "status": "QUEUED", "version": 1}),
        ("C-2", {"doc_id": "C-2", "status": "PRINTED", "version": 4}),
    ]
    assert (first.counts.polled, first.counts.changed, first.counts.published) == (2, 2, 2)
    bridge.service.documents["C-1"] = printed(2)
    second = bridge.once()
    assert bridge.events == [("C-1", {"doc_id": "C-1", "status": "PRINTED", "version": 2})]
    assert (second.counts.polled, second.counts.changed, second.counts.unchanged) == (2, 1, 1)


def test_paths_select_status_version_time_and_further_fields(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["C-1"]
    bridge.changes = {
        "status": "$.jobs.0.state",
        "version": "rev",
        "at": "changed",
        "fields": {"pages": "jobs.0.pages", "dotted": "a.b", "absent": "nowhere.at.all"},
    }
    jobs = [{"state": 7, "pages": 12}]
    bridge.service.documents["C-1"] = {
        "jobs": jobs,
        "rev": "12",
        "changed": "2026-11-01T09:00:00+01:00",
        "a.b": [1, None],
    }
    bridge.once()
    assert bridge.events == [
        (
            "C-1",
            {
                "doc_id": "C-1",
                "status": "7",
                "version": 12,
                "updated_at": "2026-11-01T08:00:00Z",
                "pages": 12,
                "dotted": [1, None],
            },
        )
    ]
    jobs[0]["pages"] = 13
    bridge.once()
    assert [value and value["pages"] for _, value in bridge.events] == [13]


def test_the_order_of_keys_in_an_answer_is_no_change(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["C-1"]
    bridge.changes = {"fields": {"size": "size"}}
    bridge.service.replies["/documents/C-1"] = replies(
        printed(1, size={"w": 1, "h": 2}), printed(1, size={"h": 2, "w": 1})
    )
    assert [bridge.once().counts.published, bridge.once().counts.published] == [1, 0]


def test_without_a_version_the_bridge_assigns_increasing_ones(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["C-1"]
    bridge.changes = {"version": None}
    versions = []
    for number in range(4):
        bridge.service.documents["C-1"] = {"status": f"S{number}"}
        bridge.once(clock=lambda: 1_700_000_000.0)
        versions += [version for _, _, version in published(bridge)]
    assert versions == [1_700_000_000 + number for number in range(4)]


def test_versions_increase_even_if_the_state_file_is_lost(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["C-1"]
    bridge.changes = {"version": None}
    bridge.service.documents["C-1"] = {"status": "A"}
    bridge.once(clock=lambda: 1_700_000_000.0)
    (bridge.folder / "state.db").unlink()
    bridge.service.documents["C-1"] = {"status": "B"}
    bridge.once(clock=lambda: 1_700_000_060.0)
    assert published(bridge) == [("C-1", "B", 1_700_000_060)]


def test_an_answer_with_a_lower_version_is_not_published(
    bridge: BridgeUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ask a service whose replicas do not agree."""
    bridge.ids = ["C-1"]
    bridge.service.replies["/documents/C-1"] = replies(printed(5), printed(4, "QUEUED"), printed(5))
    counts = [bridge.once().counts for _ in range(3)]
    assert [one.published for one in counts] == [1, 0, 0]
    assert [one.stale for one in counts] == [0, 1, 0]
    assert "its version 4 is lower than the published version 5" in capsys.readouterr().err


def test_a_change_without_a_new_version_is_published_with_a_warning(
    bridge: BridgeUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    bridge.ids = ["C-1"]
    bridge.service.replies["/documents/C-1"] = replies(printed(5, "QUEUED"), printed(5))
    bridge.once()
    bridge.once()
    assert published(bridge) == [("C-1", "PRINTED", 5)]
    assert "its version is still 5" in capsys.readouterr().err


def test_a_missing_document_is_ignored_or_deleted_once(
    bridge: BridgeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "CONFIRM_S", 0.0)
    bridge.ids = ["C-1", "never"]
    bridge.changes = {"version": None}
    bridge.service.documents["C-1"] = {"status": "PRINTED"}
    bridge.once()
    del bridge.service.documents["C-1"]
    ignored = bridge.once()
    assert (ignored.counts.missing, ignored.counts.published) == (2, 0)
    bridge.changes["missing"] = "delete"
    assert bridge.once().counts.deleted == 0  # not at the first such answer
    deleted = bridge.once()
    assert bridge.events == [("C-1", None)]
    assert (deleted.counts.deleted, deleted.counts.missing) == (1, 2)
    assert bridge.once().counts.published == 0
    bridge.service.documents["C-1"] = {"status": "PRINTED"}
    assert bridge.once().counts.published == 1


def test_a_document_that_is_missing_for_a_moment_is_not_deleted(bridge: BridgeUnderTest) -> None:
    """Let the source answer 404 twice within a moment, and again a day later."""
    now = time.time()
    bridge.ids = ["C-1"]
    bridge.changes = {"missing": "delete"}
    bridge.service.documents["C-1"] = printed(1)
    bridge.once()
    for day in range(2):
        del bridge.service.documents["C-1"]
        for moment in range(2):
            at = now + day * 86_400 + moment
            assert bridge.once(clock=lambda at=at: at).counts.published == 0
        bridge.service.documents["C-1"] = printed(1)
        assert bridge.once(clock=lambda at=at: at).counts.published == 0


def test_a_bridge_stops_if_the_source_seems_to_have_nothing(bridge: BridgeUnderTest) -> None:
    """Ask a service that answers 404 to everything, and then accept it."""
    bridge.ids = [f"C-{number}" for number in range(20)]
    bridge.changes = {"missing": "delete"}
    bridge.service.documents = {one: printed(1) for one in bridge.ids}
    bridge.once()
    bridge.service.documents = {}
    bridge.once()
    with pytest.raises(errors.SettingsError, match="of 20 documents would be deleted"):
        bridge.once(clock=lambda: time.time() + 61)
    assert len(bridge.events) <= poller.DELETES_LEAST
    bridge.changes["deletes_share_max"] = 1.0
    bridge.once(clock=lambda: time.time() + 122)
    assert len(bridge.events) >= len(bridge.ids) - poller.DELETES_LEAST


def test_final_documents_are_not_asked_again(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["C-1", "C-2"]
    bridge.changes = {"final": ["PRINTED"]}
    bridge.service.documents = {"C-1": printed(1), "C-2": printed(1, "QUEUED")}
    bridge.once()
    bridge.service.requests.clear()
    second = bridge.once()
    assert bridge.service.paths() == ["/documents/C-2"]
    assert (second.counts.documents, second.counts.final) == (2, 1)
    bridge.changes = {"final": []}
    bridge.service.requests.clear()
    bridge.once()
    assert len(bridge.service.requests) == 2


def test_a_changed_topic_gets_every_document_and_a_changed_mapping_asks_for_it(
    tmp_path: Path,
) -> None:
    with QueryService(etags=True) as service:
        bridge = BridgeUnderTest(tmp_path, service)
        bridge.ids = ["C-1"]
        service.documents["C-1"] = printed(1, pages=3)
        bridge.once()
        bridge.changes = {"fields": {"pages": "pages"}}
        bridge.once()
        assert [value and value["pages"] for _, value in bridge.events] == [3]
        assert bridge.once().counts.published == 0
        bridge.changes = {**bridge.changes, "topic": "other"}
        assert bridge.once().counts.published == 1


# --- requests -------------------------------------------------------------------------------------


def test_validators_are_sent_back_and_304_means_unchanged(tmp_path: Path) -> None:
    with QueryService(etags=True) as service:
        bridge = BridgeUnderTest(tmp_path, service)
        bridge.ids = ["C-1"]
        service.documents["C-1"] = printed(1)
        bridge.once()
        assert "if-none-match" not in service.requests[-1].headers
        assert bridge.once().counts.unchanged == 1
        assert service.requests[-1].headers["if-none-match"].startswith('"')
        service.documents["C-1"] = printed(2)
        assert bridge.once().counts.published == 1


def test_last_modified_is_sent_back(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["C-1"]
    moment = "Sun, 01 Nov 2026 08:00:00 GMT"
    body = json.dumps(printed(1)).encode()
    bridge.service.replies["/documents/C-1"] = replies(
        Reply(200, body, {"Last-Modified": moment}), Reply(304, b"")
    )
    bridge.once()
    assert bridge.once().counts.unchanged == 1
    assert bridge.service.requests[-1].headers["if-modified-since"] == moment


def test_last_modified_of_the_last_seconds_is_not_sent_back(bridge: BridgeUnderTest) -> None:
    """Change the document in the second of the answer: Last-Modified stays the same."""
    bridge.ids = ["C-1"]
    moment = email.utils.formatdate(usegmt=True)
    bridge.service.replies["/documents/C-1"] = lambda request: (
        Reply(304, b"")
        if "if-modified-since" in request.headers
        else Reply(200, json.dumps(printed(next(versions))).encode(), {"Last-Modified": moment})
    )
    versions = itertools.count(1)
    bridge.once()
    assert bridge.once().counts.published == 1


def test_a_complete_answer_is_requested_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a validator stay the same although the document has changed."""
    monkeypatch.setattr(poller, "COMPLETE_SHARE", 1.0)
    with QueryService(etags=True) as service:
        bridge = BridgeUnderTest(tmp_path, service)
        bridge.ids = ["C-1"]
        service.documents["C-1"] = printed(1)
        bridge.once()
        bridge.once()
        assert "if-none-match" not in service.requests[-1].headers


def test_a_validator_of_an_answer_that_was_not_published_is_not_kept(
    bridge: BridgeUnderTest,
) -> None:
    bridge.ids = ["C-1"]
    bridge.service.replies["/documents/C-1"] = replies(
        Reply(200, b'{"version": 1}', {"ETag": '"a"'}), printed(1)
    )
    assert bridge.once().counts.failed == 1
    assert bridge.once().counts.published == 1
    assert "if-none-match" not in bridge.service.requests[-1].headers


HOSTILE = ["../admin", "a?b#c", "%2e%2e", "%2F..", "ü/日本", "a&x=1", "//evil.example/", "a b;c"]
DOTTED = ["..", "../admin"]  # a service may take them for another path, however they are escaped


def test_hostile_ids_reach_the_service_as_one_segment(bridge: BridgeUnderTest) -> None:
    escaped = [document for document in HOSTILE if document not in DOTTED]
    bridge.ids = [*escaped, *DOTTED]
    for document in escaped:
        bridge.service.documents[document] = printed(1)
    done = bridge.once()
    prefix = "/documents/"
    paths = bridge.service.paths()
    assert all(path.startswith(prefix) and path.count("/") == 2 for path in paths), paths
    assert sorted(unquote(path.removeprefix(prefix)) for path in paths) == sorted(escaped)
    assert {document for document, _ in bridge.events} == set(escaped)
    assert done.failures == {"ID_REFUSED": len(DOTTED)}


def test_a_hostile_id_stays_one_parameter_of_the_query(bridge: BridgeUnderTest) -> None:
    bridge.ids = HOSTILE
    bridge.changes = {"url": f"{bridge.service.url}/status?id={{document}}&full=1"}
    bridge.service.replies["/status"] = replies(printed(1))
    assert bridge.once().counts.published == len(HOSTILE)
    asked = [parse_qsl(urlsplit(path).query) for path in bridge.service.paths()]
    assert sorted(asked) == sorted([("id", document), ("full", "1")] for document in HOSTILE)


def test_cookies_are_not_sent_back(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["C-1", "C-2"]
    bridge.changes = {"concurrency": 1}
    body = json.dumps(printed(1)).encode()
    for document in bridge.ids:
        bridge.service.replies[f"/documents/{document}"] = replies(
            Reply(200, body, {"Set-Cookie": "session=1; Path=/"})
        )
    assert bridge.once().counts.published == 2
    assert not any("cookie" in request.headers for request in bridge.service.requests)


def test_headers_are_sent_and_a_redirect_to_another_server_is_refused(
    bridge: BridgeUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    bridge.ids = ["C-1", "C-2", "C-3"]
    bridge.changes = {"headers": {"Authorization": "Bearer hush"}}
    with QueryService() as other:
        other.documents["C-1"] = printed(1)
        away = f"{other.url}/documents/C-1?token=hush"
        bridge.service.replies["/documents/C-1"] = replies(Reply(302, b"", {"Location": away}))
        bridge.service.replies["/documents/C-2"] = replies(
            Reply(301, b"", {"Location": "/documents/new?x=1"})
        )
        bridge.service.documents["new"] = printed(2)
        bridge.service.replies["/documents/C-3"] = replies(
            Reply(302, b"", {"Location": "/documents/C-3"})
        )
        done = bridge.once()
        assert other.requests == []
    assert all(one.headers["authorization"] == "Bearer hush" for one in bridge.service.requests)
    assert published(bridge) == [("C-2", "PRINTED", 2)]
    assert done.failures == {"REDIRECT_REFUSED": 2}
    assert bridge.service.paths().count("/documents/C-3") == 6
    assert "hush" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "location",
    [
        "https://127.0.0.1/",
        "//evil.example/",
        "http://127.0.0.1:1/",
        "http://[",
        "ftp://127.0.0.1/",
    ],
)
def test_other_origins_are_refused(bridge: BridgeUnderTest, location: str) -> None:
    bridge.ids = ["C-1"]
    bridge.service.replies["/documents/C-1"] = replies(Reply(307, b"", {"Location": location}))
    assert bridge.once().failures == {"REDIRECT_REFUSED": 1}


BOMB = gzip.compress(bytes(50_000_000))
BAD_ANSWERS: dict[str, tuple[Reply, FailureCode]] = {
    "truncated": (Reply(200, b'{"status": "PRIN'), FailureCode.ANSWER_NOT_JSON),
    "html": (Reply(200, b"<html>"), FailureCode.ANSWER_NOT_JSON),
    "empty": (Reply(204, b""), FailureCode.ANSWER_NOT_JSON),
    "not UTF-8": (Reply(200, b'{"status": "\xff"}'), FailureCode.ANSWER_NOT_JSON),
    "deep": (Reply(200, b"[" * 60_000), FailureCode.ANSWER_NOT_JSON),
    "no status": (Reply(200, b'{"version": 1}'), FailureCode.STATUS_MISSING),
    "status null": (Reply(200, b'{"status": null, "version": 1}'), FailureCode.STATUS_MISSING),
    "list": (Reply(200, b"[]"), FailureCode.STATUS_MISSING),
    "version": (Reply(200, b'{"status": "A", "version": 1.5}'), FailureCode.VERSION_WRONG),
    "time": (Reply(200, b'{"status": "A", "version": 1, "at": "x"}'), FailureCode.TIME_WRONG),
    "large": (Reply(200, b" " * 100_000), FailureCode.BODY_TOO_LARGE),
    "bomb": (Reply(200, BOMB, {"Content-Encoding": "gzip"}), FailureCode.BODY_TOO_LARGE),
    "encoding": (Reply(200, b"{}", {"Content-Encoding": "br"}), FailureCode.ANSWER_NOT_JSON),
    "damaged": (Reply(200, b"{}", {"Content-Encoding": "gzip"}), FailureCode.ANSWER_NOT_JSON),
    "forbidden": (Reply(403), FailureCode.FORBIDDEN),
    "teapot": (Reply(418), FailureCode.UNEXPECTED),
    "not asked": (Reply(304, b""), FailureCode.UNEXPECTED),
}


def test_a_bad_answer_is_reported_with_its_document_and_holds_up_no_other(
    bridge: BridgeUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    bridge.ids = [*BAD_ANSWERS, "good"]
    bridge.changes = {"at": "at", "body_bytes_max": 65_536}
    bridge.service.documents["good"] = printed(1)
    for document, (reply, _) in BAD_ANSWERS.items():
        bridge.service.replies[f"/documents/{document.replace(' ', '%20')}"] = replies(reply)
    done = bridge.once()
    assert published(bridge) == [("good", "PRINTED", 1)]
    found = {one.document: one.code for one in done.examples}
    assert found == {document: code for document, (_, code) in BAD_ANSWERS.items()}
    said = capsys.readouterr().err
    assert all(f"document {document!r}: {found[document].value}" in said for document in found)
    for document in BAD_ANSWERS:
        bridge.service.replies[f"/documents/{document.replace(' ', '%20')}"] = replies(printed(2))
    assert bridge.once().counts.published == len(BAD_ANSWERS)


def test_a_compressed_answer_is_read(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["C-1"]
    body = gzip.compress(json.dumps(printed(1)).encode())
    bridge.service.replies["/documents/C-1"] = replies(
        Reply(200, body, {"Content-Encoding": "gzip"})
    )
    assert bridge.once().counts.published == 1


@pytest.mark.usefixtures("quick_retries")
def test_time_outs_and_server_errors_are_retried(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["hangs", "drips", "C-1", "always"]
    bridge.changes = {"timeout_s": 1.0}
    never = threading.Event()
    bridge.service.replies["/documents/hangs"] = replies(Reply(wait=never), printed(1))
    drip = Reply(drips=True, headers={"Content-Length": "1000000"})
    bridge.service.replies["/documents/drips"] = replies(drip, printed(1))
    bridge.service.replies["/documents/C-1"] = replies(Reply(500), Reply(503), printed(1))
    bridge.service.replies["/documents/always"] = replies(Reply(500))
    done = bridge.once()
    never.set()
    assert sorted(document for document, _ in bridge.events) == ["C-1", "drips", "hangs"]
    assert done.failures == {"SERVER_ERROR": 1}
    # more often only if the source failed so often in a row that it seemed to be in trouble
    assert bridge.service.paths().count("/documents/always") >= poller.ATTEMPTS_MAX
    assert done.counts.retried >= 4 + poller.ATTEMPTS_MAX - 1


@pytest.mark.usefixtures("quick_retries")
def test_a_certificate_must_be_of_an_authority_that_is_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with QueryService(certificate=authority.issue("print")) as service:
        bridge = BridgeUnderTest(tmp_path, service)
        bridge.ids = ["C-1"]
        service.documents["C-1"] = printed(1)
        assert bridge.once().failures == {"UNREACHABLE": 1}
        bridge.changes = {"ca": str(authority.ca)}
        assert bridge.once().counts.published == 1
        bridge.changes = {"ca": str(tmp_path / "ids.txt")}
        with pytest.raises(errors.SettingsError, match="cannot be used as `ca`"):
            bridge.once()


def test_retry_after_pauses_all_requests(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["busy", *map(str, range(20))]
    bridge.changes = {"concurrency": 1, "rate_per_s": 200.0}
    bridge.service.documents = {str(number): printed(1) for number in range(20)}
    bridge.service.replies["/documents/busy"] = replies(
        Reply(429, b"", {"Retry-After": "1"}), printed(1)
    )
    assert bridge.once().counts.published == 21
    requests = bridge.service.requests
    refused = next(one for one in requests if one.path.endswith("busy"))
    following = [one.at - refused.at for one in requests if one.at > refused.at]
    assert min(following) >= 0.9


def test_the_rate_is_kept(bridge: BridgeUnderTest) -> None:
    bridge.ids = [str(number) for number in range(25)]
    bridge.changes = {"rate_per_s": 50.0, "concurrency": 20}
    bridge.service.documents = {document: printed(1) for document in bridge.ids}
    began = time.monotonic()
    bridge.once()
    # the last of 25 requests at 50 per second comes 24 distances after the first, or later
    assert max(request.at for request in bridge.service.requests) - began >= 24 / 50


def test_no_more_requests_are_open_than_allowed(bridge: BridgeUnderTest) -> None:
    bridge.ids = [str(number) for number in range(12)]
    bridge.changes = {"concurrency": 3}
    lock, go = threading.Lock(), threading.Event()
    now_open: list[int] = [0]
    most: list[int] = [0]

    def reply(_: Request) -> Reply:
        with lock:
            now_open[0] += 1
            most[0] = max(most[0], now_open[0])
            if now_open[0] == 3:
                go.set()
        go.wait(PATIENCE_S)
        with lock:
            now_open[0] -= 1
        return Reply(200, json.dumps(printed(1)).encode())

    for document in bridge.ids:
        bridge.service.replies[f"/documents/{document}"] = reply
    assert bridge.once().counts.published == 12
    assert most == [3]


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize(
    ("code", "kind"), [(500, errors.SourceUnreachable), (401, errors.NotAuthorised)]
)
def test_a_pass_gives_up_if_the_source_does_not_answer_and_continues_later(
    bridge: BridgeUnderTest, code: int, kind: type[errors.InstepError]
) -> None:
    bridge.ids = [f"{number:03}" for number in range(100)]
    for document in bridge.ids[:10]:
        bridge.service.documents[document] = printed(1)
    for document in bridge.ids[10:]:
        bridge.service.replies[f"/documents/{document}"] = replies(Reply(code))
    with pytest.raises(kind):
        bridge.once()
    before = len(bridge.events)
    bridge.service.replies.clear()
    bridge.service.documents = {document: printed(1) for document in bridge.ids}
    done = bridge.once()
    assert before == 10
    assert (done.counts.polled, done.counts.published) == (90, 90)


# --- ids ------------------------------------------------------------------------------------------


def test_ids_that_no_record_can_have_are_reported(
    bridge: BridgeUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    bridge.ids = ["C-1", "x" * 300, "", "C-1"]
    bridge.service.documents["C-1"] = printed(1)
    done = bridge.once()
    assert (done.counts.polled, done.counts.ids_refused) == (1, 1)
    assert "at most 255 characters" in capsys.readouterr().err


def test_a_document_that_leaves_the_list_is_asked_one_last_time(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["C-1", "C-2"]
    bridge.service.documents = {"C-1": printed(1, "QUEUED"), "C-2": printed(1)}
    bridge.once()
    bridge.ids = ["C-2"]
    bridge.service.documents["C-1"] = printed(2)
    bridge.once()
    assert published(bridge) == [("C-1", "PRINTED", 2)]
    bridge.once()  # the pass before may have asked it before the list was complete
    bridge.service.requests.clear()
    bridge.once()
    assert bridge.service.paths() == ["/documents/C-2"]
    bridge.ids = ["C-1", "C-2"]
    bridge.service.requests.clear()
    bridge.once()
    assert len(bridge.service.requests) == 2


def test_ids_come_from_a_query(bridge: BridgeUnderTest) -> None:
    url = f"sqlite:///{bridge.folder}/source.db"
    run_sql(url, "CREATE TABLE d (id INTEGER, open INTEGER)", "INSERT INTO d VALUES (7, 1), (8, 0)")
    bridge.changes = {
        "ids_file": None,
        "ids_url": url,
        "ids_query": "SELECT id FROM d WHERE open = 1",
    }
    bridge.service.documents = {"7": printed(1), "8": printed(1)}
    bridge.once()
    assert published(bridge) == [("7", "PRINTED", 1)]
    bridge.changes["ids_query"] = "SELECT id, open FROM d"
    with pytest.raises(errors.SettingsError, match="2 columns"):
        bridge.once()
    bridge.changes["ids_query"] = "SELECT nothing FROM d"
    with pytest.raises(errors.SettingsError, match="nothing"):
        bridge.once()


def test_a_missing_file_of_ids_is_an_error(bridge: BridgeUnderTest) -> None:
    bridge.changes = {"ids_file": str(bridge.folder / "none.txt")}
    for once in (True, False):
        with pytest.raises(errors.SettingsError, match="cannot be read"):
            bridge.poller(once=once).run()


def by_number(request: Request) -> Reply:
    number = int(request.path.partition("page=")[2])
    ids = [{"id": number * 10 + one} for one in range(3 if number < 3 else 0)]
    return Reply(200, json.dumps({"data": {"items": ids}}).encode())


def by_link(request: Request) -> Reply:
    number = int(request.path.partition("after=")[2] or "0")
    links = {"next": f"/list?after={number + 1}" if number < 2 else None}
    ids = [f"{number}{one}" for one in range(3)]
    return Reply(200, json.dumps({"data": {"items": ids}, "links": links}).encode())


def by_token(request: Request) -> Reply:
    token = unquote(request.path.partition("token=")[2])
    tokens = {"": "a&b=c", "a&b=c": "end", "end": ""}
    ids = [f"{token[:1]}{one}" for one in range(3)]
    return Reply(200, json.dumps({"data": {"items": ids}, "token": tokens[token]}).encode())


def by_header(request: Request) -> Reply:
    reply = by_link(request)
    following = json.loads(reply.body)["links"]["next"]
    links = {"Link": f'<{following}>; rel="next"'} if following else {}
    return Reply(200, reply.body, links)


PAGINGS: dict[str, tuple[Callable[[Request], Reply], dict[str, Any], int]] = {
    "number": (by_number, {"page_parameter": "page"}, 6),
    "link": (by_link, {"next": "links.next"}, 9),
    "token": (by_token, {"next": "token", "next_parameter": "token"}, 9),
    "header": (by_header, {"next": "@link"}, 9),
    "one page": (by_link, {}, 3),
}


@pytest.mark.parametrize("paging", PAGINGS)
def test_ids_come_from_the_pages_of_a_list(bridge: BridgeUnderTest, paging: str) -> None:
    reply, options, count = PAGINGS[paging]
    listed = {"url": f"{bridge.service.url}/list", "items": "data.items", **options}
    bridge.changes = {"ids_file": None, "ids_list": listed, "headers": {"X-Key": "hush"}}
    bridge.service.replies["/list"] = reply
    done = bridge.once()
    assert (done.counts.documents, done.counts.missing) == (count, count)
    assert all(one.headers["x-key"] == "hush" for one in bridge.service.requests)


@pytest.mark.usefixtures("quick_retries")
def test_an_interrupted_listing_continues_with_its_next_page(bridge: BridgeUnderTest) -> None:
    listed = {"url": f"{bridge.service.url}/list", "items": "data.items", "next": "links.next"}
    bridge.changes = {"ids_file": None, "ids_list": listed}
    bridge.service.replies["/list"] = lambda request: (
        Reply(500) if request.path.endswith("after=2") else by_link(request)
    )
    with pytest.raises(errors.SourceUnreachable):
        bridge.once()
    bridge.service.replies["/list"] = by_link
    bridge.service.requests.clear()
    assert bridge.once().counts.documents == 9
    assert [path for path in bridge.service.paths() if "list" in path] == ["/list?after=2"]


def test_links_to_another_server_and_endless_pages_are_refused(bridge: BridgeUnderTest) -> None:
    with QueryService() as other:
        listed = {"url": f"{bridge.service.url}/list", "next": "next", "items": "ids"}
        bridge.changes = {"ids_file": None, "ids_list": listed, "headers": {"X-Key": "hush"}}
        bridge.service.replies["/list"] = replies(
            {"ids": ["C-1"], "next": f"{other.url}/list?page=2"}
        )
        with pytest.raises(errors.SettingsError, match="a different server"):
            bridge.once()
        bridge.service.replies["/list"] = replies({"ids": ["C-1"], "next": "/list"})
        with pytest.raises(errors.SettingsError, match="repeat themselves"):
            bridge.once()
        # a list on another server gets only its own headers
        bridge.changes["ids_list"] = {"url": f"{other.url}/list", "items": "ids"}
        other.replies["/list"] = replies({"ids": ["C-1"]})
        bridge.once()
        assert "x-key" not in other.requests[-1].headers


# --- running --------------------------------------------------------------------------------------


def test_a_running_bridge_follows_changes_and_stops(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["C-1", "C-2"]
    bridge.changes = {"interval_min_s": 0.02, "interval_max_s": 0.05, "ids_refresh_s": 1.0}
    bridge.service.documents = {"C-1": printed(1), "C-2": printed(1)}
    with bridge.running():
        wait_until(lambda: len(bridge.events) == 2, "the first events", PATIENCE_S)
        for version in range(2, 6):
            bridge.service.documents["C-1"] = printed(version)
            wait_until(
                lambda: published(bridge)[-1][2] == version,  # noqa: B023 - waits within the loop
                "the change",
                PATIENCE_S,
            )
        (bridge.folder / "ids.txt").write_text("C-1\nC-3", encoding="utf-8")
        bridge.service.documents["C-3"] = printed(1)
        wait_until(lambda: published(bridge)[-1][0] == "C-3", "the new id", PATIENCE_S)
    of_one = [version for document, _, version in published(bridge) if document == "C-1"]
    assert of_one == [1, 2, 3, 4, 5]


def test_a_hanging_service_does_not_hold_up_a_stop(bridge: BridgeUnderTest) -> None:
    bridge.ids = [str(number) for number in range(20)]
    bridge.changes = {"timeout_s": 300.0}
    never = threading.Event()
    for document in bridge.ids:
        bridge.service.replies[f"/documents/{document}"] = replies(Reply(wait=never))
    with bridge.running():
        wait_until(lambda: len(bridge.service.requests) == 8, "open requests", PATIENCE_S)
        began = time.monotonic()
    assert time.monotonic() - began < 60  # the requests wait for 300 s
    never.set()


class Unreliable(MemoryPublisher):
    """A publisher whose deliveries fail, or never end, as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: errors.Undelivered | None = None
        self.hangs = False

    def close(self) -> None:
        """Stay open: several bridges use it."""

    def send(self, status_event: Any, *, on_delivery: Any = None) -> Receipt:
        if self.hangs:
            return self._counter.begin(on_delivery)
        if self.failure is not None:
            on_delivery(self.failure, None)
            return self._counter.begin(None)
        return super().send(status_event, on_delivery=on_delivery)


def test_a_change_that_was_not_acknowledged_is_published_again_with_its_version(
    bridge: BridgeUnderTest,
) -> None:
    bridge.ids = ["C-1"]
    bridge.changes = {"version": None}
    bridge.service.documents["C-1"] = {"status": "A"}
    publisher = Unreliable()
    publisher.failure = errors.Undelivered("no")
    at = 1_700_000_000.0

    def once(now: float) -> dict[str, int]:
        asked = bridge.poller(clock=lambda: now)
        asked._connect = lambda *_, **__: publisher
        return asked.run().failures

    assert once(at) == {"UNDELIVERED": 1}
    publisher.failure = None
    assert once(at + 5000) == {}
    values = [json.loads(one.value or b"") for one in publisher.records]
    assert [(one["status"], one["version"]) for one in values] == [("A", int(at))]
    # what may have been published is followed by a higher version, even if it was undone
    publisher.failure = errors.Undelivered("no")
    bridge.service.documents["C-1"] = {"status": "B"}
    once(at + 10_000)
    publisher.failure = None
    bridge.service.documents["C-1"] = {"status": "A"}
    once(at + 10_000)
    values = [json.loads(one.value or b"") for one in publisher.records]
    assert [(one["status"], one["version"]) for one in values] == [
        ("A", int(at)),
        ("A", int(at) + 10_001),
    ]


def test_a_broker_that_does_not_answer_does_not_hold_up_a_stop(
    bridge: BridgeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "SETTLE_S", 0.2)
    bridge.ids = ["C-1"]
    bridge.service.documents["C-1"] = printed(1)
    publisher = Unreliable()
    publisher.hangs = True
    running = bridge.poller(once=False)
    running._connect = lambda *_, **__: publisher
    thread = threading.Thread(target=running.run)
    thread.start()
    wait_until(lambda: publisher._counter.mark == 1, "the publish", PATIENCE_S)
    running.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert bridge.once().counts.published == 1


def test_metrics_count_what_happened(bridge: BridgeUnderTest) -> None:
    bridge.ids = ["C-1", "C-2"]
    bridge.service.documents = {"C-1": printed(1), "C-2": {}}
    asked = bridge.poller()
    asked.run()
    families = BridgeMetrics("print", asked.counts, asked.reporter.failures).collect()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    assert found["instep_bridge_requests_total", "print"] == 2
    assert found["instep_bridge_answers_total", "print", "changed"] == 1
    assert found["instep_bridge_failures_total", "print", "STATUS_MISSING"] == 1
    assert found["instep_bridge_published_total", "print"] == 1
    assert found["instep_bridge_documents", "print"] == 2
