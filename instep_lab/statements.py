"""The statements that the lab began with, and where each is tested or answered.

They were collected from a team's notes about Kafka. `page` is docs/lab/statements.md, which
`python -m instep_lab.report` writes with the outcomes of the published run.

A claim often covers more than a statement says. Each statement therefore names the parts of the
claim that decide it, and gets a verdict of its own from their outcomes.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from instep.report.markup import markdown
from instep_lab import outdated, verdict
from instep_lab.claim import ClaimResult
from instep_lab.verdict import ClaimVerdict, PartOutcome, Role, VerdictPart

PRODUCT = "Kafka "  # before a release
NOT_RUN, NOT_TESTED = "not run", "not tested"
OPPOSITE = {PartOutcome.PASS: PartOutcome.FAIL, PartOutcome.FAIL: PartOutcome.PASS}
# The first one that a claim has decides: all claims of a statement must hold.
WORST_FIRST = (
    ClaimVerdict.INCONCLUSIVE,
    ClaimVerdict.OUTDATED,
    ClaimVerdict.WRONG,
    ClaimVerdict.DEPENDS_ON_CLIENT_AND_RELEASE,
    ClaimVerdict.DEPENDS_ON_CLIENT,
    ClaimVerdict.DEPENDS_ON_RELEASE,
    ClaimVerdict.DEPENDS_ON_SETTING,
    ClaimVerdict.RIGHT,
)
ON_CLIENT = (ClaimVerdict.DEPENDS_ON_CLIENT, ClaimVerdict.DEPENDS_ON_CLIENT_AND_RELEASE)


@dataclass(frozen=True, slots=True)
class DecidingParts:
    """The parts of a claim that decide a statement, by their texts, in which * stands for any text.

    If a part in `shows` passed, the statement holds; if one in `refutes` did, it does not. One in
    `unless` is an exception. Without any, the claim says the same as the statement.
    """

    claim: str
    shows: tuple[str, ...] = ()
    refutes: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        return (*self.shows, *self.refutes, *self.unless)

    def judge(self, result: ClaimResult) -> ClaimVerdict:
        """Judge the statement by its parts; a claim that settled nothing decides nothing."""
        if not self.texts or result.verdict is ClaimVerdict.INCONCLUSIVE:
            return result.verdict
        roles = (
            (self.shows, Role.STATEMENT, False),
            (self.refutes, Role.STATEMENT, True),
            (self.unless, Role.LIMIT, False),
        )
        found: list[VerdictPart] = []
        for texts, role, inverted in roles:
            for text in texts:
                parts = _matching(result.parts, text)
                if not parts:
                    return ClaimVerdict.INCONCLUSIVE
                found += [_as(one, role, inverted=inverted) for one in parts]
        return verdict.judge(found).verdict


@dataclass(frozen=True, slots=True)
class NotedStatement:
    """A statement, with what decides it and the entries of the page "Outdated since".

    `untested` says why the lab does not test it, or a part of it. `before` is the release that made
    it wrong, if no entry of that page says so.
    """

    text: str
    decided_by: tuple[DecidingParts, ...] = ()
    outdated: tuple[str, ...] = ()
    untested: str = ""
    before: str = ""

    @property
    def claims(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.claim for one in self.decided_by))

    def word(self, results: Mapping[str, ClaimResult]) -> str:
        """Return the verdict about the statement, given the results of the claims."""
        if not self.decided_by:
            return self._answered() if self.outdated else NOT_TESTED
        if not results.keys() >= set(self.claims):
            return NOT_RUN
        found = {one.judge(results[one.claim]) for one in self.decided_by}
        worst = next(one for one in WORST_FIRST if one in found)
        if worst is ClaimVerdict.INCONCLUSIVE or not self._since():
            return f"{worst}, as far as tested" if self.untested else worst.value
        if worst in (ClaimVerdict.OUTDATED, ClaimVerdict.WRONG):
            return self._answered()
        client = " with Java" if worst in ON_CLIENT else ""
        return f"{worst}; right{client} before {self._since()}"

    def _answered(self) -> str:
        return f"was right before {self._since()}"

    def _since(self) -> str:
        """Return the release that changed it, or the first and the last one of several."""
        since = {self.before} if self.before else {outdated.ALL[id_].since for id_ in self.outdated}
        first, *others = sorted(since, key=_release) or [""]
        return f"{first} to {others[-1].removeprefix(PRODUCT)}" if others else first


def _matching(parts: Sequence[VerdictPart], text: str) -> list[VerdictPart]:
    pattern = text.replace("[", "[[]")
    return [one for one in parts if fnmatch.fnmatchcase(one.statement, pattern)]


def _as(part: VerdictPart, role: Role, *, inverted: bool) -> VerdictPart:
    outcome = OPPOSITE.get(part.outcome, part.outcome) if inverted else part.outcome
    return msgspec.structs.replace(part, role=role, outcome=outcome)


def _release(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in name.removeprefix(PRODUCT).split("."))


def _parts(
    claim: str, *shows: str, refutes: tuple[str, ...] = (), unless: tuple[str, ...] = ()
) -> DecidingParts:
    return DecidingParts(claim, shows, refutes, unless)


def _tested(
    text: str,
    *decided_by: DecidingParts | str,
    outdated: tuple[str, ...] = (),
    before: str = "",
) -> NotedStatement:
    """Return a statement that claims decide; a claim without parts says the same."""
    found = tuple(one if isinstance(one, DecidingParts) else _parts(one) for one in decided_by)
    return NotedStatement(text, found, outdated, before=before)


def _outdated(text: str, *ids: str) -> NotedStatement:
    return NotedStatement(text, outdated=ids)


BY_TOPIC: dict[str, tuple[NotedStatement, ...]] = {
    "Order": (
        _tested(
            "Records spread over several partitions do not come back in the order of time",
            "order-1",
        ),
        _tested("With one partition the order holds", "order-2"),
        _tested(
            "Readers of one partition in different groups do not disturb each other",
            _parts(
                "order-2",
                "3 groups in order",
                "two publishers: all groups read the same order",
            ),
        ),
        _tested("Records with the same key go to the same partition, in order", "order-3"),
        _tested(
            "A thread pool disturbs the order of one partition",
            _parts(
                "order-4",
                "a pool that takes record by record breaks the order",
            ),
        ),
        _tested("Sorting by time after reading restores the order", "order-7"),
        _tested("A total order needs a single consumer as well", "order-8"),
        _tested(
            "Retries reorder unless max.in.flight.requests.per.connection is 1",
            _parts(
                "order-5",
                "1 in flight: no record is inverted",
                "5 in flight: some records are inverted",
            ),
        ),
        _tested(
            "Idempotence needs 1 to 5 requests in flight",
            _parts(
                "order-5",
                "the client rejects idempotence with 6 in flight",
                "idempotent, 5 in flight: no record is inverted",
            ),
        ),
        _tested("Everything that is sent to a given partition is there, in order", "order-9"),
    ),
    "Consumer groups": (
        _tested(
            "Each record goes to one member of a group, and every group gets every record",
            "group-1",
        ),
        _tested(
            "With 3 partitions and the keys 1, 2 and 3, each of three members gets one key",
            "group-5",
        ),
        _tested("Members beyond the partitions stay idle", "group-2"),
        _tested("A partition allows no concurrent reading within a group", "group-2"),
        _tested(
            "The number of partitions should be the number of members, or a multiple, such as 24",
            "group-3",
        ),
        _tested(
            "One member can hold several partitions",
            _parts(
                "group-3",
                "2 members hold the same number of partitions",
            ),
        ),
        _tested(
            "A group of its own for each reader is a broadcast, one group for all is a queue",
            "group-1",
        ),
        _tested("Members that come or go, and added partitions, trigger a rebalance", "group-4"),
        _tested(
            "A broker that is added or removed triggers a rebalance of the group",
            "group-6",
            before="Kafka 0.9",
        ),
        _tested("Without a group name, a consumer is in a default group", "group-7"),
        _tested("Without groups, ten consumers each get everything", "group-8"),
        _outdated(
            "ZooKeeper notices a dead consumer and starts a rebalance", "zookeeper-consumers"
        ),
        _tested("A consumer that hangs or times out and comes back causes repeats", "commit-17"),
    ),
    "Where a consumer starts": (
        _tested(
            "A new group with latest reads only new records",
            _parts(
                "start-1",
                "*: no older record is read",
                "*: records that arrive once it is at the end are read",
            ),
        ),
        _tested("A new group with earliest reads from the beginning", "start-2"),
        _tested(
            "Another group may start at the beginning",
            _parts(
                "start-2",
                "*: everything is read",
            ),
        ),
        _tested(
            "The same group continues where it was, whatever the setting says", "start-3", "start-7"
        ),
        _tested(
            "A new group always starts at the newest record",
            _parts(
                "start-4",
                "*: it starts at the newest with earliest",
            ),
        ),
        _tested(
            "Without the setting, a group starts at the newest record",
            _parts(
                "start-4",
                "*: it starts at the newest without the setting",
            ),
        ),
        _tested(
            "The values of the setting are smallest and largest",
            "start-9",
            outdated=("smallest-largest",),
        ),
        _tested("none raises an error", "start-5"),
        _tested("subscribe and assign start alike", "start-6"),
        _tested("A position can be moved back, and records read again", "topic-4"),
    ),
    "Commits": (
        _tested(
            "Automatic commit commits right after the pull",
            _parts(
                "commit-14",
                refutes=("*: the commit waits for the next poll",),
            ),
        ),
        _tested("Automatic commit loses what was committed and not processed", "commit-1"),
        _tested(
            "Automatic commit repeats records after a crash",
            _parts(
                "commit-2",
                "every record since the last commit is repeated",
            ),
        ),
        _tested(
            "A shorter interval narrows the window",
            _parts(
                "commit-2",
                "a shorter interval repeats less",
            ),
        ),
        _tested(
            "At a rebalance, synchronous work repeats and asynchronous work loses records",
            "commit-13",
        ),
        _tested(
            "Automatic commit is on by default, every 5,000 ms, and is checked in poll", "commit-14"
        ),
        _tested("Automatic commit means at most once", "commit-10"),
        _tested("A commit after the work means at least once", "commit-3"),
        _tested("A commit before the work means at most once", "commit-4"),
        _tested(
            "commitSync commits the offsets of the last poll, and throws when it fails", "commit-12"
        ),
        _tested(
            "commitAsync is faster",
            _parts(
                "commit-5",
                "asynchronous commit is faster",
            ),
        ),
        _tested(
            "commitSync retries, commitAsync does not",
            _parts(
                "commit-5",
                "a synchronous commit without a response is retried until it succeeds",
                "a commit without a response is not retried",
            ),
        ),
        _tested(
            "A commit that is retried may overtake a newer one",
            _parts(
                "commit-5",
                "an older commit overtakes a newer one",
            ),
        ),
        _tested("Commit asynchronously in the loop, and synchronously at the end", "commit-6"),
        _tested("Given offsets can be committed within a batch", "commit-7"),
        _tested("The offset beside the result, written atomically, gives exactly-once", "commit-8"),
        _tested("Exactly-once needs a two-phase commit", "commit-18", "commit-15"),
        _tested("A primary key or unique index gives exactly-once", "commit-9"),
        _tested("The offset can be the unique id", "commit-11"),
        _tested("Offsets are kept in __consumer_offsets", "commit-16"),
        _tested(
            "Offsets are kept in ZooKeeper",
            _parts(
                "commit-16",
                refutes=("the topic has every commit, in order",),
            ),
            outdated=("zookeeper-offsets",),
        ),
        _tested(
            "Brokers are stateless: they keep nothing about consumption",
            _parts(
                "commit-16",
                refutes=("the topic has every commit, in order",),
            ),
            outdated=("stateless-brokers",),
        ),
    ),
    "Publishing": (
        _tested(
            "acks=0 loses records when the leader dies",
            _parts(
                "send-1",
                "acks=0 loses records",
            ),
        ),
        _tested(
            "acks=1 loses what no follower has",
            _parts(
                "send-1",
                "acks=1 loses records",
            ),
        ),
        _tested(
            "acks=all loses nothing",
            _parts(
                "send-1",
                "acks=all with min.insync.replicas=2 loses no records",
                unless=(
                    "acks=all with min.insync.replicas=1 loses what the leader acknowledged alone*",
                ),
            ),
        ),
        _tested(
            "acks=all is not enough with one replica",
            _parts(
                "send-2",
                "with one replica, a lost disk loses acknowledged records",
            ),
        ),
        _tested("acks=0 is the fastest and acks=all the slowest", "send-13"),
        _tested("The sender waits for the acknowledgement before the next record", "send-14"),
        _tested("The default is acks=1", "send-4", outdated=("acks-default",)),
        _tested("min.insync.replicas only applies with acks=all", "send-3"),
        _tested("acks=0 is at most once: records never repeat", "send-15"),
        _tested(
            "acks=-1 with two replicas in sync is at least once, and may repeat",
            _parts(
                "send-10",
                "without idempotence, records are repeated",
                "with all four, each acknowledged record is stored once *",
            ),
        ),
        _tested("Exactly-once is that and idempotence", "send-10"),
        _tested("Repeats are recognised by producer id, partition and sequence number", "send-8"),
        _tested(
            "A producer gets a new id at each restart",
            _parts(
                "send-9",
                "the second process has a different producer id",
                unless=("so are those of a committed transaction, *",),
            ),
        ),
        _tested(
            "There is no idempotent retry yet",
            _parts(
                "send-8",
                refutes=("an idempotent producer writes each record once",),
            ),
            outdated=("no-idempotence",),
        ),
        _tested("A sender can forget, wait, or use a callback", "send-5"),
        _tested("A process that ends too early loses asynchronous sends", "send-6"),
        _tested("send() blocks for metadata until a TimeoutException", "send-16"),
        _tested(
            "An asynchronous producer is at most once", "send-17", outdated=("async-producer",)
        ),
        _tested("The sender sends only when batch.size is reached", "send-18"),
        _tested(
            "batch.size is 16 kB by default",
            _parts(
                "send-12",
                "batch.size=16384",
            ),
        ),
        _tested(
            "linger.ms is 0 by default",
            _parts(
                "send-12",
                "linger.ms=0",
            ),
            outdated=("linger-default",),
        ),
        _tested(
            "max.in.flight.requests.per.connection is 5 by default",
            _parts(
                "send-12",
                "max.in.flight.requests.per.connection=5",
            ),
        ),
        _tested(
            "retries is 2147483647 by default",
            _parts(
                "send-12",
                "retries=2147483647",
            ),
        ),
        _tested(
            "retry.backoff.ms is 100 by default",
            _parts(
                "send-12",
                "retry.backoff.ms=100",
            ),
        ),
        _tested(
            "A numeric partitioner puts key k into partition k modulo n",
            _parts(
                "send-11",
                "with k modulo n, each key is in its partition",
            ),
        ),
        _tested(
            "The hash of the key and the number of partitions decide the partition",
            _parts(
                "send-11",
                "each key is where * modulo * puts it",
            ),
        ),
        _tested("Records without a key are spread evenly", "send-19"),
        _outdated(
            "The partitioner is set by partition.class and implements kafka.producer.Partitioner",
            "old-partitioner",
        ),
    ),
    "Topics and brokers": (
        _tested("The replication factor is at most the number of brokers", "topic-1"),
        _tested("Partitions can only be added", "topic-2"),
        _tested("Replicas can only be added", "topic-3"),
        _tested(
            "Reading does not delete records",
            _parts(
                "topic-4",
                "*: everything from there is read",
            ),
        ),
        _tested("Records are deleted by age or size", "topic-5"),
        _tested("log.segment.bytes=1 GB deletes what is beyond 1 GB", "storage-3"),
        _outdated("log.cleaner.enable is false", "cleaner-default"),
        _tested("Finding a record takes constant time", "topic-6"),
        _tested(
            "A segment is named by its first offset, with the suffix .kafka",
            _parts(
                "topic-8",
                "each file is named after its first offset",
            ),
            _parts(
                "topic-8",
                refutes=("the suffix of the files with records is .log",),
            ),
            outdated=("segment-suffix",),
        ),
        _tested("A partition is a folder: 13 and 19 partitions are 32 folders", "storage-4"),
        _outdated(
            "A message is stored with its length, a magic byte and a checksum, at a 64-byte offset",
            "record-format",
        ),
        _tested("A follower takes over, and nothing is lost", "topic-9"),
        _tested(
            "Readers see records up to the high watermark, the lowest log end of all replicas",
            _parts(
                "topic-7",
                "while an in-sync follower lacks the records, nobody reads them",
            ),
            "topic-10",
        ),
        _tested(
            "The log end offset is the last offset plus one",
            _parts(
                "topic-7",
                "the log end offset is that of the last record plus one",
            ),
        ),
        _tested(
            "The in-sync replicas are the live brokers, and the assigned replicas are all brokers",
            "topic-11",
        ),
        _tested(
            "Reads and writes go through the leader", "topic-13", outdated=("reads-from-leader",)
        ),
        _outdated(
            "ZooKeeper runs the cluster, and brokers cannot find each other without it",
            "zookeeper-cluster",
        ),
        _tested("Data in the page cache is lost when the machine dies", "storage-1"),
        _tested(
            "Kafka writes to disk after a number of records and after an interval", "storage-2"
        ),
        _tested("More partitions mean more throughput and more resources", "storage-5"),
        NotedStatement(
            "More brokers mean more throughput, and can be added while the cluster runs",
            (_parts("topic-12", "a broker can join while the first one goes on working"),),
            untested=(
                "The lab runs on one machine, whose cores and disk all brokers share: it cannot "
                "show what more machines gain. topic-12 shows that a broker can join, and that "
                "existing partitions do not move to it."
            ),
        ),
        NotedStatement(
            "Sequential access to a disk is faster than random access to memory",
            (),
            untested=(
                "This is about hardware and not about Kafka: it depends on the disk, and a broker "
                "reads recent records from the page cache, that is, from memory."
            ),
        ),
        _outdated(
            "The commands of 0.8 to 1.0: --zookeeper, --new-consumer, the offset checker, "
            "GetOffsetShell, formatter classes",
            "option-zookeeper",
            "option-new-consumer",
            "offset-checker",
            "get-offset-shell",
            "formatter-classes",
        ),
        _outdated("A consumer uses the high-level API or SimpleConsumer", "old-consumers"),
    ),
    "Speed and queues": (
        _tested("9,000 documents at 0.3 s take 45 minutes", "speed-1"),
        _tested("A server handles 100,000 records per second", "speed-2"),
        _tested(
            "Redis enqueues small messages faster than RabbitMQ, and is slow above 10 KB", "queue-1"
        ),
        _tested(
            "Redis dequeues faster than RabbitMQ at any size",
            _parts(
                "queue-2",
                "*, Redis dequeues messages of * faster",
            ),
        ),
        _tested("ZeroMQ is the fastest and keeps nothing", "queue-3"),
        _tested("Kafka is lightweight, and faster than ActiveMQ", "queue-4"),
    ),
}
ALL = [one for found in BY_TOPIC.values() for one in found]


def page(results: Mapping[str, ClaimResult]) -> str:
    """Return docs/lab/statements.md, given the results of the claims that have run."""
    tested = sum(bool(one.claims) for one in ALL)
    parts = [
        "# Every statement",
        f"The lab began with {len(ALL)} statements from a team's notes. {tested} of them are tested"
        " by claims, which often cover several. The others are outdated and answered with the"
        " release that changed them, or say why the lab does not test them.",
        "The verdict is that about the statement: it rests on the parts of a claim that are about"
        " it, and can differ from the verdict about the whole claim.",
        *(part for topic, found in BY_TOPIC.items() for part in _section(topic, found, results)),
    ]
    return "\n\n".join(parts) + "\n"


def _section(
    topic: str, found: tuple[NotedStatement, ...], results: Mapping[str, ClaimResult]
) -> Iterator[str]:
    yield f"## {topic}"
    rows = [("statement", "verdict", "tested by", "outdated since"), ("---",) * 4]
    rows += [
        (
            _text(one),
            one.word(results),
            _links("claims.md#claim-", one.claims),
            _links("outdated.md#", one.outdated),
        )
        for one in found
    ]
    yield "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _text(one: NotedStatement) -> str:
    more = f" **Not tested:** {markdown(one.untested)}" if one.untested else ""
    return f"{markdown(one.text)}{more}"


def _links(address: str, ids: tuple[str, ...]) -> str:
    return ", ".join(f"[{id_}]({address}{id_})" for id_ in ids)
