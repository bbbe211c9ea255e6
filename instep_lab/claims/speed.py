"""Claims about speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from instep.demo import polling
from instep_lab import workload
from instep_lab.claim import experiment
from instep_lab.claims import senders
from instep_lab.clients import table
from instep_lab.clients.consuming import CommitMode, Consuming, Keep
from instep_lab.clients.publishing import Publishing
from instep_lab.trial import Trial, spread

DOCUMENTS = 9_000
CLAIMED_S = 45 * 60
CONNECTIONS = 16
BEST_OF = 3
CLAIMED_PER_S = 100_000
NEARLY = 0.3  # between this part of a rate and all of it, a busy machine may decide
WITHIN, BEYOND = 0.1, 0.25  # of the claimed time: so far off it is right, or wrong


@experiment(
    "speed-1",
    statement="Polling 9,000 documents at 0.3 s per call takes 45 minutes",
    method=(
        "The 45 minutes are arithmetic; measured is what a call adds to them. Query a real HTTP "
        "service that takes 0.3 s per response for a sample of documents, one by one. Send the "
        "statuses of the same 9,000 documents as events, and write them to a table with their "
        f"offsets. For comparison, poll over {CONNECTIONS} connections, with a service that "
        "answers any number of calls at once."
    ),
    advice=(
        "Publish changes instead of polling for them: the table is then as fresh as the last "
        "event. Until then, poll over several connections, if the service can bear it."
    ),
    why=(
        "One call after the other adds up: 9,000 times 0.3 s are 45 minutes. Calls over several "
        "connections wait at the same time, so the time is divided by their number, until the "
        "service is the limit. An event costs the time to send and store it, and only documents "
        "that have changed have one."
    ),
    scope=(
        "A service that takes 0.3 s for each response, whatever the load; a real one has its own "
        "limit. How long polling takes does not depend on Kafka; the events were measured with "
        "librdkafka and Kafka 4.3."
    ),
    sources=("documentation: the consumer",),
    alone=True,
)
def polling_nine_thousand_documents(trial: Trial) -> None:
    sample = trial.scaled(15, 200)
    documents = {f"k{number}": "PRINTED" for number in range(DOCUMENTS)}
    with polling.QueryService(documents) as service:
        calls = [polling.poll(service.port, [name]) for name in list(documents)[:sample]]
        # as many calls over each connection as one by one would take in a third of the time
        several = list(documents)[: sample // 3 * CONNECTIONS]
        at_once = [polling.poll_at_once(service.port, several, CONNECTIONS) for _ in range(BEST_OF)]
    # The median: a busy machine delays some calls.
    round_s = statistics.median(took for _, took in calls) * DOCUMENTS
    at_once_s = min(took for _, took in at_once) / len(several) * DOCUMENTS
    answered = sum(len(found) for found, _ in calls)
    answered_at_once = sum(len(found) for found, _ in at_once)
    trial.control(
        "the service answered",
        answered == sample and answered_at_once == BEST_OF * len(several),
        f"{answered} of {sample} calls one by one, {answered_at_once} of"
        f" {BEST_OF * len(several)} at once",
    )
    scenario = trial.scenario("events")
    topic, file = trial.topic(4), trial.folder / "documents.db"
    began = time.monotonic()
    scenario.publish(
        Publishing(topic=topic, count=DOCUMENTS, keys=DOCUMENTS, seed=trial.seed, sampled=True)
    )
    plan = Consuming(
        topic=topic,
        group=trial.group(),
        count=DOCUMENTS,
        idle_s=30,
        batch=500,
        commit=CommitMode.NEVER,
        keep=Keep.WITH_OFFSET,
        table=str(file),
        sampled=True,
    )
    scenario.consume(plan)
    events_s = time.monotonic() - began
    sent = {(one.key, one.number) for one in workload.records(trial.seed, DOCUMENTS, DOCUMENTS)}
    rows = [one.record for one in table.work(file)]
    trial.control(
        "every event is in the table, once",
        len(rows) == len(sent) and set(rows) == sent,
        f"{len(rows):,} rows of {len(sent):,}",
    )
    trial.table(
        "9,000 documents",
        ["way", "seconds"],
        [
            [f"polling, by the median of {sample} calls", round(round_s)],
            [
                f"polling over {CONNECTIONS} connections, best of {BEST_OF} times {len(several)},"
                " if the service bears it",
                round(at_once_s),
            ],
            ["events", round(events_s, 1)],
        ],
    )
    trial.plot(
        "Time for 9,000 documents",
        "way",
        "seconds",
        {
            "seconds": [
                ("polling", round_s),
                (f"polling, {CONNECTIONS} connections", at_once_s),
                ("events", events_s),
            ]
        },
        log_y=True,
    )
    trial.statement(
        "a call adds little to the 0.3 s: polling takes 45 minutes, within 10 %",
        _is_near(round_s),
        f"{round_s / DOCUMENTS * 1000:.1f} ms per call, by the median of {sample}:"
        f" {round_s / 60:.1f} minutes",
    )
    trial.statement(
        "as events, the same statuses are in a table in less than a tenth of that",
        _is_soon(events_s),
        f"{events_s:.1f} s, one row and offset in each transaction",
    )


def _is_soon(events_s: float) -> bool | None:
    """Return whether events took a tenth of the claimed time; None if a busy machine decides."""
    if events_s < CLAIMED_S / 10:
        return True
    return False if events_s > CLAIMED_S else None


def _is_near(round_s: float) -> bool | None:
    """Return whether a time is about the claimed one; None if it is neither near nor far."""
    off = abs(round_s / CLAIMED_S - 1)
    if off < WITHIN:
        return True
    return False if off > BEYOND else None


@experiment(
    "speed-2",
    statement="An ordinary server handles 100,000 records per second",
    method=(
        "One publisher sends records of 100 bytes with keys, idempotent and with acks=all, to 4 "
        "partitions. Measure the records per second from the first acknowledgement to the last. "
        "The best round counts."
    ),
    advice=(
        "A single broker on a laptop handles more than most teams will ever send. Measure with "
        "your own record size and acks."
    ),
    why=(
        "The sender puts records into batches, and the broker appends a batch to a file without "
        "looking at its records. The cost per record is that of the client, so larger batches "
        "mean more records per second. Nothing waits for the disk."
    ),
    scope=(
        "Records of 100 bytes, one broker, one replica, one librdkafka producer with "
        "linger.ms=20 and batch.size=500000 (defaults of librdkafka: 5 and 1000000; of Java "
        "since 4.0: 5 and 16384), on the cores of this machine. More replicas and larger records "
        "cost network and disk."
    ),
    sources=("documentation: persistence",),
    alone=True,
)
def records_per_second(trial: Trial) -> None:
    count = trial.scaled(300_000, 2_000_000)
    trial.fill(trial.topic(4), count // 5)  # warm-up
    rates: list[float] = []
    for _ in range(senders.ATTEMPTS_MAX):
        rates += [count / trial.fill(trial.topic(4), count) for _ in trial.rounds(3, 7)]
        if _is_claimed(rates) is not None:
            break
    trial.table(
        "Records of 100 bytes per second",
        ["median (lowest to highest)"],
        [[spread(rates, digits=0)]],
    )
    trial.statement(
        "100,000 records per second or more",
        _is_claimed(rates),
        f"{spread(rates, digits=0)} records per second, broker and client on one machine",
    )


def _is_claimed(rates: Sequence[float]) -> bool | None:
    """Return whether the best round has the claimed rate; others may have been disturbed."""
    return senders.clearly_more(max(rates), CLAIMED_PER_S, NEARLY, 1.0)
