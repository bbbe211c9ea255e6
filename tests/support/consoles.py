"""A console for the tests: served by a thread, with a database, a topic, and hostile values."""

from __future__ import annotations

import html
import http.client
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
from confluent_kafka import Producer

from instep import settings, sinks
from instep.console.server import ConsoleServer, ServerOptions
from instep.console.workspace import ConsoleOptions
from instep.document.decoding import DeadLetter, Decoder, Event
from instep.document.guard import Parked
from instep.document.reasons import Reason, Refusal
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.pipeline.apply.batch import Writer
from instep.pipeline.apply.transaction import BatchTransaction
from instep.sinks import inspection, preparation
from instep.sinks.target import Position
from tests.support.cli import settings_text
from tests.support.databases import run_sql
from tests.support.producing import IN_ORDER
from tests.support.transactions import log_holds_nothing, record
from tests.support.web_pages import HOSTILE

PIPELINE = "contracts"
TOPIC = "console-topic"
LETTER_OFFSET = 1_000_000  # of letters that tests add: behind every record of the topic
LONG_STATUS = "x" * 300  # does not fit the table's column: it parks the document
SCRIPT = "<script>window.hacked=1</script>"
# classes of bad input, each as a value that a record may hold
HOSTILE_VALUES = {
    "script": SCRIPT,
    "image": '"><img src=x onerror="window.hacked=1">',
    "attribute": "' onmouseover='window.hacked=1' x='",
    "link": "javascript:window.hacked=1",
    "template": "{{ 7*7 }}{% raw %}${window.hacked=1}",
    "htmx": '<div hx-get="/" hx-on:load="window.hacked=1" hx-trigger="load">',
    "markup": HOSTILE.replace("\x00", "").encode("utf-8", "replace").decode(),
    "lines": "a\r\nb\x1b[31mc\td",
    "direction": "\u202egnp.exe\u2066",
    "entities": "&lt;script&gt;&#x3c;&amp;",
    "stream": "\n\nevent: part\ndata: <b id=injected>x</b>\n\n",
    "sql": "'; DROP TABLE contract_document; --",
    "path": "../../etc/passwd%2e%2e%00",
    "spaces": "a\xa0b\u3000c\xadd\u200be",
    "control": "a\x01b\x7fc\x85d'e\\f",
    "emoji": "😀\u0301é\ufeff",
}


FIELD = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')


class Answer(msgspec.Struct, frozen=True):
    """What the console answers to one request."""

    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def fields(self) -> list[tuple[str, str]]:
        """Return the hidden fields of the page's forms."""
        return [(name, html.unescape(value)) for name, value in FIELD.findall(self.text)]


class ConsoleFolder(msgspec.Struct, frozen=True):
    """The settings and the database that a console shows."""

    folder: Path
    url: str
    loaded: settings.Loaded

    @property
    def pipeline(self) -> settings.Pipeline:
        return self.loaded.settings.pipelines[PIPELINE]


def prepare(folder: Path, cluster: Cluster) -> ConsoleFolder:
    """Make a topic and a database as a pipeline would have left them."""
    url = f"sqlite:///{folder}/contracts.db"
    text = settings_text(bootstrap=cluster.bootstrap, topic=TOPIC, target=url)
    (folder / "instep.toml").write_text(text, encoding="utf-8")
    loaded = settings.load_with_origins(folder / "instep.toml", {})
    made = ConsoleFolder(folder, url, loaded)
    topics.create(cluster, TOPIC, 2)
    preparation.prepare(made.pipeline, add_columns=True)
    apply(cluster, made, 0, [*_documents(), *_hostile()])
    apply(cluster, made, 1, [("q0", _event("q0", 1)), ("q0", _event("q0", 2, "SENT"))])
    return made


def apply(
    cluster: Cluster, made: ConsoleFolder, partition: int, events: list[tuple[str, Any]]
) -> None:
    """Publish events to a partition, and apply them as a task does."""
    described = topics.describe(cluster, TOPIC)
    sink = sinks.open_sink(inspection.inspect(PIPELINE, made.pipeline))
    try:
        ledger = sink.ledger.positions()
        if not ledger:
            sink.ledger.take_epoch(
                Position(number, 0, 0, described.cluster_id, described.id) for number in (0, 1)
            )
            ledger = sink.ledger.positions()
        begin, epoch = ledger[partition].next_offset, ledger[partition].epoch
        now_ms = int(time.time() * 1000)  # Kafka would soon delete records that are months old
        records = [
            msgspec.structs.replace(
                record(begin + number, key, value), partition=partition, timestamp_ms=now_ms
            )
            for number, (key, value) in enumerate(events)
        ]
        producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
        for one in records:
            producer.produce(
                TOPIC, one.value, one.key, partition=partition, timestamp=one.timestamp_ms
            )
        assert producer.flush(30) == 0
        writer = Writer(epoch, described.cluster_id, described.id)
        BatchTransaction(writer, partition, records, log_holds_nothing).apply(
            sink, Decoder(sink.target.mapping)
        )
    finally:
        sink.close()


def _event(document: str, version: int, status: str = "PRINTED") -> dict[str, Any]:
    return {
        "doc_id": document,
        "status": status,
        "version": version,
        "updated_at": 1_790_000_000_000,
    }


def _documents() -> Iterator[tuple[str, Any]]:
    """Yield good documents, documents that get parked, and records that become dead letters."""
    for number in range(20):
        yield f"d{number}", _event(f"d{number}", 1, "QUEUED")
        yield f"d{number}", _event(f"d{number}", 2)
    for number in range(20):
        yield f"p{number}", _event(f"p{number}", 1, "QUEUED")
        yield f"p{number}", _event(f"p{number}", 2, LONG_STATUS)
        yield f"p{number}", _event(f"p{number}", 3)
    for number in range(60):
        yield f"bad{number}", b"{broken %d" % number


def _hostile() -> Iterator[tuple[str, Any]]:
    for name, value in HOSTILE_VALUES.items():
        yield value, _event(value, 1, value[:200])
        yield value, _event(value, 2, value + LONG_STATUS)
        yield f"dead-{name}", {"doc_id": value}
        yield value, value.encode()


def add_letters(made: ConsoleFolder, reason: Reason, documents: list[str]) -> None:
    """Keep good events as dead letters, as if the settings had been wrong before."""
    sink = sinks.open_sink(inspection.inspect(PIPELINE, made.pipeline))
    try:
        with sink.transaction():
            records = [
                record(LETTER_OFFSET + number, document, _event(document, 1))
                for number, document in enumerate(documents)
            ]
            letters = [DeadLetter(one, reason, "not what was expected") for one in records]
            sink.journal.add_dead_letters(1, letters, datetime.now(UTC))
    finally:
        sink.close()


def park(made: ConsoleFolder, reason: Reason, documents: list[str]) -> None:
    """Keep an event of each document as parked."""
    sink = sinks.open_sink(inspection.inspect(PIPELINE, made.pipeline))
    try:
        with sink.transaction():
            parked = [
                (
                    Parked(
                        Event(LETTER_OFFSET + number, name, 1, None, None, ()),
                        Refusal(reason, "not what was expected"),
                    ),
                    record(LETTER_OFFSET + number, name, _event(name, 1)),
                )
                for number, name in enumerate(documents)
            ]
            sink.journal.add_parked(1, parked, datetime.now(UTC))
    finally:
        sink.close()


def unblock(made: ConsoleFolder, *documents: str) -> None:
    """Remove the event that blocks each document, as if its cause were gone."""
    for document in documents:
        run_sql(
            made.url,
            f"DELETE FROM instep_parked WHERE document = '{document}' AND \"offset\" ="
            f" (SELECT min(\"offset\") FROM instep_parked WHERE document = '{document}')",
        )


def changed(made: ConsoleFolder, **changes: Any) -> settings.Loaded:
    """Return the settings with a pipeline that differs."""
    declared = made.loaded.settings
    pipelines = {PIPELINE: msgspec.structs.replace(made.pipeline, **changes)}
    return msgspec.structs.replace(
        made.loaded, settings=msgspec.structs.replace(declared, pipelines=pipelines)
    )


@contextmanager
def serving(
    loaded: settings.Loaded,
    options: ConsoleOptions | None = None,
    *,
    port: int = 0,
    user: str = "ann",
    auth: Path | None = None,
) -> Iterator[ConsoleServer]:
    """Serve a console in a thread."""
    server = ConsoleServer(
        loaded, options or ConsoleOptions(), ServerOptions(user, port=port, auth=auth)
    )
    ready = threading.Event()
    thread = threading.Thread(target=server.run, args=(ready.set,), daemon=True)
    thread.start()
    assert ready.wait(30), "the console does not start"
    try:
        yield server
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()


@contextmanager
def started(made: ConsoleFolder) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a console as a process; yield it with its start URL."""
    arguments = ["console", "--port", "0", "--config", str(made.folder / "instep.toml")]
    with subprocess.Popen(
        [sys.executable, "-m", "instep", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


def answered(
    server: ConsoleServer, path: str, method: str = "GET", body: str = "", **headers: str
) -> Answer:
    """Send one request exactly as given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    response = connection.getresponse()
    text = response.read().decode("utf-8", "replace")
    connection.close()
    return Answer(response.status, response.headers, text)


def cookie_of(server: ConsoleServer) -> str:
    """Open a session with the token; return its cookie."""
    response = answered(server, f"/start?token={server.door.token}")
    assert response.status == 303
    return str(response.headers["Set-Cookie"]).partition(";")[0]


def confirmed(server: ConsoleServer, cookie: str, path: str, plan: Answer, why: str) -> Answer:
    """Confirm a plan as its form does; return the page that follows."""
    origin = f"http://127.0.0.1:{server.port}"
    body = urlencode([*plan.fields, ("why", why)])
    response = answered(server, path, "POST", body, Cookie=cookie, Origin=origin)
    if response.status != 303:
        return response
    return answered(server, response.headers["location"], Cookie=cookie)


def parked_documents(made: ConsoleFolder) -> set[str]:
    return {row[0] for row in run_sql(made.url, "SELECT document FROM instep_parked")}
