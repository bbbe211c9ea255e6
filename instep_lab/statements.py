"""The statements that the lab began with, and where each is tested or answered.

They were collected from a team's notes about Kafka. `page` is docs/lab/statements.md, which
`python -m instep_lab.report` writes with the verdicts of the published run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from instep.report.markup import markdown


@dataclass(frozen=True, slots=True)
class NotedStatement:
    """A statement, with the claims that test it and the entries of the page "Outdated since".

    `untested` says why the lab does not test it, or a part of it.
    """

    text: str
    claims: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    untested: str = ""


def _tested(text: str, *claims: str, outdated: tuple[str, ...] = ()) -> NotedStatement:
    return NotedStatement(text, claims, outdated)


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
            "Readers of one partition in different groups do not disturb each other", "order-2"
        ),
        _tested("Records with the same key go to the same partition, in order", "order-3"),
        _tested("A thread pool disturbs the order of one partition", "order-4"),
        _tested("Sorting by time after reading restores the order", "order-7"),
        _tested("A total order needs a single consumer as well", "order-8"),
        _tested("Retries reorder unless max.in.flight.requests.per.connection is 1", "order-5"),
        _tested("Idempotence needs 1 to 5 requests in flight", "order-5"),
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
        _tested("One member can hold several partitions", "group-3"),
        _tested(
            "A group of its own for each reader is a broadcast, one group for all is a queue",
            "group-1",
        ),
        _tested("Members that come or go, and added partitions, trigger a rebalance", "group-4"),
        _tested("A broker that is added or removed triggers a rebalance of the group", "group-6"),
        _tested("Without a group name, a consumer is in a default group", "group-7"),
        _tested("Without groups, ten consumers each get everything", "group-8"),
        _outdated(
            "ZooKeeper notices a dead consumer and starts a rebalance", "zookeeper-consumers"
        ),
        _tested("A consumer that hangs or times out and comes back causes repeats", "commit-17"),
    ),
    "Where a consumer starts": (
        _tested("A new group with latest reads only new records", "start-1"),
        _tested("A new group with earliest reads from the beginning", "start-2"),
        _tested("Another group may start at the beginning", "start-2"),
        _tested(
            "The same group continues where it was, whatever the setting says", "start-3", "start-7"
        ),
        _tested("A new group always starts at the newest record", "start-4"),
        _tested("Without the setting, a group starts at the newest record", "start-4"),
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
        _tested("Automatic commit commits right after the pull", "commit-1", "commit-14"),
        _tested("Automatic commit loses what was committed and not processed", "commit-1"),
        _tested("Automatic commit repeats records after a crash", "commit-2"),
        _tested("A shorter interval narrows the window", "commit-2"),
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
        _tested("commitAsync is faster", "commit-5"),
        _tested("commitSync retries, commitAsync does not", "commit-5"),
        _tested("A commit that is retried may overtake a newer one", "commit-5"),
        _tested("Commit asynchronously in the loop, and synchronously at the end", "commit-6"),
        _tested("Given offsets can be committed within a batch", "commit-7"),
        _tested("The offset beside the result, written atomically, gives exactly-once", "commit-8"),
        _tested("Exactly-once needs a two-phase commit", "commit-18", "commit-15"),
        _tested("A primary key or unique index gives exactly-once", "commit-9"),
        _tested("The offset can be the unique id", "commit-11"),
        _tested("Offsets are kept in __consumer_offsets", "commit-16"),
        _tested("Offsets are kept in ZooKeeper", "commit-16", outdated=("zookeeper-offsets",)),
        _tested(
            "Brokers are stateless: they keep nothing about consumption",
            "commit-16",
            outdated=("stateless-brokers",),
        ),
    ),
    "Publishing": (
        _tested("acks=0 loses records when the leader dies", "send-1"),
        _tested("acks=1 loses what no follower has", "send-1"),
        _tested("acks=all loses nothing", "send-1"),
        _tested("acks=all is not enough with one replica", "send-2"),
        _tested("acks=0 is the fastest and acks=all the slowest", "send-13"),
        _tested("The sender waits for the acknowledgement before the next record", "send-14"),
        _tested("The default is acks=1", "send-4", outdated=("acks-default",)),
        _tested("min.insync.replicas only applies with acks=all", "send-3"),
        _tested("acks=0 is at most once: records never repeat", "send-15"),
        _tested("acks=-1 with two replicas in sync is at least once, and may repeat", "send-10"),
        _tested("Exactly-once is that and idempotence", "send-10"),
        _tested("Repeats are recognised by producer id, partition and sequence number", "send-8"),
        _tested("A producer gets a new id at each restart", "send-9"),
        _tested("There is no idempotent retry yet", "send-8", outdated=("no-idempotence",)),
        _tested("A sender can forget, wait, or use a callback", "send-5"),
        _tested("A process that ends too early loses asynchronous sends", "send-6"),
        _tested("send() blocks for metadata until a TimeoutException", "send-16"),
        _tested(
            "An asynchronous producer is at most once", "send-17", outdated=("async-producer",)
        ),
        _tested("The sender sends only when batch.size is reached", "send-18"),
        _tested("batch.size is 16 kB by default", "send-12"),
        _tested("linger.ms is 0 by default", "send-12", outdated=("linger-default",)),
        _tested("max.in.flight.requests.per.connection is 5 by default", "send-12"),
        _tested("retries is 2147483647 by default", "send-12"),
        _tested("retry.backoff.ms is 100 by default", "send-12"),
        _tested("A numeric partitioner puts key k into partition k modulo n", "send-11"),
        _tested("The hash of the key and the number of partitions decide the partition", "send-11"),
        _tested("Records without a key are spread evenly", "send-19"),
        _tested(
            "The partitioner is set by partition.class and implements kafka.producer.Partitioner",
            "send-11",
            outdated=("old-partitioner",),
        ),
    ),
    "Topics and brokers": (
        _tested("The replication factor is at most the number of brokers", "topic-1"),
        _tested("Partitions can only be added", "topic-2"),
        _tested("Replicas can only be added", "topic-3"),
        _tested("Reading does not delete records", "topic-4"),
        _tested("Records are deleted by age or size", "topic-5"),
        _tested("log.segment.bytes=1 GB deletes what is beyond 1 GB", "storage-3"),
        _outdated("log.cleaner.enable is false", "cleaner-default"),
        _tested("Finding a record takes constant time", "topic-6"),
        _tested(
            "A segment is named by its first offset, with the suffix .kafka",
            "topic-8",
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
            "topic-7",
            "topic-10",
        ),
        _tested("The log end offset is the last offset plus one", "topic-7"),
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
            ("topic-12",),
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
        _tested("Redis dequeues faster than RabbitMQ at any size", "queue-2"),
        _tested("ZeroMQ is the fastest and keeps nothing", "queue-3"),
        _tested("Kafka is lightweight, and faster than ActiveMQ", "queue-4"),
    ),
}
ALL = [one for found in BY_TOPIC.values() for one in found]


def page(verdicts: Mapping[str, str]) -> str:
    """Return docs/lab/statements.md, with the verdict of each claim that has one."""
    tested = sum(bool(one.claims) for one in ALL)
    parts = [
        "# Every statement",
        f"The lab began with {len(ALL)} statements from a team's notes. {tested} of them are tested"
        " by claims, which often cover several. The others are outdated and answered with the"
        " release that changed them, or say why the lab does not test them.",
        *(part for topic, found in BY_TOPIC.items() for part in _section(topic, found, verdicts)),
    ]
    return "\n\n".join(parts) + "\n"


def _section(
    topic: str, found: tuple[NotedStatement, ...], verdicts: Mapping[str, str]
) -> Iterator[str]:
    yield f"## {topic}"
    rows = [("statement", "tested by, with the verdict", "outdated since"), ("---", "---", "---")]
    rows += [
        (
            _text(one),
            _links("claims.md#claim-", one.claims, verdicts),
            _links("outdated.md#", one.outdated, {}),
        )
        for one in found
    ]
    yield "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _text(one: NotedStatement) -> str:
    more = f" **Not tested:** {markdown(one.untested)}" if one.untested else ""
    return f"{markdown(one.text)}{more}"


def _links(address: str, ids: tuple[str, ...], verdicts: Mapping[str, str]) -> str:
    return ", ".join(
        " ".join(word for word in (f"[{id_}]({address}{id_})", verdicts.get(id_)) if word)
        for id_ in ids
    )
