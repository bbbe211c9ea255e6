"""Claims about writing a record once: idempotence, restarts, exactly-once by recipe."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from instep.kafka import layout, offsets
from instep.kafka.admin import admin_extras
from instep.local.proxy import NetworkFault
from instep_lab import checkers, history
from instep_lab.checkers import Anomalies
from instep_lab.claim import experiment
from instep_lab.claims import senders
from instep_lab.clients.publishing import Publishing
from instep_lab.history import OperationKind
from instep_lab.trial import Scenario, Trial


@experiment(
    "send-8",
    statement=(
        "An idempotent producer writes each record once: the broker knows producer id, partition "
        "and sequence"
    ),
    method=(
        "Send through a proxy that drops the broker's responses until the broker has written "
        "records that it never confirmed, then cuts the connection, several times; with and "
        "without idempotence. Count repeated records, and query the producer state of the "
        "broker."
    ),
    advice="Leave enable.idempotence on, and enable it in librdkafka: retries are then harmless.",
    rules=("PUBLISHER_NOT_IDEMPOTENT", "RECORDS_NOT_IDEMPOTENT"),
    harmless=False,
)
def idempotent_producer(trial: Trial) -> None:
    partitions, cuts = 2, trial.scaled(3, 15)
    configs = {"idempotent": {}, "not idempotent": senders.plain()}
    scenarios = {name: trial.scenario(name) for name in configs}
    topics = {name: trial.topic(partitions) for name in configs}
    proxy = trial.cluster.proxies[1]
    swallowed, unconfirmed = proxy.counts.swallowed_bytes, dict.fromkeys(configs, 0)
    with contextlib.ExitStack() as running:
        for name, config in configs.items():
            plan = Publishing(
                topic=topics[name], count=senders.FOREVER, seed=trial.seed, per_s=500, config=config
            )
            running.enter_context(scenarios[name].background(plan, trial.cluster.proxied))
        for _ in range(cuts):
            trial.wait_for_more(scenarios.values(), 50)
            # Wait until the log is ahead of the acknowledgements: then every cut leaves records
            # that are stored and that the client has to send again.
            proxy.inject(NetworkFault(swallows_answers=True))
            for name, scenario in scenarios.items():
                trial.wait(
                    lambda name=name, scenario=scenario: (  # type: ignore[misc]
                        _written(trial, topics[name], partitions) > scenario.acknowledged
                    ),
                    "unconfirmed records",
                )
                unconfirmed[name] += (
                    _written(trial, topics[name], partitions) - scenario.acknowledged
                )
            proxy.cut()
            proxy.clear_fault()
        trial.wait_for_more(scenarios.values(), 50)
    trial.note(
        f"{cuts} cuts, {proxy.counts.swallowed_bytes - swallowed} bytes of responses dropped"
    )
    found, lost = {}, 0
    for name, scenario in scenarios.items():
        scenario.read_topic(topics[name], partitions)
        found[name] = checkers.repeated(scenario.history(), by=OperationKind.READ)
        lost += checkers.lost(scenario.history(), by=OperationKind.READ).count
    with admin_extras.connect(trial.cluster.kafka) as extras:
        producer_states = {
            name: (extras.producer_states(topic, range(partitions)) if extras else None)
            for name, topic in topics.items()
        }
    trial.plot(
        "Records stored more than once",
        "producer",
        "records",
        {"repeated": [(name, float(one.count)) for name, one in found.items()]},
    )
    trial.table(
        "The broker's state of each producer",
        ["producer", "partition", "producer id", "epoch", "last sequence", "records in the log"],
        [
            [
                name,
                one.partition,
                one.producer,
                one.epoch,
                one.last_sequence,
                _records_in(scenarios[name], one.partition),
            ]
            for name, states in producer_states.items()
            for one in states or ()
        ],
    )
    trial.control(
        "the broker wrote records that it did not confirm",
        min(unconfirmed.values()) > 0,
        f"{sum(unconfirmed.values())} in {cuts} cuts",
    )
    trial.control("no acknowledged record is missing", lost == 0, f"{lost} missing")
    without, with_ = found["not idempotent"], found["idempotent"]
    trial.control(
        "without idempotence, some records are repeated",
        bool(without),
        f"{without.count} of {without.of:,}",
    )
    trial.statement(
        "an idempotent producer writes each record once",
        not with_,
        f"{with_.count} of {with_.of:,} repeated",
    )
    idempotent = producer_states["idempotent"]
    plain = producer_states["not idempotent"]
    if idempotent is None or plain is None:
        trial.statement(
            "the broker identifies the producer by id and sequence",
            None,
            "the broker does not report it",
        )
        return
    records = {
        one.partition: _records_in(scenarios["idempotent"], one.partition) for one in idempotent
    }
    trial.statement(
        "the broker identifies the producer by its id,"
        " with a sequence number per partition that counts its records",
        len(idempotent) == partitions
        and len({one.producer for one in idempotent}) == 1
        and all(one.last_sequence + 1 == records[one.partition] for one in idempotent)
        and not plain,
        ", ".join(
            f"id {one.producer}, partition {one.partition}:"
            f" last sequence {one.last_sequence} of {records[one.partition]} records"
            for one in idempotent
        )
        + f"; {len(plain)} producers known without idempotence",
    )


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
        "Give a producer that may restart a transactional id, or give every record an id by "
        "which the reader recognises repeats."
    ),
    rules=("PUBLISHER_NOT_IDEMPOTENT", "PIPELINE_WITHOUT_GUARD"),
)
def restarted_idempotent_producer(trial: Trial) -> None:
    count = trial.scaled(300, 2_000)
    plans: dict[str, tuple[dict[str, Any], int | None]] = {
        "idempotent": ({}, None),
        # Twice as many records as are sent: the transaction is still open when the process dies.
        "transaction left open": ({"transactional.id": trial.name("transaction")}, 2 * count),
        "transaction committed": ({"transactional.id": trial.name("transaction")}, count),
    }
    repeated: dict[str, dict[str, Anomalies]] = {}
    ids: dict[str, list[set[int] | None]] = {}
    lost = 0
    for name, (config, transaction) in plans.items():
        scenario, topic = trial.scenario(name), trial.topic(1)
        plan = Publishing(
            topic=topic,
            count=count,
            seed=trial.seed,
            per_s=1_000,
            config=config,
            transaction=transaction,
        )
        # at a steady rate, only the last few records are still in the client when it dies
        scenario.run(msgspec.structs.replace(plan, dies_after=count, warm=True))
        first = _producer_ids(trial, topic)
        scenario.publish(msgspec.structs.replace(plan, transaction=transaction and count))
        ids[name] = [first, _producer_ids(trial, topic)]
        repeated[name] = {}
        for level in ("read_committed", "read_uncommitted"):
            scenario.read_topic(topic, by=level, config={"isolation.level": level})
            repeated[name][level] = checkers.repeated(
                scenario.history(), level, by=OperationKind.READ
            )
        lost += checkers.lost(scenario.history(), "read_committed", by=OperationKind.READ).count
    trial.table(
        f"{count} records sent by a process that was killed, and sent again by the next",
        [
            "first process",
            "producer ids",
            "repeated for read_committed",
            "repeated for read_uncommitted",
        ],
        [
            [name, _ids_text(ids[name][-1]), *(one.count for one in found.values())]
            for name, found in repeated.items()
        ],
    )
    trial.plot(
        "Records stored twice after a restart",
        "first process",
        "records",
        {
            level: [(name, float(found[level].count)) for name, found in repeated.items()]
            for level in repeated["idempotent"]
        },
    )
    plain, left_open, done = (found["read_committed"] for found in repeated.values())
    before, after = ids["idempotent"]
    is_new: bool | None = None
    if before and after:
        is_new = len(after) == 2 and before < after
    trial.control("no record is missing", lost == 0, f"{lost} missing")
    trial.statement(
        "the second process has a different producer id",
        is_new,
        f"first {_ids_text(before)}, then {_ids_text(after)}",
    )
    trial.statement(
        "records that it sends again are stored twice",
        bool(plain),
        f"{plain.count} of {plain.of} repeated",
    )
    uncommitted = repeated["transaction left open"]["read_uncommitted"]
    trial.control(
        "with a transactional id, an open transaction is aborted",
        not left_open and bool(uncommitted) and len(ids["transaction left open"][-1] or ()) == 1,
        f"{left_open.count} of {left_open.of} repeated for readers of committed data,"
        f" {uncommitted.count} for others; "
        f"{done.count} if the first process had committed",
    )


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
        return f"{producer}, replicas {self.replicas}, in-sync {self.in_sync}"

    @property
    def config(self) -> dict[str, Any]:
        if self.idempotent:
            return {}
        return senders.plain(self.acks)


class RecipeOutcome(NamedTuple):
    lost: Anomalies
    repeated: Anomalies
    repeated_later: Anomalies


# a client that asks a frozen broker for metadata would wait a minute
IMPATIENT = {"socket.timeout.ms": 5_000}
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
        "Use all four, with three replicas, and give records an id or the producer transactions: "
        "otherwise a restart repeats records."
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
    leader, follower, third = nodes = senders.nodes_from(trial.seed)
    producers = [(True, "all"), (False, "all"), (False, "1")]
    replications = [(1, 1), (2, 1), (2, 2), (3, 2)]
    recipes = [
        Recipe(*producer, *replication) for producer in producers for replication in replications
    ]
    scenarios = {one: trial.scenario(one.name) for one in recipes}
    topics = {
        one: trial.topic(brokers=nodes[: one.replicas], min_insync_replicas=str(one.in_sync))
        for one in recipes
    }
    proxy = trial.cluster.proxies[leader]
    stops: list[threading.Event] = []
    with contextlib.ExitStack() as running:
        for one in recipes:
            plan = Publishing(
                topic=topics[one],
                count=senders.FOREVER,
                seed=trial.seed,
                per_s=50,
                config={**one.config, **IMPATIENT},
                flush_timeout_s=10,
            )
            stops.append(
                running.enter_context(scenarios[one].background(plan, trial.cluster.proxied))[1]
            )
        for stop in stops:
            running.callback(stop.set)
        trial.wait_for_more(scenarios.values(), 30)
        # 1. records are written but not confirmed
        proxy.inject(NetworkFault(swallows_answers=True))
        trial.wait(
            lambda: all(
                _written(trial, topics[one], 1) > scenarios[one].acknowledged for one in recipes
            ),
            "unconfirmed records",
        )
        proxy.cut()
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
        trial.wait_for_more([scenarios[one] for one in alone], 30)
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
    found = trial.together(
        {
            one.name: functools.partial(_send_again, trial, one, scenarios[one], topics[one])
            for one in recipes
        }
    )
    _show_recipes(trial, {one: found[one.name] for one in recipes}, forced)


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
    """Give every topic a leader again; return how many needed an unclean election.

    An unclean election is needed where Kafka does not trust the remaining replicas.
    """
    known = layout.read(trial.cluster.kafka).topics
    leaderless = [topic for topic in topics if known[topic].partitions[0].leader is None]
    with admin_extras.connect(trial.cluster.kafka) as extras:
        for topic in leaderless:
            if extras:
                extras.elect_unclean(topic, 0)
    trial.note(f"unclean elections forced: {len(leaderless)}")
    return len(leaderless)


def _show_recipes(trial: Trial, found: Mapping[Recipe, RecipeOutcome], forced: int) -> None:
    trial.table(
        f"Each combination under the same faults ({forced} topics needed an unclean election)",
        [
            "producer",
            "acks",
            "replicas",
            "in-sync",
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
        counted = outcome.repeated if "repeated" in statement else outcome.lost
        trial.control(statement, bool(counted), f"{counted.count} of {counted.of:,}")
    outcome = found[RECIPE]
    trial.statement(
        "with all four, each acknowledged record is stored once while the producer is alive",
        not outcome.lost and not outcome.repeated,
        f"{outcome.lost.count} lost, {outcome.repeated.count} repeated of {outcome.lost.of:,}",
    )
    broken = [
        one
        for one, outcome in found.items()
        if outcome.repeated_later.count > outcome.repeated.count
    ]
    trial.limit(
        "a producer that restarts and sends again repeats records",
        outcome.repeated_later.count > outcome.repeated.count,
        f"{outcome.repeated_later.count} repeated with all four,"
        f" and some in {len(broken)} of the {len(found)} combinations",
    )
