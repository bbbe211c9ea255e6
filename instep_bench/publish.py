"""`instep bench publish`: how fast the publisher sends, beside a bare confluent-kafka loop.

All contestants send the same keys and values with the same settings to the same topic: idempotent,
acknowledged by all replicas. A measurement begins with the first record and ends with the last
acknowledgement. They alternate round by round, so that a disturbance affects all of them.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from instep import errors
from instep.document import event
from instep.emit import Publisher, StatusEvent, outgoing
from instep.kafka import offsets
from instep.report.tables import Cell, Plot, ReportTable
from instep_bench import bench_servers, charts, load, machine, turns
from instep_bench.baselines.publish_loop import Pair, PublishLoop
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult, Figure

SOURCE = "instep bench"
SEND, SEND_RAW = "Publisher.send", "Publisher.send_raw"
LOOP, LOOP_WITH_HEADERS = "loop", "loop with headers"
PROMISES = {
    SEND: "encodes events; a receipt for each; no failure is dropped silently",
    SEND_RAW: "the same for encoded bytes",
    LOOP: "encoded bytes without headers; failures are counted",
    LOOP_WITH_HEADERS: "encoded bytes with the publisher's headers, encoded once for all records",
}
WARM_UP = 10  # a tenth of the events, not measured


class PublishOptions(msgspec.Struct, frozen=True, kw_only=True):
    events: int = 300_000
    size: int = 200
    documents: int = 10_000
    partitions: int = 4
    rounds: int = 3
    bootstrap: str | None = None


class PublishRound(msgspec.Struct, frozen=True):
    """One measurement: seconds to the last acknowledgement, and CPU seconds of this process."""

    seconds: float
    cpu_s: float


class PublishContestant(Protocol):
    """Sends a number of events and waits for every acknowledgement."""

    def __call__(self, count: int) -> None: ...


Rounds = Mapping[str, Sequence[PublishRound]]


def run(options: PublishOptions, say: Callable[[str], None], command: str) -> BenchResult:
    """Measure all contestants in turn. Every process that is started ends with the benchmark."""
    check(options)
    recorder = Recorder("publish", command)
    with (
        bench_servers.BenchServers(options.bootstrap, say) as servers,
        contextlib.ExitStack() as stack,
    ):
        topic = servers.new_topic(options.partitions)
        contestants = _contestants(options, servers.bootstrap, topic, stack)
        rounds: dict[str, list[PublishRound]] = {name: [] for name in contestants}
        for name, publish in contestants.items():
            say(f"warming up {name}")
            publish(max(1, options.events // WARM_UP))
        sent = len(contestants) * max(1, options.events // WARM_UP)
        for number in range(options.rounds):
            for name in _turns(list(contestants), number):
                rounds[name].append(one := _measure(contestants[name], options.events))
                sent += options.events
                say(f"{name}: {options.events / one.seconds:,.0f} events/s")
        ends = offsets.latest(servers.cluster, topic, range(options.partitions))
        if sum(ends.values()) != sent:
            raise errors.InstepError(
                f"{sent:,} records were sent, but the topic has {sum(ends.values()):,}:"
                " the figures would be meaningless"
            )
        releases = machine.releases(bootstrap=options.bootstrap)
    figures = list(_figures(rounds, options.events))
    return recorder.close(
        options,
        {},
        releases,
        figures=figures,
        tables=[_table(figures)],
        plots=_plots(figures),
        notes=_notes(options),
    )


def check(options: PublishOptions) -> None:
    """Raise SettingsError if an option is impossible."""
    turns.require_positive(options, "events", "documents", "partitions", "rounds")
    if options.size < load.SIZE_LEAST:
        raise errors.SettingsError(
            f"an event of {options.size} bytes is too small",
            f"give at least {load.SIZE_LEAST} bytes",
        )


def events_of(options: PublishOptions) -> list[StatusEvent]:
    """Return one event for each document, with values of the wanted size."""
    found = []
    for number in range(options.documents):
        plain = StatusEvent(
            document=load.document(number),
            status=load.STATUSES[number % len(load.STATUSES)],
            version=number + 1,
            at=load.BEGIN,
            fields={"note": ""},
        )
        fill = "." * (options.size - len(event.value(plain)))
        found.append(msgspec.structs.replace(plain, fields={"note": fill}))
    return found


# --- measuring ------------------------------------------------------------------------------------


def _contestants(
    options: PublishOptions, bootstrap: str, topic: str, stack: contextlib.ExitStack
) -> dict[str, PublishContestant]:
    events = events_of(options)
    pairs: list[Pair] = [(event.key(one.document), event.value(one)) for one in events]
    headers = outgoing.from_event(events[0], SOURCE).headers
    publisher = stack.enter_context(Publisher(bootstrap, topic, source=SOURCE))
    loop = PublishLoop(bootstrap, topic)
    stack.callback(loop.close)

    def send(count: int) -> None:
        for one in itertools.islice(itertools.cycle(events), count):
            publisher.send(one)
        publisher.flush()

    def send_raw(count: int) -> None:
        for key, value in itertools.islice(itertools.cycle(pairs), count):
            publisher.send_raw(key, value)
        publisher.flush()

    def bare(count: int) -> None:
        loop.publish(itertools.islice(itertools.cycle(pairs), count), None)

    def bare_with_headers(count: int) -> None:
        loop.publish(itertools.islice(itertools.cycle(pairs), count), headers)

    return {SEND: send, SEND_RAW: send_raw, LOOP: bare, LOOP_WITH_HEADERS: bare_with_headers}


def _turns(names: Sequence[str], number: int) -> list[str]:
    """Return the order of a round: each contestant is the first one in turn."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def _measure(publish: PublishContestant, events: int) -> PublishRound:
    gc.collect()
    began, cpu_before = time.perf_counter(), time.process_time()
    publish(events)
    return PublishRound(time.perf_counter() - began, time.process_time() - cpu_before)


# --- results --------------------------------------------------------------------------------------


def _figures(rounds: Rounds, events: int) -> Iterator[Figure]:
    for name, measured in rounds.items():
        yield Figure(
            name="throughput",
            unit="events/s",
            better="more",
            labels={"contestant": name},
            values=[round(events / one.seconds, 1) for one in measured],
        )
    for name, measured in rounds.items():
        yield Figure(
            name="CPU per event",
            unit="µs",
            better="less",
            labels={"contestant": name},
            values=[round(one.cpu_s / events * 1e6, 3) for one in measured],
        )
    for name in (SEND, SEND_RAW, LOOP_WITH_HEADERS):
        pairs = zip(rounds[name], rounds[LOOP], strict=True)
        yield Figure(
            name="throughput, compared with the loop",
            unit="times",
            better="more",
            labels={"contestant": name},
            values=[round(theirs.seconds / ours.seconds, 3) for ours, theirs in pairs],
        )


def _table(figures: Sequence[Figure]) -> ReportTable:
    by_name = {(one.name, one.labels["contestant"]): one for one in figures}
    rows: list[list[Cell]] = []
    for name, promise in PROMISES.items():
        speed = by_name["throughput", name]
        ratio = by_name.get(("throughput, compared with the loop", name))
        rows.append([name, speed.median, ratio.median if ratio else 1.0, promise])
    columns = ["contestant", "events/s", "of the loop's", "what it does"]
    return ReportTable("Publishing, to the last acknowledgement", columns, rows)


def _plots(figures: Sequence[Figure]) -> list[Plot]:
    return [
        charts.bars(
            f"Publishing: {name}",
            [one for one in figures if one.name == name],
            x="contestant",
        )
        for name in ("throughput", "CPU per event")
    ]


def _notes(options: PublishOptions) -> list[str]:
    return [
        f"Values have {options.size} bytes. All contestants are idempotent and wait for all in-sync"
        " replicas (acks=all), and have the same settings for batches and compression.",
        "CPU per event is that of this process: Python and the client's own threads, without the"
        " broker.",
        "The ratio is computed within each round. The loop polls for answers after every record on"
        " the thread that sends; the publisher does so on a thread of its own.",
    ]
