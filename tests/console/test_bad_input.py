"""Test that every class of bad input is only text on the pages that show it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from confluent_kafka import Producer

from instep import sinks
from instep.console.server import ConsoleServer
from instep.document.decoding import DeadLetter, Event, Record
from instep.document.guard import Parked
from instep.document.reasons import Reason, Refusal
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.sinks import inspection
from instep.sinks.journal_entries import Selection
from tests.support.bad_input import CASES, Sent
from tests.support.consoles import PIPELINE, TOPIC, ConsoleFolder
from tests.support.databases import run_sql

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Page

BAD_TOPIC = "console-bad-input"
FIRST_OFFSET = 5_000_000  # behind every record of the topic
PUBLISHED_BYTES_MAX = 500_000
DEAD, PARKED = Reason.UNFORESEEN, Reason.REFUSED_BY_TARGET
INJECTED = "main script, main img, main iframe, main svg:not(.chart), main [onerror], main [onload]"


def text_of(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace").replace("\0", "")


def _has_markup(name: str) -> bool:
    return any(b"<" in (sent.value or b"") + (sent.key or b"") for sent in CASES[name].records("x"))


def can_publish(sent: Sent) -> bool:
    return len(sent.value or b"") + len(sent.key or b"") < PUBLISHED_BYTES_MAX


def publish(cluster: Cluster, records: list[Sent]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for sent in filter(can_publish, records):
        producer.produce(BAD_TOPIC, sent.value, sent.key, headers=list(sent.headers))
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def corpus(office: ConsoleFolder, cluster: Cluster) -> Iterator[dict[str, tuple[int, Sent]]]:
    """Keep the odd record of each case as a dead letter and as a parked event, and publish it."""
    found = {
        name: (FIRST_OFFSET + number, case.records("console")[-1])
        for number, (name, case) in enumerate(CASES.items())
    }
    topics.create(cluster, BAD_TOPIC, 1)
    publish(cluster, [sent for _, sent in found.values()])
    letters, parked = [], []
    for name, (offset, sent) in found.items():
        record = Record(offset, sent.timestamp_ms, sent.key, sent.value, 1, sent.headers)
        letters.append(DeadLetter(record, DEAD, text_of(sent.value)[:1_000] or "no text"))
        event = Event(offset, f"{name} {text_of(sent.key)}"[:200], 1, None, None, ())
        parked.append((Parked(event, Refusal(PARKED, text_of(sent.value)[:1_000])), record))
    sink = sinks.open_sink(inspection.inspect(PIPELINE, office.pipeline))
    with sink.transaction():
        sink.journal.add_dead_letters(1, letters, datetime.now(UTC))
        sink.journal.add_parked(0, parked, datetime.now(UTC))
    sink.close()
    yield found
    for table in ("instep_dead_letters", "instep_parked"):
        run_sql(office.url, f'DELETE FROM {table} WHERE "offset" >= {FIRST_OFFSET}')
    topics.delete(cluster, BAD_TOPIC)


@pytest.fixture
def calm(page: Page) -> Iterator[Page]:
    """Return a page on which no script of a record may open a dialog."""
    dialogs: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    yield page
    page.remove_listener("dialog", dismiss)
    assert dialogs == []


def look(page: Page, url: str) -> None:
    answer = page.goto(url)
    assert answer is not None
    assert answer.status < 500, page.inner_text("main")
    assert page.locator(INJECTED).count() == 0, url


# Lists show all cases. Pages of their own for those that a browser could run; the campaign has all.
@pytest.mark.parametrize(
    "name",
    [name if _has_markup(name) else pytest.param(name, marks=pytest.mark.long) for name in CASES],
)
def test_a_bad_record_is_only_text(
    calm: Page, console: ConsoleServer, corpus: dict[str, tuple[int, Sent]], name: str
) -> None:
    offset, _ = corpus[name]
    place = {"pipeline": PIPELINE, "topic": TOPIC, "partition": 1, "offset": offset}
    look(calm, f"{console.address}record?{urlencode(place)}")
    assert "kept in quarantine" in calm.inner_text("main")


def test_lists_of_bad_records_are_only_text(
    calm: Page, console: ConsoleServer, office: ConsoleFolder, corpus: dict[str, tuple[int, Sent]]
) -> None:
    paths = [
        f"dead?reason={DEAD}",
        f"parked?reason={PARKED}",
        f"dead/drop?reason={DEAD}",
        f"dead/replay?reason={DEAD}",
        f"parked/release?reason={PARKED}",
        f"records?topic={BAD_TOPIC}&from=start&limit=500",
    ]
    for path in paths:
        look(calm, console.address + path)
    published = sum(can_publish(sent) for _, sent in corpus.values())
    assert calm.get_by_role("region", name="Records").locator("tbody tr").count() == published
    sink = sinks.open_sink(inspection.inspect(PIPELINE, office.pipeline))
    assert len(sink.journal.dead_letters(Selection(reason=DEAD))) >= len(CASES)
    sink.close()
