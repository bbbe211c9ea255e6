"""`instep bench console`: how quickly the console answers when there is much to show.

A database is filled with rows, history, dead letters, parked events and decisions, and a cluster
with topics and consumer groups. Some documents are overdue. The console runs in a process of its
own, as users run it. Each page is requested several times, one request after the other. The bytes
of the first page are those on the wire. With `browser`, a headless Chromium clicks from page to
page, and the time from the click to the first paint of the next page is measured. At last tabs stay
open, and the processor time of the console is measured with and without them.

With `costs`, the pipeline runs too: how soon it finds documents that become overdue, what it needs
with and without limits for statuses, and what the console's indexes add to writing quarantine.
"""

from __future__ import annotations

import functools
import http.client
import math
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import UNSET

from instep import errors
from instep.demo.pipeline_process import PipelineProcess
from instep.document.decoding import DeadLetter, Decoder, Event, Record
from instep.document.guard import Parked, Verdict
from instep.document.reasons import Reason, Refusal
from instep.kafka import groups, topics
from instep.pipeline.apply import rows
from instep.report.percentiles import percentile_values
from instep.report.tables import ReportTable
from instep.sinks.sink import Sink
from instep.sinks.target import Decision, Position
from instep.waiting import wait_until
from instep_bench import bench_servers, chromium, console_costs, load, machine, meters
from instep_bench.bench_servers import BenchPipeline, BenchServers, TargetDatabase
from instep_bench.chromium import Chromium
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult, Figure

CHUNK_ROWS = 50_000
EVENTS_PER_DOCUMENT = 10
DOCUMENTS_PER_OVERDUE = 1_000
DECISIONS_AT_ONCE = 500
RECORDS = 1_000
BEGIN_MS = 1_790_000_000_000
DUE_STATUS, DUE_S = "QUEUED", 3600.0
DUE = {DUE_STATUS: "1h"}
OVERDUE_DOCUMENTS = 20
INDEX_ROWS_MAX = 20_000
CACHED = "cached"  # in place of a path: the Chromium that the tests have unpacked
TOPIC_THREADS = 8
START_S = 60.0
PATIENCE_S = 60.0
REASONS = (Reason.NOT_JSON, Reason.FIELD_MISSING, Reason.NOT_A_TIME)
ASSET = re.compile(r'(?:href|src)="(/static/[^"]+)"')
PAINTED = """() => new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(
  () => resolve(performance.timeOrigin + performance.now()))))"""

Say = Callable[[str], None]


class ConsoleBenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is to show, and how often each page is requested."""

    target: str = "postgres"
    history: int = 10_000_000
    dead_letters: int = 100_000
    parked: int = 1_000
    decisions: int = 100_000
    topics: int = 10_000
    groups: int = 200
    requests: int = 50
    tabs: int = 50
    seconds: float = 30  # with open tabs
    browser: str | None = None  # a headless Chromium, or CACHED
    costs: bool = False
    cost_rounds: int = 3
    bootstrap: str | None = None


class ConsoleMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements: milliseconds per page, bytes, and shares of a core."""

    pages: dict[str, list[float]]
    first_page_bytes: int
    painted_ms: list[float]
    cores: dict[str, float]
    costs: CostMeasurements | None = None


class CostMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until overdue documents were found, cores of the pipeline, microseconds per row."""

    found_after_s: list[float]
    watch_cores: dict[str, list[float]]
    index_us: dict[str, list[float]]


def run(options: ConsoleBenchOptions, say: Say, command: str) -> BenchResult:
    """Run the benchmark. Every process that it starts ends with it."""
    _check(options)
    recorder = Recorder("console", command)
    with BenchServers(options.bootstrap, say) as servers:
        database = servers.database(options.target)
        declared = database.declare(servers.bootstrap, servers.new_topic(4), history=True, due=DUE)
        with declared.sink() as sink:
            _fill(sink, servers, declared, options, say)
        _create_topics(servers, options.topics, say)
        _fill_topic(servers, declared.pipeline.topic, options.groups, say)
        with _console(declared) as console:
            measured = _measure(console, declared, options, say)
        if options.costs:
            costs = _measure_costs(declared, database, options, say)
            measured = msgspec.structs.replace(measured, costs=costs)
        releases = machine.releases({database.label: database.url}, bootstrap=options.bootstrap)
    return recorder.close(
        options,
        {"target": database.label},
        releases,
        figures=figures(measured),
        tables=[page_table(measured)],
        notes=notes(options, measured),
    )


def _check(options: ConsoleBenchOptions) -> None:
    bench_servers.check_target(options.target)
    least = min(
        options.history,
        options.dead_letters,
        options.parked,
        options.decisions,
        options.groups,
        options.requests,
    )
    if least < 1 or min(options.topics, options.tabs) < 0 or options.seconds <= 0:
        raise errors.SettingsError(
            "history, dead letters, parked documents, decisions, groups, requests and seconds must"
            " be above 0, topics and tabs at least 0",
            "give larger numbers",
        )
    if options.costs and "://" in options.target:
        raise errors.SettingsError(
            "the costs are measured on a database of the benchmark only: indexes are dropped",
            "leave out --costs, or the URL of --target",
        )
    if options.browser == CACHED and chromium.kept() is None:
        raise errors.MissingPart(
            "the cache has no Chromium: the tests of the console unpack one",
            "name an executable: --browser PATH",
        )


# --- what there is to show ------------------------------------------------------------------------


def _fill(
    sink: Sink,
    servers: BenchServers,
    declared: BenchPipeline,
    options: ConsoleBenchOptions,
    say: Say,
) -> None:
    """Write everything that the pages read, in transactions of many rows."""
    topic = topics.describe(servers.cluster, declared.pipeline.topic)
    sink.ledger.take_epoch(
        Position(number, 0, 0, topic.cluster_id, topic.id) for number in topic.partitions
    )
    at = datetime.now(UTC) - timedelta(hours=1)
    say(f"writing {options.history:,} rows of history")
    for begin in range(0, options.history, CHUNK_ROWS):
        numbers = range(begin, min(begin + CHUNK_ROWS, options.history))
        events = [_event(sink, number) for number in numbers]
        with sink.transaction():
            sink.journal.append_history(0, events, [Verdict.APPLIED] * len(events), at)
    documents = math.ceil(options.history / EVENTS_PER_DOCUMENT)
    say(f"writing {documents:,} rows")
    for begin in range(0, documents, CHUNK_ROWS):
        records = [_row(number) for number in range(begin, min(begin + CHUNK_ROWS, documents))]
        found, _ = Decoder(sink.target.mapping).decode_all(records)
        with sink.transaction():
            rows.write(sink, found, isolate_failures=False)
    say(f"writing {options.dead_letters:,} dead letters")
    for begin in range(0, options.dead_letters, CHUNK_ROWS):
        numbers = range(begin, min(begin + CHUNK_ROWS, options.dead_letters))
        with sink.transaction():
            sink.journal.add_dead_letters(1, list(map(_dead_letter, numbers)), at)
    say(f"writing {options.parked:,} parked documents")
    for begin in range(0, options.parked, CHUNK_ROWS):
        numbers = range(begin, min(begin + CHUNK_ROWS, options.parked))
        events = [_event(sink, number * EVENTS_PER_DOCUMENT) for number in numbers]
        refusal = Refusal(Reason.TEXT_TOO_LONG, "too long")
        with sink.transaction():
            parked = [(Parked(event, refusal), _record(event.offset)) for event in events]
            sink.journal.add_parked(2, parked, at)
    say(f"writing {options.decisions:,} decisions")
    for begin in range(0, options.decisions, DECISIONS_AT_ONCE):
        numbers = range(begin, min(begin + DECISIONS_AT_ONCE, options.decisions))
        with sink.transaction():
            sink.journal.add_decisions(map(_decision, numbers), at + timedelta(milliseconds=begin))


def _event(sink: Sink, number: int) -> Event:
    values = (UNSET,) * len(sink.table.columns)
    document = f"doc-{number // EVENTS_PER_DOCUMENT:09}"
    version = number % EVENTS_PER_DOCUMENT + 1
    status = _status(number // EVENTS_PER_DOCUMENT)
    return Event(number, document, version, BEGIN_MS * 1000 + number, status, values)


def _status(document: int) -> str:
    return "PRINTED" if document % DOCUMENTS_PER_OVERDUE else "QUEUED"


def _row(number: int) -> Record:
    """Return the last event of a document as a record, which becomes its row."""
    document = f"doc-{number:09}"
    value = {
        "doc_id": document,
        "status": _status(number),
        "version": EVENTS_PER_DOCUMENT,
        "updated_at": BEGIN_MS,
    }
    return Record(number, BEGIN_MS, document.encode(), msgspec.json.encode(value))


def _decision(number: int) -> Decision:
    return Decision(1, number, "dropped", "NOT_JSON", "ann", "noise", f"doc-{number:09}")


def _record(number: int) -> Record:
    return Record(number, BEGIN_MS, f"key-{number}".encode(), b'{"status": "PRINTED"}' * 8)


def _dead_letter(number: int) -> DeadLetter:
    return DeadLetter(_record(number), REASONS[number % len(REASONS)], "not what was expected")


def _create_topics(servers: BenchServers, count: int, say: Say) -> None:
    names = [f"bench-console-{number:05}" for number in range(count)]
    say(f"creating {count:,} topics")

    def create(name: str) -> None:
        servers.remove_topic_later(name)
        topics.create(servers.cluster, name, 1)

    with ThreadPoolExecutor(TOPIC_THREADS) as pool:
        list(pool.map(create, names))


def _fill_topic(servers: BenchServers, topic: str, count: int, say: Say) -> None:
    """Publish some records to the pipeline's topic, and commit offsets for consumer groups."""
    say(f"creating {count:,} consumer groups")
    load.publish(load.Load(events=RECORDS, documents=RECORDS), servers.bootstrap, topic)
    for number in range(count):
        name = _group(number)
        servers.groups.append(name)
        groups.commit(servers.cluster, name, {(topic, 0): number})


def _group(number: int) -> str:
    return f"bench-console-group-{number:05}"


# --- the console ----------------------------------------------------------------------------------


class _Console:
    """A running console, and one signed-in connection to it."""

    def __init__(self, process: PipelineProcess, start_url: str) -> None:
        parts = urlsplit(start_url)
        self.start_url, self.pid = start_url, process.pid
        self.host, self.port = parts.hostname or "", parts.port or 0
        response, _ = self.get(f"{parts.path}?{parts.query}")
        self.cookie = str(response.headers["Set-Cookie"]).partition(";")[0]

    def get(self, path: str, cookie: str = "") -> tuple[http.client.HTTPResponse, bytes]:
        """Send one request; return the response and its body as it was on the wire."""
        opened = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        try:
            opened.request("GET", path, headers={"Cookie": cookie, "Accept-Encoding": "gzip"})
            response = opened.getresponse()
            return response, response.read()
        finally:
            opened.close()

    def page(self, path: str) -> bytes:
        """Return a page; raise if the console refuses it."""
        response, body = self.get(path, self.cookie)
        if response.status != 200:
            raise errors.InstepError(f"the console answers {path} with status {response.status}")
        return body


@contextmanager
def _console(declared: BenchPipeline) -> Iterator[_Console]:
    """Start `instep console` on a free port, and stop it at the end."""
    log = Path(declared.config).with_suffix(".console.log")
    command = ("console", "--port", "0")
    with ExitStack() as stack:
        process = PipelineProcess(declared.config, log=log, command=command)
        stack.callback(process.close)
        process.start()

        def printed() -> str:
            text = log.read_text(encoding="utf-8") if log.exists() else ""
            return next((line for line in text.splitlines() if line.startswith("http")), "")

        if not wait_until(lambda: bool(printed()), START_S):
            raise errors.InstepError(f"the console does not start:\n{process.tail()}")
        yield _Console(process, printed())


def _measure(
    console: _Console, declared: BenchPipeline, options: ConsoleBenchOptions, say: Say
) -> ConsoleMeasurements:
    name, topic = declared.name, declared.pipeline.topic
    first = f"doc-{options.history // EVENTS_PER_DOCUMENT // 2:09}"
    pages = {
        "overview": "/",
        "pipeline": f"/pipeline?{urlencode({'pipeline': name})}",
        "document": f"/document?{urlencode({'id': first})}",
        "dead letters": f"/dead?{urlencode({'pipeline': name, 'reason': REASONS[0].value})}",
        "parked": f"/parked?{urlencode({'pipeline': name})}",
        "decisions": "/decisions",
        "topics": "/topics",
        "topics that match": "/topics?match=9",
        "groups": "/groups",
        "group": f"/group?{urlencode({'group': _group(0)})}",
        "topic": f"/topic?{urlencode({'topic': topic})}",
        "records": f"/records?{urlencode({'topic': topic})}",
        "overdue": f"/overdue?{urlencode({'pipeline': name})}",
        "rewind": f"/rewind?{urlencode({'pipeline': name})}",
        "settings": "/settings",
    }
    timed: dict[str, list[float]] = {}
    for page, path in pages.items():
        say(f"requesting {page}")
        console.page(path)
        timed[page] = [
            _milliseconds(functools.partial(console.page, path)) for _ in range(options.requests)
        ]
    painted = _painted(console, options) if options.browser else []
    return ConsoleMeasurements(
        pages=timed,
        first_page_bytes=_first_page_bytes(console),
        painted_ms=painted,
        cores=_cores(console, options, say),
    )


def _measure_costs(
    declared: BenchPipeline, database: TargetDatabase, options: ConsoleBenchOptions, say: Say
) -> CostMeasurements:
    say(f"waiting for {OVERDUE_DOCUMENTS} documents to become overdue")
    found = console_costs.found_after(declared, DUE_STATUS, DUE_S, OVERDUE_DOCUMENTS)
    rounds = options.cost_rounds
    cores = console_costs.watch_cores(declared, database, options.seconds, rounds, say)
    with declared.sink() as sink:
        rows = min(INDEX_ROWS_MAX, options.dead_letters)
        indexes = console_costs.index_cost(declared, sink, rows, rounds, say)
    return CostMeasurements(found_after_s=found, watch_cores=cores, index_us=indexes)


def _milliseconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _first_page_bytes(console: _Console) -> int:
    """Return the bytes of the overview and of everything that it loads."""
    response, body = console.get("/", console.cookie)
    opened = http.client.HTTPConnection(console.host, console.port, timeout=PATIENCE_S)
    opened.request("GET", "/", headers={"Cookie": console.cookie})
    text = opened.getresponse().read().decode()
    opened.close()
    assert response.status == 200
    assets = dict.fromkeys(ASSET.findall(text))
    return len(body) + sum(len(console.get(path)[1]) for path in assets)


def _painted(console: _Console, options: ConsoleBenchOptions) -> list[float]:
    """Return the milliseconds from each click on a link to the next page's first paint."""
    found: list[float] = []
    with chromium.opened(_chromium(options.browser or CACHED)) as browser:
        page = browser.new_page()
        page.goto(console.start_url)
        for number in range(options.requests):
            path = ("/decisions", "/topics", "/groups", "/")[number % 4]
            began: float = page.evaluate("performance.timeOrigin + performance.now()")
            page.locator(f'header a[href="{path}"]').first.click()
            page.wait_for_url(f"**{path}")
            found.append(page.evaluate(PAINTED) - began)
    return found


def _chromium(named: str) -> Chromium:
    kept = chromium.kept() if named == CACHED else None
    return chromium.unpacked(kept) if kept else chromium.at(Path(named))


def _cores(console: _Console, options: ConsoleBenchOptions, say: Say) -> dict[str, float]:
    """Return the share of a core that the console needs without and with open tabs."""
    say(f"measuring {options.tabs} open tabs")
    found = {"no tab": _share(console, options.seconds)}
    with ExitStack() as stack:
        for _ in range(options.tabs):
            opened = stack.enter_context(socket.create_connection((console.host, console.port)))
            request = (
                f"GET /live/overview HTTP/1.1\r\nHost: {console.host}:{console.port}\r\n"
                f"Cookie: {console.cookie}\r\n\r\n"
            )
            opened.sendall(request.encode())
            opened.settimeout(PATIENCE_S)
            opened.recv(1)
        found[f"{options.tabs} tabs"] = _share(console, options.seconds)
    return found


def _share(console: _Console, seconds: float) -> float:
    pids = meters.tree(console.pid)
    meter = meters.Meter({"console": pids})
    meter.start()
    time.sleep(seconds)
    return meter.stop()["console"].cpu_s / seconds


# --- the result -----------------------------------------------------------------------------------


def figures(measured: ConsoleMeasurements) -> list[Figure]:
    """Return the figures of the result."""
    slowest = max(percentile_values(times, [95])[0] for times in measured.pages.values())
    found = [
        Figure(name="slowest page, p95", unit="ms", better="less", values=[slowest]),
        Figure(
            name="first page", unit="kB", better="less", values=[measured.first_page_bytes / 1000]
        ),
        *(
            Figure(
                name="console's processor time",
                unit="cores",
                better="less",
                labels={"with": label},
                values=[cores],
            )
            for label, cores in measured.cores.items()
        ),
    ]
    if measured.painted_ms:
        p95 = percentile_values(measured.painted_ms, [95])[0]
        found.append(Figure(name="click to painted, p95", unit="ms", better="less", values=[p95]))
    return found + (cost_figures(measured.costs) if measured.costs else [])


def cost_figures(costs: CostMeasurements) -> list[Figure]:
    """Return the figures of what the console's answers cost the flow."""
    found = [
        Figure(
            name="overdue found after, longest",
            unit="s",
            better="less",
            values=[max(costs.found_after_s)],
        )
    ]
    for name, unit, values in (
        ("pipeline at rest with its database", "cores", costs.watch_cores),
        ("a dead letter and a decision", "µs", costs.index_us),
    ):
        found += [
            Figure(name=name, unit=unit, better="less", labels={"with": label}, values=measured)
            for label, measured in values.items()
        ]
    return found


def page_table(measured: ConsoleMeasurements) -> ReportTable:
    """Return the times of each page."""
    rows: list[list[Any]] = []
    for page, times in measured.pages.items():
        rows.append([page, *percentile_values(times, [50, 95, 100])])
    return ReportTable("Milliseconds per page", ["page", "p50", "p95", "longest"], rows)


def notes(options: ConsoleBenchOptions, measured: ConsoleMeasurements) -> list[str]:
    """Return what a reader must know."""
    found = ["requests are sent one after the other, from the same machine"]
    if not measured.painted_ms:
        found.append("click to painted was not measured: name a Chromium with --browser")
    if measured.costs is None:
        found.append("overdue documents and the cost of indexes were not measured: --costs")
    if options.tabs:
        found.append("the streams of the tabs are read by nobody; their buffers take what is sent")
    return found
