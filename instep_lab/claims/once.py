"""Claims about writing a record once: idempotence, restarts, retries, exactly-once by recipe."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from instep.kafka import admin_extras, offsets
from instep.kafka.admin_extras import ProducerState
from instep.local.proxy import NetworkFault
from instep.waiting import wait_until
from instep_lab import bounds, checkers, history
from instep_lab.checkers import Anomalies
from instep_lab.claim import experiment
from instep_lab.claims import senders
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import Publishing
from instep_lab.history import OperationKind
from instep_lab.trial import Scenario, Trial

IDEMPOTENT, PLAIN = "idempotent", "not idempotent"


def _total(found: Sequence[Anomalies]) -> Anomalies:
    """Return the sum of what was found in several rounds."""
    return Anomalies(
        found[0].anomaly, sum(one.count for one in found), sum(one.of for one in found)
    )


@experiment(
    "send-8",
    statement=(
        "An idempotent producer writes each record once: the broker deduplicates by producer id, "
        "partition and sequence number"
    ),
    method=(
        "Send through a proxy that drops the broker's responses until the broker has written "
        "records that it never confirmed, then cuts the connection, several times; with and "
        "without idempotence, with the Java client and with librdkafka. Count repeated records, "
        "and query the producer state of the broker."
    ),
    advice="Leave enable.idempotence on, and enable it in librdkafka: retries are then harmless.",
    why=(
        "The broker gives the producer an id, and the producer numbers its batches per partition. "
        "The leader remembers the last sequence numbers of each id, also after a restart, and "
        "drops a batch that it has already written. So the client can send again whatever was not "
        "confirmed."
    ),
    scope=(
        "Since Kafka 0.11 (KIP-98) and librdkafka 1.0; before, there was no idempotent producer. "
        "It is the default of the Java client since 3.0 (in effect since 3.0.1, 3.1.1 and 3.2), "
        "and not of librdkafka. It holds for one life of the producer. In the moment after a "
        "topic was created, a broker may refuse the first batch and accept the second one; it "
        "then rejects the first until delivery.timeout.ms is over, and the producer reports those "
        "records as failed (KAFKA-15591: brokers 2.5 to 4.4, fixed in 4.5; seen with 4.3). Create "
        "topics before sending."
    ),
    sources=(
        "KIP-98",
        "KIP-679",
        "KAFKA-13598",
        "KAFKA-15591",
        "documentation: enable.idempotence",
    ),
    rules=("PUBLISHER_NOT_IDEMPOTENT", "RECORDS_NOT_IDEMPOTENT"),
    harmless=False,
)
def idempotent_producer(trial: Trial) -> None:
    partitions, cuts = 2, trial.scaled(3, 30)
    producers = [(library, kind) for library in senders.CLIENTS for kind in (IDEMPOTENT, PLAIN)]
    configs = {IDEMPOTENT: {"enable.idempotence": True}, PLAIN: senders.plain()}
    scenarios = {
        (library, kind): trial.scenario(f"{library}, {kind}", judges_idempotence=True)
        for library, kind in producers
    }
    topics = {one: trial.topic(partitions) for one in producers}
    plans = {
        (library, kind): Publishing(
            topic=topics[library, kind],
            count=senders.FOREVER,
            seed=trial.seed,
            per_s=500,
            library=library,
            config=configs[kind],
        )
        for library, kind in producers
    }
    unconfirmed, marks = _cut_unconfirmed(trial, scenarios, plans, partitions, cuts)
    found, lost = {}, 0
    trial.read_topics({scenarios[one]: topic for one, topic in topics.items()}, partitions)
    for one, scenario in scenarios.items():
        found[one] = checkers.repeated(scenario.history(), by=OperationKind.READ)
        trial.example(scenario, found[one])
        lost += checkers.lost(scenario.history(), by=OperationKind.READ).count
    with admin_extras.connect(trial.cluster.kafka) as extras:
        states = {
            one: (extras.producer_states(topic, range(partitions)) if extras else None)
            for one, topic in topics.items()
        }
    trial.plot(
        "Records stored more than once",
        "producer",
        "records",
        {
            str(library): [(kind, float(found[library, kind].count)) for kind in configs]
            for library in senders.CLIENTS
        },
    )
    trial.table(
        "The broker's state of each producer",
        ["producer", "partition", "producer id", "epoch", "last sequence", "records in the log"],
        [
            [
                ", ".join(one),
                state.partition,
                state.producer,
                state.epoch,
                state.last_sequence,
                _records_in(scenarios[one], state.partition),
            ]
            for one, known in states.items()
            for state in known or ()
        ],
    )
    trial.control(
        "the broker wrote records that it did not confirm",
        min(unconfirmed.values()) > 0,
        f"{sum(unconfirmed.values())} in {cuts} cuts",
    )
    trial.control("no acknowledged record is missing", lost == 0, f"{lost} missing")
    _control_senders(trial, scenarios, marks)
    for library in senders.CLIENTS:
        without, with_ = found[library, PLAIN], found[library, IDEMPOTENT]
        after = senders.cuts_with_repeats(
            scenarios[library, IDEMPOTENT].history(), marks[library, IDEMPOTENT]
        )
        trial.control(
            f"{library}: without idempotence, some records are repeated",
            bool(without),
            f"{without.count} of {without.of:,}",
        )
        trial.statement(
            "an idempotent producer writes each record once",
            not with_,
            f"{with_.count} of {with_.of:,} repeated ({bounds.describe(after, cuts, 'cut')})",
            client=library,
        )
        _judge_states(
            trial, library, states[library, IDEMPOTENT], states[library, PLAIN], scenarios
        )


def _judge_states(
    trial: Trial,
    library: Library,
    idempotent: Sequence[ProducerState] | None,
    plain: Sequence[ProducerState] | None,
    scenarios: Mapping[tuple[Library, str], Scenario],
) -> None:
    statement = (
        "the broker identifies the producer by its id,"
        " with a sequence number per partition that counts its records"
    )
    if idempotent is None or plain is None:
        trial.statement(statement, None, "the broker does not report it", client=library)
        return
    scenario = scenarios[library, IDEMPOTENT]
    records = {one.partition: _records_in(scenario, one.partition) for one in idempotent}
    partitions = {one.partition for one in history.of(scenario.history(), OperationKind.READ)}
    trial.statement(
        statement,
        records.keys() == partitions
        and len({one.producer for one in idempotent}) == 1
        and all(one.last_sequence + 1 == records[one.partition] for one in idempotent)
        and not plain,
        ", ".join(
            f"id {one.producer}, partition {one.partition}:"
            f" last sequence {one.last_sequence} of {records[one.partition]} records"
            for one in idempotent
        )
        + f"; {len(plain)} producers known without idempotence",
        client=library,
    )


Producer = tuple[Library, str]


def _cut_unconfirmed(
    trial: Trial,
    scenarios: Mapping[Producer, Scenario],
    plans: Mapping[Producer, Publishing],
    partitions: int,
    cuts: int,
    delay_s: float = 0.0,
) -> tuple[dict[Producer, int], dict[Producer, list[senders.Ends]]]:
    """Send with all producers, and cut their connections while answers are missing.

    Before each cut, the log of every producer that waits for answers is ahead of what the producer
    knows. With a delay, requests are on their way too, which the cut drops. Return how many records
    were written without an answer, and how far the logs went: before the first fault, and before
    each cut.
    """
    proxy = trial.cluster.proxies[1]
    swallowed = proxy.counts.swallowed_bytes
    unconfirmed = {one: 0 for one, plan in plans.items() if str(plan.config.get("acks")) != "0"}
    senders_ = {scenarios[one]: plan for one, plan in plans.items()}
    with trial.running(senders_, trial.cluster.proxied):
        trial.wait_for_more(scenarios.values(), 150)
        marks = {one: [senders.ends(trial, plan.topic, partitions)] for one, plan in plans.items()}
        for _ in range(cuts):
            trial.wait_for_more(scenarios.values(), trial.random.randrange(30, 80))
            if delay_s:
                proxy.inject(NetworkFault(delay_s=delay_s))
                trial.wait_for_more(scenarios.values(), 10)
            proxy.inject(NetworkFault(delay_s=delay_s, swallows_answers=True))
            for one in unconfirmed:
                count = functools.partial(
                    _unconfirmed, trial, scenarios[one], plans[one].topic, partitions
                )
                trial.wait(lambda count=count: count() > 0, "unconfirmed records")  # type: ignore[misc]
                unconfirmed[one] += count()
            for one, plan in plans.items():
                marks[one].append(senders.ends(trial, plan.topic, partitions))
            trial.cut(proxy)
            proxy.clear_fault()
        trial.wait_for_more(scenarios.values(), 50)
    trial.note(
        f"{cuts} cuts, {proxy.counts.swallowed_bytes - swallowed} bytes of responses dropped"
    )
    return unconfirmed, marks


def _control_senders(
    trial: Trial,
    scenarios: Mapping[Producer, Scenario],
    marks: Mapping[Producer, Sequence[senders.Ends]],
) -> None:
    senders.control_senders(
        trial,
        sum(senders.misplaced(scenario, marks[one][0]) for one, scenario in scenarios.items()),
        sum(sum(ends[0].values()) for ends in marks.values()),
    )


def _unconfirmed(trial: Trial, scenario: Scenario, topic: str, partitions: int) -> int:
    """Return how many records the log has more than the producer knows of."""
    written = _written(trial, topic, partitions)
    # from the file: of a client in another process, the scenario learns a little later
    acknowledged = sum(1 for _ in history.of(scenario.history(), OperationKind.SEND))
    return written - acknowledged


def _written(trial: Trial, topic: str, partitions: int) -> int:
    """Return how many records the log of a topic holds now."""
    found = offsets.spans(trial.cluster.kafka, [(topic, number) for number in range(partitions)])
    return sum(span.offsets for span in found.values())


def _records_in(scenario: Scenario, partition: int) -> int:
    return sum(
        one.partition == partition for one in history.of(scenario.history(), OperationKind.READ)
    )


@experiment(
    "send-9",
    statement=(
        "A restarted idempotent producer gets a new id, so records that it sends again are "
        "stored twice"
    ),
    method=(
        "A process sends and is killed; a second process sends the same records again: "
        "idempotent; with a transactional id, killed before its commit; and with a transactional "
        "id, killed after it. Count repeated records for readers of committed data and of all "
        "data."
    ),
    advice=(
        "Give every record an id by which the reader recognises repeats, or let the producer look "
        "up after a restart what it has already committed. A transactional id does not help: it "
        "only discards the transaction that was open."
    ),
    why=(
        "The broker recognises a repeat by producer id and sequence number. A new process gets a "
        "new id, and its sequence numbers start at 0. A transactional id keeps the producer id and "
        "aborts the open transaction, but records that are sent again are new records with new "
        "sequence numbers."
    ),
    scope=(
        "Since Kafka 0.11, all clients; run with librdkafka. A program that takes its input from "
        "Kafka can commit its position in the same transaction, and then does not send again what "
        "is committed."
    ),
    sources=("KIP-98", "documentation: transactional.id", "documentation: enable.idempotence"),
    rules=("PUBLISHER_NOT_IDEMPOTENT", "PIPELINE_WITHOUT_GUARD"),
)
def restarted_idempotent_producer(trial: Trial) -> None:
    levels = senders.ISOLATION_LEVELS
    senders.control_isolation(trial)
    cases = (WITHOUT_TRANSACTION, LEFT_OPEN, COMMITTED)
    found: dict[tuple[str, str], list[Anomalies]] = defaultdict(list)
    ids: dict[str, list[SentTwice]] = defaultdict(list)
    lost = 0
    for number in trial.rounds(1, 30):
        for case in cases:
            scenario = trial.scenario(f"{case}, round {number + 1}")
            topic = trial.topic(1)
            ids[case].append(_send_twice(trial, scenario, topic, case))
            for level in levels:
                scenario.read_topic(topic, by=level, config={"isolation.level": level})
                repeated = checkers.repeated(scenario.history(), level, by=OperationKind.READ)
                found[case, level].append(repeated)
                trial.example(scenario, repeated)
            lost += checkers.lost(scenario.history(), levels[0], by=OperationKind.READ).count
    trial.table(
        "Records sent by a process that was killed, and sent again by the next",
        [
            "first process",
            "kills",
            "producer ids in the last round",
            *(f"repeated for {one}" for one in levels),
        ],
        [
            [
                case,
                len(ids[case]),
                _ids_text(ids[case][-1].after),
                *(sum(one.count for one in found[case, level]) for level in levels),
            ]
            for case in cases
        ],
    )
    trial.plot(
        "Records stored twice after a restart",
        "first process",
        "records",
        {
            level: [(case, float(sum(one.count for one in found[case, level]))) for case in cases]
            for level in levels
        },
    )
    known = [
        (one.before, one.after) for one in ids[WITHOUT_TRANSACTION] if one.before and one.after
    ]
    is_new: bool | None = None
    if len(known) == len(ids[WITHOUT_TRANSACTION]):
        is_new = all(len(after) == 2 and before < after for before, after in known)
    _, before, after = ids[WITHOUT_TRANSACTION][-1]
    processes = [one for each in ids.values() for one in each]
    killed = sum(one.killed for one in processes)
    trial.control(
        "the first processes were killed",
        killed == len(processes),
        f"{killed} of {len(processes)}",
    )
    trial.control("no record is missing", lost == 0, f"{lost} missing")
    trial.statement(
        "the second process has a different producer id",
        is_new,
        f"first {_ids_text(before)}, then {_ids_text(after)}",
    )
    trial.statement(
        "records that it sends again are stored twice",
        all(found[WITHOUT_TRANSACTION, levels[0]]),
        _repeats(found[WITHOUT_TRANSACTION, levels[0]]),
    )
    trial.statement(
        "so are those of a committed transaction, although a transactional id keeps the producer"
        " id",
        all(found[COMMITTED, levels[0]])
        and all(len(one.after or ()) == 1 for one in ids[COMMITTED]),
        _repeats(found[COMMITTED, levels[0]]),
    )
    trial.control(
        "a transaction that was open is aborted, and only readers of uncommitted records see"
        " its records twice",
        not any(found[LEFT_OPEN, levels[0]]) and all(found[LEFT_OPEN, levels[1]]),
        f"read_committed {_repeats(found[LEFT_OPEN, levels[0]])},"
        f" read_uncommitted {_repeats(found[LEFT_OPEN, levels[1]])}",
    )


WITHOUT_TRANSACTION = "idempotent, no transaction"
LEFT_OPEN = "transaction left open"
COMMITTED = "transaction committed"


def _repeats(found: Sequence[Anomalies]) -> str:
    total = _total(found)
    kills = bounds.describe(sum(map(bool, found)), len(found), "kill")
    return f"{total.count:,} of {total.of:,} repeated ({kills})"


class SentTwice(NamedTuple):
    """Whether the first sender was killed, and the producer ids known after each of the two."""

    killed: bool
    before: set[int] | None
    after: set[int] | None


def _send_twice(trial: Trial, scenario: Scenario, topic: str, case: str) -> SentTwice:
    """Kill a sender at a random record, and let another one send everything again."""
    count = trial.scaled(300, 500)
    dies_after = trial.random.randrange(count // 2, count)
    config = {} if case == WITHOUT_TRANSACTION else {"transactional.id": trial.name("transaction")}
    # The first transaction ends with the last record before the kill, or not at all.
    first_transaction = {WITHOUT_TRANSACTION: None, LEFT_OPEN: 2 * count, COMMITTED: dies_after}
    plan = Publishing(
        topic=topic,
        count=count,
        seed=trial.seed,
        per_s=1_000,
        config=config,
        transaction=first_transaction[case],
    )
    # at a steady rate, only the last few records are still in the client when it dies
    status = scenario.run(msgspec.structs.replace(plan, dies_after=dies_after, warm=True))
    first = _producer_ids(trial, topic)
    again = None if case == WITHOUT_TRANSACTION else count
    scenario.publish(msgspec.structs.replace(plan, transaction=again))
    return SentTwice(status == -9, first, _producer_ids(trial, topic))


def _producer_ids(trial: Trial, topic: str) -> set[int] | None:
    with admin_extras.connect(trial.cluster.kafka) as extras:
        found = extras.producer_states(topic, [0]) if extras else None
    return None if found is None else {one.producer for one in found}


def _ids_text(ids: set[int] | None) -> str:
    if ids is None:
        return "unknown"
    return ", ".join(map(str, sorted(ids)))


class Recipe(NamedTuple):
    """One combination of the settings that are said to give exactly-once."""

    idempotent: bool
    acks: str
    replicas: int
    in_sync: int

    @property
    def name(self) -> str:
        producer = f"acks={self.acks}"
        if self.idempotent:
            producer = "idempotent"
        return f"{producer}, replicas {self.replicas}, min.insync {self.in_sync}"

    @property
    def config(self) -> dict[str, Any]:
        if self.idempotent:
            return {}
        return senders.plain(self.acks)


class RecipeOutcome(NamedTuple):
    lost: Anomalies
    repeated: Anomalies
    repeated_later: Anomalies


RECIPE = Recipe(idempotent=True, acks="all", replicas=2, in_sync=2)
WITHOUT = {
    "without idempotence, records are repeated": RECIPE._replace(idempotent=False),
    "with acks=1, records are lost": RECIPE._replace(idempotent=False, acks="1"),
    "with one replica, records are lost": RECIPE._replace(replicas=1, in_sync=1),
    "with one in-sync replica, records are lost": RECIPE._replace(in_sync=1),
}


@experiment(
    "send-10",
    statement="Exactly-once is idempotence, acks=all, two replicas and two of them in sync",
    method=(
        "A producer for every combination sends at the same time: responses of the broker are "
        "dropped and the connection is cut; the follower is stopped; the leader continues alone, "
        "is killed, and its disk is lost; both return. Count lost and repeated records. Then "
        "each producer restarts and sends its first records again."
    ),
    advice=(
        "Use all four, with three replicas, and give every record an id by which a reader "
        "recognises repeats: a producer that restarts and sends again repeats records."
    ),
    why=(
        "Idempotence drops repeats of one producer, and acks=all with two replicas in sync keeps a "
        "second copy of everything that was acknowledged. Each setting covers another fault, and "
        "none covers a producer that starts again. A replica whose disk was lost returns empty. "
        "If it was the last one in sync, it leads again, by itself or by an unclean election, and "
        "what only that disk had is gone."
    ),
    scope=(
        "Run with librdkafka, where idempotence must be set. The Java client is idempotent by "
        "default since 3.0, in effect since 3.0.1, 3.1.1 and 3.2 (KAFKA-13598). The broker's "
        "session time-out is 3 s here (default: 9 s). The table counts topics that had no leader "
        "for 20 s, until the lab forced an unclean election; it varies from run to run whether one "
        "is needed, and the records are lost either way."
    ),
    sources=(
        "KIP-98",
        "KIP-679",
        "KIP-858",
        "KIP-966",
        "KAFKA-13598",
        "documentation: min.insync.replicas",
    ),
    rules=(
        "PUBLISHER_NOT_IDEMPOTENT",
        "PUBLISHER_ACKS_NOT_ALL",
        "TOPIC_SINGLE_REPLICA",
        "TOPIC_MIN_INSYNC_REPLICAS_ONE",
    ),
    brokers=3,
    harmless=False,
)
def exactly_once_recipe(trial: Trial) -> None:
    producers = [(True, "all"), (False, "all"), (False, "1")]
    replications = [(1, 1), (2, 1), (2, 2), (3, 2)]
    recipes = [
        Recipe(*producer, *replication) for producer in producers for replication in replications
    ]
    found: dict[Recipe, list[RecipeOutcome]] = {one: [] for one in recipes}
    forced = 0
    for number in trial.rounds(1, 30):
        nodes = senders.nodes_from(trial.seed + number)
        scenarios = {
            one: trial.scenario(f"{one.name}, round {number + 1}", judges_idempotence=True)
            for one in recipes
        }
        for scenario in scenarios.values():
            scenario.disk_lost = True
        topics = {
            one: trial.topic(brokers=nodes[: one.replicas], min_insync_replicas=str(one.in_sync))
            for one in recipes
        }
        forced += _break_cluster(trial, nodes, scenarios, topics)
        outcomes = trial.together(
            {
                one.name: functools.partial(_send_again, trial, one, scenarios[one], topics[one])
                for one in recipes
            }
        )
        for one in recipes:
            found[one].append(outcomes[one.name])
            trial.example(scenarios[one], outcomes[one.name].lost)
            trial.example(scenarios[one], outcomes[one.name].repeated)
        trial.cluster.recover()
    _show_recipes(trial, found, forced)


def _break_cluster(
    trial: Trial,
    nodes: tuple[int, int, int],
    scenarios: Mapping[Recipe, Scenario],
    topics: Mapping[Recipe, str],
) -> int:
    """Send with every recipe under all faults; return how many topics needed a forced election."""
    leader, follower, third = nodes
    recipes = list(scenarios)
    proxy = trial.cluster.proxies[leader]
    plans = {
        scenarios[one]: Publishing(
            topic=topics[one],
            count=senders.FOREVER,
            seed=trial.seed,
            per_s=50,
            config={**one.config, **senders.IMPATIENT},
            flush_timeout_s=10,
        )
        for one in recipes
    }
    with trial.running(plans, trial.cluster.proxied):
        trial.wait_for_more(scenarios.values(), trial.random.randrange(20, 60))
        # 1. records are written but not confirmed
        proxy.inject(NetworkFault(swallows_answers=True))
        trial.wait(
            lambda: all(
                _written(trial, topics[one], 1) > scenarios[one].acknowledged for one in recipes
            ),
            "unconfirmed records",
        )
        trial.cut(proxy)
        proxy.clear_fault()
        trial.wait_for_more(scenarios.values(), 20)
        # 2. the leader of a pair is alone in sync, continues, and is lost with its disk
        trial.stop(follower)
        pairs = [one for one in recipes if one.replicas == 2]
        trial.wait(
            lambda: all(senders.in_sync(trial, topics[one]) == {leader} for one in pairs),
            "the follower to be out of sync",
        )
        alone = [one for one in recipes if one.acks == "1" or (one.replicas, one.in_sync) == (2, 1)]
        trial.wait_for_more([scenarios[one] for one in alone], 10)
        # With the third broker frozen, nothing that is acknowledged now has a second copy.
        trial.freeze(third)
        trial.wait_for_more([scenarios[one] for one in alone], trial.random.randrange(20, 50))
        trial.kill(leader)
        trial.wipe(leader)
        trial.thaw(third)
        # The follower first: with the third broker it elects a controller, and without a controller
        # a broker with an empty disk cannot return.
        trial.restart(follower)
        trial.restart(leader)
        forced = _restore_leaders(trial, topics.values())
        trial.wait_for_more(
            [scenarios[one] for one in recipes if one.replicas > 1 and one.in_sync > 1], 20
        )
    return forced


def _send_again(trial: Trial, recipe: Recipe, scenario: Scenario, topic: str) -> RecipeOutcome:
    """Send again with a new producer, which does not know how far the first one came (step 3)."""
    scenario.read_topic(topic)
    repetition = Publishing(
        topic=topic,
        count=trial.scaled(50, 500),
        seed=trial.seed,
        config=recipe.config,
        flush_timeout_s=10,
    )
    scenario.publish(repetition)
    scenario.read_topic(topic, by="later")
    operations = scenario.history()
    return RecipeOutcome(
        checkers.lost(operations, "reader", by=OperationKind.READ),
        checkers.repeated(operations, "reader", by=OperationKind.READ),
        checkers.repeated(operations, "later", by=OperationKind.READ),
    )


def _restore_leaders(trial: Trial, topics: Iterable[str]) -> int:
    """Wait until every topic has a leader again; return how many needed an unclean election.

    An unclean election is needed where Kafka does not trust the remaining replicas.
    """
    waiting = set(topics)

    def have_leaders() -> bool:
        waiting.difference_update(
            [topic for topic in waiting if senders.leader_of(trial, topic) is not None]
        )
        return not waiting

    wait_until(have_leaders, LEADERLESS_S)
    for topic in waiting:
        senders.elect_unclean(trial, topic)
    trial.note(f"unclean elections forced: {len(waiting)}")
    return len(waiting)


LEADERLESS_S = 20.0


def _show_recipes(
    trial: Trial, rounds: Mapping[Recipe, Sequence[RecipeOutcome]], forced: int
) -> None:
    kills = len(rounds[RECIPE])
    found = {
        one: RecipeOutcome(*map(_total, zip(*outcomes, strict=True)))
        for one, outcomes in rounds.items()
    }
    trial.table(
        f"Each combination under the same faults: {kills} lost disks,"
        f" {forced} topics needed an unclean election",
        [
            "producer",
            "acks",
            "replicas",
            "min.insync.replicas",
            "acknowledged",
            "lost",
            "repeated",
            "repeated after a restart",
        ],
        [
            [
                "idempotent" if one.idempotent else "not idempotent",
                one.acks,
                one.replicas,
                one.in_sync,
                outcome.lost.of,
                outcome.lost.count,
                outcome.repeated.count,
                outcome.repeated_later.count,
            ]
            for one, outcome in found.items()
        ],
    )
    trial.plot(
        "Lost and repeated records",
        "combination",
        "records",
        {
            "lost": [(one.name, float(outcome.lost.count)) for one, outcome in found.items()],
            "repeated": [
                (one.name, float(outcome.repeated.count)) for one, outcome in found.items()
            ],
        },
    )
    for statement, one in WITHOUT.items():
        outcome = found[one]
        if "repeated" in statement:
            # each further copy counts, so that there may be more than records
            found_of = outcome.repeated
            evidence = f"{found_of.count:,} repetitions of {found_of.of:,} records"
        else:
            found_of = outcome.lost
            evidence = f"{found_of.count:,} of {found_of.of:,}"
        trial.statement(statement, bool(found_of), evidence)
    outcome = found[RECIPE]
    broken = sum(bool(one.lost) or bool(one.repeated) for one in rounds[RECIPE])
    trial.statement(
        "with all four, each acknowledged record is stored once while the producer is alive",
        not outcome.lost and not outcome.repeated,
        f"{outcome.lost.count} lost, {outcome.repeated.count} repeated of {outcome.lost.of:,}"
        f" ({bounds.describe(broken, kills, 'kill')})",
    )
    later = [
        one
        for one, outcome in found.items()
        if outcome.repeated_later.count > outcome.repeated.count
    ]
    trial.limit(
        "a producer that restarts and sends again repeats records",
        RECIPE in later,
        f"{outcome.repeated_later.count} repeated with all four,"
        f" and some in {len(later)} of the {len(found)} combinations",
    )


EN_ROUTE_S = 0.05  # long enough for several requests to be on their way when a connection is cut
MANY_IN_FLIGHT = {"max.in.flight.requests.per.connection": 1_000}


@experiment(
    "send-15",
    statement="With acks=0 a record is stored at most once: it may be lost, but it never repeats",
    method=(
        "Send through a proxy with acks=0 and with acks=1, without idempotence. Delay the traffic, "
        "drop the broker's answers and cut the connections while requests are on their way, "
        "several times. Count lost and repeated records, with the Java client and with librdkafka."
    ),
    advice=(
        "Use acks=0 only for records that you can afford to lose. To avoid repeats without that "
        "loss, use an idempotent producer, which needs acks=all. Whether acks=all loses records "
        "when a broker dies depends on replicas and min.insync.replicas (send-1)."
    ),
    why=(
        "With acks=0 there is no answer. The client takes a record for sent as soon as the request "
        "has left it, so it has no reason to send it again. What the connection or the broker "
        "loses after that is gone."
    ),
    scope=(
        "Java client since 0.8.2 and librdkafka, all releases, while the program hands each "
        "record over once. acks=0 excludes idempotence (since 0.11)."
    ),
    sources=("documentation: acks",),
    rules=("PUBLISHER_ACKS_NOT_ALL", "PUBLISHER_NOT_IDEMPOTENT"),
    harmless=False,
)
def acks_zero_never_repeats(trial: Trial) -> None:
    cuts = trial.scaled(3, 30)
    found = _send_through_cuts(
        trial,
        {f"acks={acks}": {**senders.plain(acks), **MANY_IN_FLIGHT} for acks in ("0", "1")},
        cuts,
    )
    for library in senders.CLIENTS:
        control, tested = found[library, "acks=1"], found[library, "acks=0"]
        trial.control(
            f"{library}: with acks=1, records are repeated",
            bool(control.repeated),
            f"{control.repeated.count} of {control.repeated.of:,}",
        )
        trial.statement(
            "with acks=0, records are lost",
            bool(tested.missing) or None,
            f"{tested.missing.count} of {tested.missing.of:,}"
            f" ({bounds.describe(tested.cuts_missing, cuts, 'cut')})",
            client=library,
        )
        trial.statement(
            "with acks=0, no record is repeated",
            not tested.repeated,
            f"{tested.repeated.count} of {tested.repeated.of:,}"
            f" ({bounds.describe(tested.cuts_repeating, cuts, 'cut')})",
            client=library,
        )


@experiment(
    "send-17",
    statement="An asynchronous producer delivers at most once",
    method=(
        "Send asynchronously through a proxy, with a callback and without waiting. Delay the "
        "traffic, drop the broker's answers and cut the connections while requests are on their "
        "way, several times. Count records that are missing and repeated: with the default "
        "retries, and without retries. With the Java client and with librdkafka, both without "
        "idempotence."
    ),
    advice=(
        "Send asynchronously, with retries and idempotence, and check the callback's error. "
        "Whether a record is lost or repeated does not depend on waiting for it."
    ),
    why=(
        "Asynchronous means that the program does not wait; the client does. It keeps each record "
        "until it is confirmed and sends it again if the connection breaks. So records arrive at "
        "least once, and with idempotence once. At most once needs retries=0 or acks=0."
    ),
    scope=(
        "Java client and librdkafka with their default retries, which delivery.timeout.ms (2 "
        "minutes) and message.timeout.ms (5 minutes) end. The Java client's default was retries=0 "
        "before 2.1 (KIP-91): without that setting it delivered at most once, asynchronously or "
        "not. librdkafka retried twice by default, and without end since 1.5.2. What is still in "
        "the client when the process ends is lost. The Scala producer of 0.8 "
        "(producer.type=async), which the statement comes from, retried three times by default; it "
        "was removed in 2.0."
    ),
    sources=("documentation: retries", "KIP-91", "KIP-98"),
    rules=("PUBLISHER_NOT_IDEMPOTENT", "PUBLISHER_DOES_NOT_RETRY"),
    harmless=False,
    before="Kafka 2.1 (Java client, whose default was retries=0)",
)
def asynchronous_producer(trial: Trial) -> None:
    cuts = trial.scaled(3, 30)
    plain = {**senders.plain(), **MANY_IN_FLIGHT}
    found = _send_through_cuts(
        trial, {"default retries": plain, "no retries": {**plain, "retries": 0}}, cuts
    )
    for library in senders.CLIENTS:
        control, tested = found[library, "no retries"], found[library, "default retries"]
        trial.control(
            f"{library}: without retries, records are missing and none is repeated",
            bool(control.missing) and not control.repeated,
            f"{control.missing.count} of {control.missing.of:,} missing,"
            f" {control.repeated.count} repeated",
        )
        trial.statement(
            "a record that was not confirmed is not sent again",
            not tested.repeated,
            f"{tested.repeated.count} of {tested.repeated.of:,} are stored twice"
            f" ({bounds.describe(tested.cuts_repeating, cuts, 'cut')})",
            client=library,
        )
        trial.statement(
            "records are lost when the connection breaks",
            bool(tested.missing),
            f"{tested.missing.count} of {tested.missing.of:,} are missing"
            f" ({bounds.describe(tested.cuts_missing, cuts, 'cut')})",
            client=library,
        )


class CutOutcome(NamedTuple):
    """What a log shows after its producer's connections were cut, and after how many cuts."""

    missing: Anomalies
    repeated: Anomalies
    cuts_missing: int
    cuts_repeating: int


def _send_through_cuts(
    trial: Trial, configs: Mapping[str, Mapping[str, Any]], cuts: int
) -> dict[Producer, CutOutcome]:
    """Send with each configuration and client while connections are cut; read what arrived."""
    producers = [(library, name) for library in senders.CLIENTS for name in configs]
    scenarios = {
        (library, name): trial.scenario(f"{library}, {name}") for library, name in producers
    }
    plans = {
        (library, name): Publishing(
            topic=trial.topic(1),
            count=senders.FOREVER,
            seed=trial.seed,
            per_s=300,
            library=library,
            config=dict(configs[name]),
        )
        for library, name in producers
    }
    unconfirmed, marks = _cut_unconfirmed(trial, scenarios, plans, 1, cuts, EN_ROUTE_S)
    found, lost = {}, 0
    trial.read_topics({scenarios[one]: plan.topic for one, plan in plans.items()})
    for one, scenario in scenarios.items():
        operations = scenario.history()
        sent = {each.record for each in history.of(operations, OperationKind.SEND, None)}
        read = {each.record for each in history.of(operations, OperationKind.READ)}
        missing = sorted(f"{key}#{number}" for key, number in sent - read)
        found[one] = CutOutcome(
            Anomalies("missing", len(missing), len(sent), tuple(missing[:1])),
            checkers.repeated(operations, by=OperationKind.READ),
            senders.cuts_with_gaps(operations, marks[one]),
            senders.cuts_with_repeats(operations, marks[one]),
        )
        if one in unconfirmed:
            lost += checkers.lost(operations, by=OperationKind.READ).count
        for anomalies in (found[one].missing, found[one].repeated):
            trial.example(scenario, anomalies)
    trial.control("no record that a broker acknowledged is missing", lost == 0, f"{lost} missing")
    _control_senders(trial, scenarios, marks)
    trial.control(
        "the broker wrote records that it did not confirm",
        min(unconfirmed.values()) > 0,
        f"{sum(unconfirmed.values())} in {cuts} cuts",
    )
    trial.table(
        f"After {cuts} cuts",
        ["client", "producer", "records sent", "missing", "repeated"],
        [
            [*one, outcome.missing.of, outcome.missing.count, outcome.repeated.count]
            for one, outcome in found.items()
        ],
    )
    trial.plot(
        "Records missing and repeated",
        "producer",
        "records",
        {
            "missing": [(", ".join(one), float(of.missing.count)) for one, of in found.items()],
            "repeated": [(", ".join(one), float(of.repeated.count)) for one, of in found.items()],
        },
    )
    return found
