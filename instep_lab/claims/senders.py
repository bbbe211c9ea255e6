"""Helpers for experiments with producers: settings, brokers and leaders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from instep import errors
from instep.kafka import admin_extras, layout, offsets
from instep.waiting import wait_until
from instep_lab import checkers, history
from instep_lab.checkers import Record
from instep_lab.clients import bulk
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import Measured, Measuring, Publishing
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.trial import Scenario, Trial

FOREVER = 1_000_000
# a client of librdkafka that asks a frozen broker for metadata would wait a minute
IMPATIENT = {"socket.timeout.ms": 5_000}


def plain(acks: str = "all", **config: Any) -> dict[str, Any]:
    """Return settings of a producer that is not idempotent; keywords have underscores for dots."""
    return {
        "enable.idempotence": False,
        "acks": acks,
        **{name.replace("_", "."): value for name, value in config.items()},
    }


CLIENTS = (Library.JAVA, Library.LIBRDKAFKA)
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")
HARDLY, CLEARLY = 1.5, 2.0  # between these factors, a difference may be chance
ATTEMPTS_MAX = 5


Rounds = dict[str, list[Measured]]  # by the name of the producer


def measure(
    trial: Trial, plan: Measuring, judge: Callable[[Rounds], Iterable[bool | None]]
) -> Rounds:
    """Measure producers without a history; return the rounds of each.

    Measure again, a few times, while a comparison is undecided: on a machine with other work it
    takes more rounds until each producer had one that nothing disturbed.
    """
    trial.store_plan(f"measured, {plan.library}", plan)
    connection = trial.cluster.connection
    if plan.library is Library.JAVA:
        connection = trial.cluster.java_connection(connection)
    found: Rounds = {one.name: [] for one in plan.variants}
    partitions = len(layout.read_topic(trial.cluster.kafka, plan.topic).partitions)
    for attempt in range(ATTEMPTS_MAX):
        file = trial.folder / f"{plan.member}-{plan.library}-{attempt + 1}.jsonl"
        with trial.expect_records(plan.topic, partitions, plan.sends):
            measured = bulk.measure(plan, connection, file)
        for one in measured:
            found[one.variant].append(one)
        if None not in judge(found):
            break
        trial.note(f"{plan.library}: undecided after {attempt + 1} measurements")
    if failed := sum(one.failed for rounds in found.values() for one in rounds):
        raise errors.InstepError(f"{failed} records were not delivered, so no rate is valid")
    return found


def rate(rounds: Iterable[Measured]) -> float:
    """Return the records per second of the best round."""
    return max(one.per_s for one in rounds)


def latency(rounds: Iterable[Measured]) -> float:
    """Return the median time to the answer in ms, of the best round."""
    return min(one.median_ms or 0.0 for one in rounds)


def clearly_more(
    this: float, that: float, hardly: float = HARDLY, clearly: float = CLEARLY
) -> bool | None:
    """Return whether this is clearly more than that; None if the difference may be chance.

    Compare the best rounds: other programs on the machine can only slow a round down.
    """
    factor = this / that
    if factor >= clearly:
        return True
    return False if factor < hardly else None


def leader_of(trial: Trial, topic: str) -> int | None:
    return layout.read_topic(trial.cluster.kafka, topic).partitions[0].leader


def in_sync(trial: Trial, topic: str) -> set[int]:
    return set(layout.read_topic(trial.cluster.kafka, topic).partitions[0].in_sync)


def wait_for_leader(trial: Trial, topic: str, patience_s: float = 20.0) -> bool:
    """Wait until a partition has a leader; return whether it came without an unclean election.

    Kafka elects a replica that was not in sync only if it is forced to.
    """
    if wait_until(lambda: leader_of(trial, topic) is not None, patience_s):
        return True
    elect_unclean(trial, topic)
    return False


def elect_unclean(trial: Trial, topic: str) -> None:
    """Make a replica that is not in sync the leader, and wait until it leads."""

    def elected() -> bool:
        with admin_extras.connect(trial.cluster.kafka) as extras:
            if extras is not None:
                extras.elect_unclean(topic, 0)
        return wait_until(lambda: leader_of(trial, topic) is not None, 2)

    trial.wait(elected, f"an unclean election of topic {topic!r}")
    trial.note(f"{topic}: unclean election forced, leader {leader_of(trial, topic)}")


Ends = dict[int, int]  # by partition


def ends(trial: Trial, topic: str, partitions: int = 1) -> Ends:
    """Return how far the log of each partition goes that readers may see."""
    return dict(offsets.latest(trial.cluster.kafka, topic, range(partitions)))


def misplaced(scenario: Scenario, before_fault: Ends, *, repeats_allowed: bool = False) -> int:
    """Return of how many keys the log up to here does not have the records 0, 1, 2, … once each.

    Before the first fault nothing may be lost or repeated: if it is, the sender is broken, and
    what follows says nothing about Kafka.
    """
    numbers: dict[str | None, list[int]] = defaultdict(list)
    for one in history.of(scenario.history(), OperationKind.READ, group="reader"):
        if (one.offset or 0) < before_fault.get(one.partition or 0, 0):
            numbers[one.key].append(one.number or 0)
    wrong = 0
    for found in numbers.values():
        distinct = sorted(set(found))
        repeats = len(found) > len(distinct) and not repeats_allowed
        wrong += repeats or distinct != list(range(len(distinct)))
    return wrong


def cuts_with_repeats(operations: Iterable[ClientOperation], marks: Sequence[Ends]) -> int:
    """Return after how many cuts a record is in the log again.

    `marks` says how far the log went: before the first fault, and before each cut.
    """
    seen: set[Record] = set()
    again: list[ClientOperation] = []
    for one in _in_log(operations):
        if one.record in seen:
            again.append(one)
        seen.add(one.record)
    return len({_cuts_before(one, marks) for one in again} - {0})


def cuts_with_gaps(operations: Sequence[ClientOperation], marks: Sequence[Ends]) -> int:
    """Return after how many cuts a record that was sent is not in the log.

    It was on its way at the last cut before the next record of its key.
    """
    stored: dict[str | None, dict[int, ClientOperation]] = defaultdict(dict)
    for one in _in_log(operations):
        stored[one.key].setdefault(one.number or 0, one)
    cuts = set()
    for sent in history.of(operations, OperationKind.SEND, None):
        of_key, number = stored[sent.key], sent.number or 0
        if number not in of_key:
            later = [of_key[other] for other in of_key if other > number]
            following = min(later, key=lambda one: one.number or 0, default=None)
            cuts.add(len(marks) - 1 if following is None else _cuts_before(following, marks))
    return len(cuts - {0})


def _in_log(operations: Iterable[ClientOperation]) -> list[ClientOperation]:
    """Return what the reader of a whole topic found, in the order of the log."""
    reads = history.of(operations, OperationKind.READ, group="reader")
    return sorted(reads, key=lambda one: (one.partition or 0, one.offset or 0))


def _cuts_before(one: ClientOperation, marks: Sequence[Ends]) -> int:
    """Return how many cuts there were before a record was written."""
    return sum((one.offset or 0) >= mark.get(one.partition or 0, 0) for mark in marks[1:])


def control_senders(trial: Trial, wrong: int, records: int) -> None:
    """Record whether the senders did their work before the first fault."""
    trial.control(
        "before the first fault, the log has what was sent",
        wrong == 0 and records > 0,
        f"{wrong} keys are wrong among {records:,} records",
    )


def control_isolation(trial: Trial) -> None:
    """Record whether readers follow their isolation level, with transactions that are aborted."""
    scenario, topic = trial.scenario("isolation levels"), trial.topic(1)
    scenario.publish(
        Publishing(
            topic=topic,
            count=40,
            seed=trial.seed,
            transaction=10,
            abort_every=2,
            config={"transactional.id": trial.name("aborts")},
        )
    )
    for level in ISOLATION_LEVELS:
        scenario.read_topic(topic, by=level, config={"isolation.level": level})
    committed, uncommitted = (
        checkers.aborted(scenario.history(), level).count for level in ISOLATION_LEVELS
    )
    trial.control(
        "only readers with read_uncommitted find the records of an aborted transaction",
        committed == 0 and uncommitted == 20,
        f"{uncommitted} of 20, with read_committed {committed}",
    )


def control_read_back(
    trial: Trial, given: Mapping[str, str], found: Mapping[Library, Mapping[str, str]]
) -> None:
    """Record for each library whether settings are found with the values that were given."""
    for library, values in found.items():
        wrong = [f"{name}={values.get(name)}" for name in given if values.get(name) != given[name]]
        trial.control(
            f"{library}: values that were set are read back",
            not wrong,
            ", ".join(wrong) or f"{len(given)} settings",
        )


def nodes_from(number: int) -> tuple[int, int, int]:
    """Return the three brokers, starting with a different one for each number."""
    first, second, third = ((number + step) % 3 + 1 for step in range(3))
    return first, second, third
