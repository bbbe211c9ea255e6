"""Claims about speed."""

from __future__ import annotations

import time

from instep.demo import polling
from instep_lab import checkers
from instep_lab.claim import experiment
from instep_lab.clients import bulk
from instep_lab.clients.consuming import CommitMode, Consuming, Keep
from instep_lab.clients.publishing import Publishing
from instep_lab.history import OperationKind
from instep_lab.trial import Trial, spread

DOCUMENTS = 9_000
CLAIMED_S = 45 * 60
CONNECTIONS = 16
CLAIMED_PER_S = 100_000


@experiment(
    "speed-1",
    statement="Polling 9,000 documents at 0.3 s per call takes 45 minutes",
    method=(
        "Query a real HTTP service that takes 0.3 s per response for a sample of documents, one "
        f"by one and over {CONNECTIONS} connections at once. Send the statuses of the same 9,000 "
        "documents as events, and write them to a table with their offsets."
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
        "limit. It says nothing about Kafka, and was measured with the releases of this run."
    ),
    sources=("documentation: the consumer",),
    alone=True,
)
def polling_nine_thousand_documents(trial: Trial) -> None:
    sample = trial.scaled(15, 200)
    documents = {f"k{number}": "PRINTED" for number in range(DOCUMENTS)}
    with polling.QueryService(documents) as service:
        found, took = polling.poll(service.port, list(documents)[:sample])
        # as many calls over each connection as one by one would take in a third of the time
        several = list(documents)[: sample // 3 * CONNECTIONS]
        found_at_once, took_at_once = polling.poll_at_once(service.port, several, CONNECTIONS)
    round_s = took / sample * DOCUMENTS
    at_once_s = took_at_once / len(several) * DOCUMENTS
    trial.control(
        "the service answered",
        len(found) == sample and len(found_at_once) == len(several),
        f"{len(found)} of {sample} in {took:.1f} s, {len(found_at_once)} of {len(several)} at once"
        f" in {took_at_once:.1f} s",
    )
    scenario = trial.scenario("events")
    topic, table = trial.topic(4), trial.folder / "documents.db"
    began = time.monotonic()
    scenario.publish(Publishing(topic=topic, count=DOCUMENTS, keys=DOCUMENTS, seed=trial.seed))
    plan = Consuming(
        topic=topic,
        group=trial.group(),
        count=DOCUMENTS,
        idle_s=30,
        batch=500,
        commit=CommitMode.NEVER,
        keep=Keep.WITH_OFFSET,
        table=str(table),
    )
    scenario.consume(plan)
    events_s = time.monotonic() - began
    operations = scenario.history()
    lost = checkers.lost(operations, by=OperationKind.WORK)
    trial.control("every event is in the table", not lost, f"{lost.count} of {lost.of:,} missing")
    trial.table(
        "9,000 documents",
        ["way", "seconds"],
        [
            [f"polling, from {sample} calls", round(round_s)],
            [
                f"polling over {CONNECTIONS} connections, from {len(several)} calls",
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
        "polling takes 45 minutes, within 10 %",
        abs(round_s - CLAIMED_S) < CLAIMED_S / 10,
        f"{round_s / 60:.1f} minutes, from {sample} calls; with events {events_s:.1f} s,"
        " one row and offset in each transaction",
    )
    trial.limit(
        f"over {CONNECTIONS} connections at once it takes less than a tenth of that",
        at_once_s < CLAIMED_S / 10,
        f"{at_once_s / 60:.1f} minutes, from {len(several)} calls",
    )


@experiment(
    "speed-2",
    statement="An ordinary server handles 100,000 records per second",
    method=(
        "One publisher sends records of 100 bytes with keys, idempotent and with acks=all, to 4 "
        "partitions. Measure the records per second from the first to the last acknowledgement."
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
    bulk.fill(trial.cluster.connection, trial.topic(4), count // 5)  # warm-up
    rates = [
        count / bulk.fill(trial.cluster.connection, trial.topic(4), count)
        for _ in trial.rounds(3, 7)
    ]
    trial.table(
        "Records of 100 bytes per second",
        ["median (lowest to highest)"],
        [[spread(rates, digits=0)]],
    )
    slowest, fastest = min(rates), max(rates)
    holds: bool | None = slowest >= CLAIMED_PER_S
    if slowest < CLAIMED_PER_S <= fastest:
        holds = None  # the rounds disagree
    trial.statement(
        "100,000 records per second or more",
        holds,
        f"{spread(rates, digits=0)} records per second, broker and client on one machine",
    )
