"""Claims about where a group starts reading: ways to read, retention, and values of the setting."""

from __future__ import annotations

import re
import time
from functools import partial

from instep import errors
from instep.kafka import topics
from instep.kafka.admin import topic_admin
from instep.report.tables import Cell
from instep_lab import checkers, history
from instep_lab.claim import experiment
from instep_lab.claims import starting
from instep_lab.claims.starting import PARTITIONS, Places, Reading, StartClient, shown
from instep_lab.clients import consuming
from instep_lab.clients.consuming import CommitMode, Consuming
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import Publishing
from instep_lab.history import OperationKind
from instep_lab.trial import Scenario, Trial


@experiment(
    "start-6",
    statement="subscribe and assign start from the same offset",
    method=(
        "Read one topic with subscribe and with assign, with and without commits of the group, "
        "with earliest and with latest, with three clients. Then read twice with assign and "
        "automatic commit."
    ),
    advice=(
        "With the same group id both continue from its commits. assign without a group has none "
        "(group-8): keep the offsets yourself."
    ),
    why=(
        "Both ask the coordinator for the commits of the group id, and fall back to "
        "auto.offset.reset. subscribe also joins the group, which decides who reads what; assign "
        "does not. Without a group id there is nobody to ask, and nothing can be committed."
    ),
    scope=(
        "Since 0.9, whose consumers have both subscribe and assign; before, they were two "
        "APIs. Java client, librdkafka and kafka-python with a group id, with the classic "
        "protocol."
    ),
    sources=("documentation: auto.offset.reset",),
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS",),
)
def subscribe_and_assign(trial: Trial) -> None:
    count = trial.scaled(300, 3_000)
    scenario = trial.scenario("both ways")
    topic = trial.topic(PARTITIONS)
    starting.send_more(trial, scenario, topic, count, first=0)
    middle, ends, rows = (
        starting.log_middle(trial, topic),
        starting.log_ends(trial, topic),
        list[list[Cell]](),
    )
    situations = [
        (committed, reset) for committed in (True, False) for reset in ("earliest", "latest")
    ]
    plans: dict[StartClient, list[Consuming]] = {}
    for client in map(StartClient, (Library.LIBRDKAFKA, Library.JAVA, Library.KAFKA_PYTHON)):
        plans[client] = []
        for committed, reset in situations:
            for assigned in (None, list(range(PARTITIONS))):
                way = "subscribe" if assigned is None else "assign"
                plan = starting.changed(
                    client.plan(trial, topic, reset, f"{client}, {committed}, {reset}, {way}"),
                    assigned=assigned,
                    commit=CommitMode.NEVER,
                )
                if committed:
                    starting.commit_at(trial, topic, plan.group, middle)
                plans[client].append(plan)
    for client, readings in starting.read_each(trial, scenario, plans).items():
        pairs = zip(situations, readings[::2], readings[1::2], strict=True)
        for (committed, reset), by_subscribe, by_assign in pairs:
            situation = f"{'with' if committed else 'without'} commits, {reset}"
            began = by_subscribe.began, by_assign.began
            rows.append([f"{client.library}, {situation}", *(shown(one) for one in began)])
            expected = {"earliest": dict.fromkeys(ends, 0), "latest": ends}[reset]
            if committed:
                expected = middle
            trial.control(
                f"{client.library}, {situation}: subscribe begins where expected",
                began[0] == expected,
                shown(began[0]),
            )
            trial.statement(
                f"{situation}: assign begins at the same offsets",
                began[0] == began[1],
                f"{shown(began[0])} and {shown(began[1])}",
                client=client.library,
            )
    again = (StartClient(Library.JAVA), StartClient(Library.KAFKA_PYTHON))
    twice = trial.together(
        {str(client): partial(_read_twice, trial, scenario, client, topic) for client in again}
    )
    for client in again:
        first, second = twice[str(client)]
        rows.append(
            [
                f"{client.library}, automatic commit, twice",
                "not run",
                f"{shown(first.began)}; {shown(second.began)}",
            ]
        )
        trial.statement(
            "assign with automatic commit continues at the group's commits",
            first.count == count and second.began == ends and second.count == 0,
            f"the second time it began at {shown(second.began)}, read {second.count} again",
            client=client.library,
        )
    trial.table("Where reading began, by partition", ["scenario", "subscribe", "assign"], rows)


def _read_twice(trial: Trial, scenario: Scenario, client: StartClient, topic: str) -> list[Reading]:
    """Read all partitions with assign and automatic commit, close, and read again."""
    plan = starting.changed(
        client.plan(trial, topic, "earliest", "first"),
        assigned=list(range(PARTITIONS)),
        commit=CommitMode.AUTO,
    )
    return [
        starting.read_all(
            trial, scenario, starting.changed(plan, member=f"{client.library}, {number}")
        )
        for number in ("first", "again")
    ]


@experiment(
    "start-7",
    statement=(
        "A group returns to find that retention has deleted the records at its committed offset: "
        "auto.offset.reset decides where it continues"
    ),
    method=(
        "A group reads a few records and stays away. Retention removes the segments that it has "
        "not read. It returns with earliest, latest and none, with three clients."
    ),
    advice=(
        "Retain records for longer than a reader may be away. Use none (error in librdkafka) to "
        "learn about the loss: earliest skips what is gone, latest also skips everything that is "
        "left, and neither reports it."
    ),
    why=(
        "The commit is an offset that no longer exists. The broker answers that it is out of "
        "range, and the client treats this like a missing commit."
    ),
    scope=(
        "Java client since 0.9, librdkafka since 0.9 (which calls none error) and "
        "kafka-python; with librdkafka both protocols (the consumer protocol since 4.0). In "
        "the lab, retention is checked every 0.5 s, every 5 minutes by default."
    ),
    sources=("documentation: auto.offset.reset",),
    rules=("TOPIC_RETENTION_SHORT", "PIPELINE_RECORDS_EXPIRE_SOON", "PIPELINE_RECORDS_EXPIRED"),
)
def offset_removed_by_retention(trial: Trial) -> None:
    scenario = trial.scenario("retention")
    # Retention deletes whole segments, so there must be several.
    topic = trial.topic(PARTITIONS, retention_ms=starting.FOREVER, segment_bytes=str(1 << 20))
    committed, fresh = dict.fromkeys(range(PARTITIONS), 10), 300
    now_ms = int(time.time() * 1000)
    scenario.publish(
        Publishing(
            topic=topic,
            count=5_000,
            size=1_000,
            keys=starting.KEYS,
            seed=trial.seed,
            timestamp_ms=now_ms - 48 * starting.HOUR_MS,
            config=starting.AT_ONCE,
        )
    )
    starting.send_more(trial, scenario, topic, fresh, first=5_000)
    plans: dict[StartClient, list[Consuming]] = {}
    for client in starting.all_clients(trial):
        plans[client] = [
            starting.changed(
                client.plan(trial, topic, reset, f"{client}, {reset}"), continue_after_error=True
            )
            for reset in ("earliest", "latest", client.no_reset)
        ]
        for plan in plans[client]:
            starting.commit_at(trial, topic, plan.group, committed)
    _expire(trial, topic, committed)
    firsts, ends, rows = (
        starting.log_starts(trial, topic),
        starting.log_ends(trial, topic),
        list[list[Cell]](),
    )
    lost = sum(firsts[part] - committed[part] for part in committed)
    trial.control(
        "records that the groups have not read are gone",
        all(firsts[part] > committed[part] for part in committed)
        and any(ends[part] > firsts[part] for part in committed),
        f"{lost:,} gone, {sum(ends.values()) - sum(firsts.values()):,} left",
    )
    results = [
        (client, reset, found)
        for client, each in starting.read_each(trial, scenario, plans).items()
        for reset, found in zip(("earliest", "latest", client.no_reset), each, strict=True)
    ]
    for client, reset, found in results:
        named = ", ".join(sorted(set(found.errors))) or "no error"
        evidence = f"began at {shown(found.began)}, read {found.count:,}, {named}"
        rows.append([str(client), reset, shown(found.began), found.count, named])
        if reset in ("earliest", "latest"):
            expected = {"earliest": firsts, "latest": ends}[reset]
            trial.statement(
                f"{client.protocol} protocol: {reset} is followed",
                found.began == expected and not found.errors,
                evidence,
                client=client.library,
            )
        else:
            trial.statement(
                f"{client.protocol} protocol: none is followed",
                starting.is_about_offsets(found) and found.count == 0,
                evidence,
                client=client.library,
            )
    earliest, *_ = plans[StartClient(Library.JAVA)]
    _show_skipped(trial, scenario, earliest.group, committed)
    trial.table(
        f"After the loss: committed {shown(committed)}, log from {shown(firsts)} to {shown(ends)}",
        ["client", "auto.offset.reset", "began at", "read", "error"],
        rows,
    )


def _show_skipped(trial: Trial, scenario: Scenario, group: str, committed: Places) -> None:
    """Show a record that retention removed before a group came back for it."""
    after_commit = [
        one
        for one in scenario.history()
        if one.kind is not OperationKind.SEND or (one.offset or 0) >= committed[one.partition or 0]
    ]
    trial.example(scenario, checkers.unread(after_commit, group), unread_by=group)


def _expire(trial: Trial, topic: str, committed: Places) -> None:
    """Let retention remove records older than a day.

    A user's cluster checks retention only every few minutes: delete the records there.
    """
    if trial.cluster.own is None:
        topics.trim(trial.cluster.kafka, topic, starting.log_middle(trial, topic))
        return
    topic_admin.alter(trial.cluster.kafka, topic, {"retention.ms": str(24 * starting.HOUR_MS)}, ())
    trial.note("retention.ms=1 day")
    trial.wait(
        lambda: all(
            first > committed[part] for part, first in starting.log_starts(trial, topic).items()
        ),
        "retention to remove the old segments",
    )


@experiment(
    "start-8",
    statement="auto.offset.reset=by_duration starts a new group at records of a given age",
    method=(
        "Write records with timestamps of the last two days. Start new groups with "
        "by_duration:PT18H, with three clients, and check where each begins."
    ),
    advice=(
        "With the Java client, use by_duration if you want some of the past, but not all of it. "
        "With other clients, look the offsets up by time and commit them before the "
        "group starts (instep groups reset)."
    ),
    why=(
        "The Java client asks the broker for the first offset with a timestamp of that age or "
        "less, and begins there. It is a feature of the client, and others have to implement it."
    ),
    scope=(
        "Java client since 4.0 (KIP-1106). librdkafka 2.16 rejects the value; kafka-python 3.0 "
        "accepts it and then behaves as with none. It only applies without a valid commit."
    ),
    sources=("KIP-1106", "documentation: auto.offset.reset", "librdkafka: configuration"),
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS",),
)
def start_by_duration(trial: Trial) -> None:
    count, hours = trial.scaled(500, 20_000), 18
    scenario = trial.scenario("two days")
    topic = trial.topic(PARTITIONS, retention_ms=starting.FOREVER)
    starting.send_backlog(trial, scenario, topic, count)
    older = sum(age > hours for age in starting.HOURS_AGO) * (count // len(starting.HOURS_AGO))
    expected: Places = {}
    for one in history.of(scenario.history(), OperationKind.SEND):
        if (one.number or 0) >= older:
            part, offset = one.partition or 0, one.offset or 0
            expected[part] = min(offset, expected.get(part, offset))
    ends, rows = starting.log_ends(trial, topic), list[list[Cell]]()
    trial.control(
        "some records are older and some are not",
        all(0 < expected.get(part, 0) < end for part, end in ends.items()),
        f"the first within {hours} hours are at {shown(expected)} of {shown(ends)}",
    )
    reset = f"by_duration:PT{hours}H"
    for client in (*starting.all_clients(trial), StartClient(Library.JAVA, "consumer")):
        if client.protocol not in trial.cluster.protocols:
            continue
        plan = client.plan(trial, topic, reset, str(client))
        rejected = consuming.rejection(plan.config)
        if client.library is Library.LIBRDKAFKA and rejected:
            rows.append([str(client), "rejected", 0])
            holds, evidence = False, f"the client rejects the value: {rejected}"
        else:
            found = starting.read_all(trial, scenario, plan)
            named = ", ".join(sorted(set(found.errors))) or "no error"
            rows.append([str(client), shown(found.began), found.count])
            holds = found.began == expected and not found.errors
            evidence = f"began at {shown(found.began)} of {shown(ends)}, {named}"
        trial.statement(
            f"{client.protocol} protocol: it begins at the first record of the last {hours} hours",
            holds,
            evidence,
            client=client.library,
        )
    trial.table(f"Where a new group with {reset} begins", ["client", "offsets", "read"], rows)


@experiment(
    "start-9",
    statement="The values of auto.offset.reset are smallest and largest",
    method=(
        "Start new groups with smallest and with largest, with three clients, and check whether "
        "the client accepts the value and where the group begins. As a control, the same with "
        "earliest and latest."
    ),
    advice="Write earliest and latest: every client knows them.",
    why=(
        "The consumers of 0.8 had these names. The consumer that replaced them in 0.9 has "
        "earliest and latest, and its Java client accepts nothing else. Other clients kept the "
        "old names beside the new ones."
    ),
    scope=(
        "Right before Kafka 0.9 for Java. librdkafka and kafka-python still accept both names, and "
        "librdkafka shows largest as its default."
    ),
    sources=("documentation: auto.offset.reset", "librdkafka: configuration"),
)
def old_names_of_reset(trial: Trial) -> None:
    count = trial.scaled(300, 3_000)
    scenario = trial.scenario("names")
    topic = trial.topic(PARTITIONS)
    starting.send_more(trial, scenario, topic, count, first=0)
    ends = starting.log_ends(trial, topic)
    expected = {"smallest": dict.fromkeys(ends, 0), "largest": ends}
    expected |= {"earliest": expected["smallest"], "latest": expected["largest"]}
    clients = [StartClient(library) for library in (*starting.BOTH, Library.KAFKA_PYTHON)]
    found = trial.together(
        {
            f"{client}, {reset}": partial(_try_name, trial, scenario, client, topic, reset)
            for client in clients
            for reset in expected
        }
    )
    trial.table(
        "Where a new group begins",
        ["client", "auto.offset.reset", "offsets"],
        [
            [str(client.library), reset, _show_name(found[f"{client}, {reset}"])]
            for client in clients
            for reset in expected
        ],
    )
    for client in clients:
        for reset, places in expected.items():
            one = found[f"{client}, {reset}"]
            holds = not isinstance(one, str) and one.began == places
            evidence = f"{reset}: {_show_name(one)}"
            if reset in ("earliest", "latest"):
                trial.control(f"{client.library}: {reset} is followed", holds, evidence)
            else:
                trial.statement(f"{reset} is followed", holds, evidence, client=client.library)


def _show_name(found: Reading | str) -> str:
    return found if isinstance(found, str) else f"begins at {shown(found.began)}"


def _try_name(
    trial: Trial, scenario: Scenario, client: StartClient, topic: str, reset: str
) -> Reading | str:
    """Return what a group read with this value, or why the client rejects it."""
    plan = client.plan(trial, topic, reset, f"{client}, {reset}")
    try:
        if client.library is Library.JAVA:
            # It ends at once if the client accepts the value.
            scenario.consume(starting.changed(plan, count=0, member=f"{plan.member}, accepted"))
        return starting.read_all(trial, scenario, plan)
    except errors.InstepError as error:
        rejected = re.search(r"ConfigException: (.*)", error.what)
        if rejected is None:
            raise
        return f"rejected: {rejected[1]}"
