"""Statements about Kafka that were true once: until which release, and what is true today.

Each has sources, and a command that shows today's behaviour. `page` is docs/lab/outdated.md:

    python -m instep_lab.outdated > docs/lab/outdated.md
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from instep import errors, settings
from instep.report.markup import markdown
from instep_lab import sources

BOOTSTRAP = "localhost:9092"
NOT_A_SETTING = "not a setting of this broker"
NO_VALUE = "no value"


@dataclass(frozen=True, slots=True)
class OutdatedStatement:
    """A statement that was true until a release.

    `shown_by` is a command, and `shows` is a pattern that its output matches. A claim of the lab
    (`instep lab run`) needs no pattern: its verdict says it. `asks` names settings of the brokers
    that `instep lab outdated ID --bootstrap` asks for.
    """

    id: str
    topic: str
    statement: str
    since: str
    today: str
    sources: tuple[str, ...]
    shown_by: str
    shows: str = ""
    asks: tuple[str, ...] = ()

    @property
    def claim(self) -> str:
        """The claim of the lab that shows today's behaviour, or an empty string."""
        return self.shown_by.removeprefix("instep lab run ") if not self.shows else ""


def _asking(id_: str) -> str:
    return f"instep lab outdated {id_} --bootstrap {BOOTSTRAP}"


_KNOWN = (
    OutdatedStatement(
        id="zookeeper-cluster",
        topic="ZooKeeper",
        statement="ZooKeeper runs the cluster: it elects leaders, and brokers cannot find each"
        " other without it",
        since="Kafka 4.0",
        today="Brokers with the role controller keep the metadata in a log of their own and elect"
        " leaders (KRaft). It was declared ready for production in 3.3, and 4.0 removed"
        " ZooKeeper.",
        sources=("KIP-500", "KIP-833", "upgrade notes: 4.0"),
        shown_by=_asking("zookeeper-cluster"),
        shows=rf"process\.roles +\S*controller[\s\S]*zookeeper\.connect +{NOT_A_SETTING}",
        asks=("process.roles", "controller.quorum.bootstrap.servers", "zookeeper.connect"),
    ),
    OutdatedStatement(
        id="zookeeper-consumers",
        topic="ZooKeeper",
        statement="ZooKeeper notices that a consumer has died, and starts a rebalance",
        since="Kafka 0.9",
        today="A broker, the coordinator of the group, expects heartbeats from its members. It"
        " removes a member without heartbeats and rebalances the group. The last consumers that"
        " used ZooKeeper were removed in 2.0.",
        sources=("KIP-62", "KIP-848", "upgrade notes: 2.0"),
        shown_by="instep groups describe readers",
        shows=r"coordinator \d+ \(",
    ),
    OutdatedStatement(
        id="zookeeper-offsets",
        topic="ZooKeeper",
        statement="Offsets are kept in ZooKeeper",
        since="Kafka 0.9",
        today="Consumers commit to the broker, which keeps the offsets in the compacted topic"
        " `__consumer_offsets`. Kafka 0.8.2 introduced it as an option; the consumer of 0.9 knows"
        " nothing else.",
        sources=("KAFKA-1012", "KIP-211", "upgrade notes: 2.0"),
        shown_by="instep topics describe __consumer_offsets",
        shows=r"cleanup\.policy +compact +topic",
    ),
    OutdatedStatement(
        id="stateless-brokers",
        topic="ZooKeeper",
        statement="Brokers are stateless: they keep nothing about consumers",
        since="Kafka 0.9",
        today="Brokers know every group with its members, its state and its committed offsets."
        " They still do not track which record was read by whom, except in share groups.",
        sources=("KAFKA-1012", "KIP-932"),
        shown_by="instep groups list",
        shows=r"readers +(Empty|Stable)",
    ),
    OutdatedStatement(
        id="option-zookeeper",
        topic="Commands",
        statement="`kafka-topics.sh --zookeeper HOST:2181 --list`",
        since="Kafka 3.0",
        today="The option was removed. Tools connect to brokers: `--bootstrap-server HOST:9092`,"
        " since 2.2 for topics.",
        sources=("KIP-377", "KIP-555", "upgrade notes: 3.0"),
        shown_by="instep topics list",
        shows=r"orders +2",
    ),
    OutdatedStatement(
        id="option-new-consumer",
        topic="Commands",
        statement="`kafka-console-consumer.sh --new-consumer`",
        since="Kafka 2.0",
        today="The option was removed: there is only one consumer. `--bootstrap-server` is enough.",
        sources=("KIP-176", "upgrade notes: 2.0"),
        shown_by="instep peek orders",
        shows=r"k1 +",
    ),
    OutdatedStatement(
        id="offset-checker",
        topic="Commands",
        statement="`kafka-consumer-offset-checker.sh` shows the lag of a group",
        since="Kafka 1.0",
        today="It was deprecated in 0.9 and removed in 1.0. Use `kafka-consumer-groups.sh"
        " --describe --group GROUP`.",
        sources=("KAFKA-3356", "upgrade notes: 0.9"),
        shown_by="instep groups describe readers",
        shows=r"CURRENT-OFFSET +LOG-END-OFFSET +LAG",
    ),
    OutdatedStatement(
        id="get-offset-shell",
        topic="Commands",
        statement="`kafka-run-class.sh kafka.tools.GetOffsetShell --broker-list HOST:9092` shows"
        " the end of a log",
        since="Kafka 3.7",
        today="The class moved to `org.apache.kafka.tools` in 3.7, and 4.0 removed `--broker-list`."
        " Since 3.0 there is a script: `kafka-get-offsets.sh --bootstrap-server HOST:9092`.",
        sources=("KAFKA-17390", "upgrade notes: 4.0"),
        shown_by="instep offsets orders",
        shows=r"TOPIC +PARTITION +FIRST +END",
    ),
    OutdatedStatement(
        id="formatter-classes",
        topic="Commands",
        statement="`kafka-console-consumer.sh --formatter"
        " 'kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter'` shows committed"
        " offsets",
        since="Kafka 4.0",
        today="The formatters were renamed, such as"
        " `org.apache.kafka.tools.consumer.OffsetsMessageFormatter`. The command for groups shows"
        " the same with less effort.",
        sources=("upgrade notes: 4.0",),
        shown_by="instep groups describe readers --json",
        shows=r'"current": 10',
    ),
    OutdatedStatement(
        id="old-consumers",
        topic="Clients",
        statement="A consumer uses the high-level API or the low-level SimpleConsumer",
        since="Kafka 2.0",
        today="Both were removed. One consumer does the work of both: `subscribe` joins a group,"
        " `assign` takes given partitions.",
        sources=("upgrade notes: 2.0",),
        shown_by="instep lab run start-6",
    ),
    OutdatedStatement(
        id="smallest-largest",
        topic="Clients",
        statement="`auto.offset.reset` is `smallest` or `largest`",
        since="Kafka 0.9",
        today="The values are `earliest`, `latest` and `none`, and since 4.0 also"
        " `by_duration:DURATION`. Kafka's Java client refuses the old words; librdkafka still takes"
        " them.",
        sources=("KIP-1106", "librdkafka: configuration"),
        shown_by="instep lab run start-9",
    ),
    OutdatedStatement(
        id="old-partitioner",
        topic="Clients",
        statement="A partitioner implements `kafka.producer.Partitioner` and is set by"
        " `partition.class`",
        since="Kafka 2.0",
        today="2.0 removed the Scala producers with that interface. The Java producer takes a class"
        " of `org.apache.kafka.clients.producer.Partitioner` by `partitioner.class`, librdkafka a"
        " name by `partitioner`. Their defaults place the same key differently. The setting of"
        " Kafka's own producers was always called `partitioner.class`.",
        sources=("upgrade notes: 2.0", "KIP-480", "KIP-794"),
        shown_by="instep lab run send-11",
    ),
    OutdatedStatement(
        id="async-producer",
        topic="Clients",
        statement="A producer is at most once by default: it does not retry",
        since="Kafka 2.1",
        today="The Java client's `retries` was 0 and is 2147483647 since 2.1; `delivery.timeout.ms`"
        " ends the attempts. Whether a producer was asynchronous never decided this: the Scala"
        " producer, which 2.0 removed, retried three times (`message.send.max.retries=3`) also with"
        " `producer.type=async`. What it could lose were records that the brokers did not"
        " acknowledge, which was its default (`request.required.acks=0`), and, with"
        " `queue.enqueue.timeout.ms=0`, those that found its queue full.",
        sources=("KIP-91", "documentation: producer of 0.8", "upgrade notes: 2.0"),
        shown_by="instep lab run send-17",
    ),
    OutdatedStatement(
        id="no-idempotence",
        topic="Clients",
        statement="A producer cannot retry without the risk of a repeated record",
        since="Kafka 0.11",
        today="An idempotent producer numbers its records, and the broker drops what it already"
        " has. This is the Java client's default since 3.0 (in effect since 3.0.1, 3.1.1 and 3.2).",
        sources=("KIP-98", "KIP-679", "KAFKA-13598"),
        shown_by="instep lab run send-8",
    ),
    OutdatedStatement(
        id="acks-default",
        topic="Defaults",
        statement="A producer has `acks=1` by default",
        since="Kafka 3.0",
        today="The default is `all`; in librdkafka since 1.0.",
        sources=("KIP-679", "upgrade notes: 3.0", "librdkafka: release 1.0"),
        shown_by="instep lab run send-4",
    ),
    OutdatedStatement(
        id="linger-default",
        topic="Defaults",
        statement="A producer has `linger.ms=0` by default",
        since="Kafka 4.0",
        today="The default of the Java client is 5 ms, as it is in librdkafka.",
        sources=("KIP-1030",),
        shown_by="instep lab run send-12",
    ),
    OutdatedStatement(
        id="cleaner-default",
        topic="Defaults",
        statement="`log.cleaner.enable` is `false`: without it, nothing is compacted",
        since="Kafka 0.9",
        today="The default is `true`. Topics with `cleanup.policy=compact` are compacted.",
        sources=("upgrade notes: 0.9",),
        shown_by=_asking("cleaner-default"),
        shows=r"log\.cleaner\.enable +true",
        asks=("log.cleaner.enable",),
    ),
    OutdatedStatement(
        id="commits-one-day",
        topic="Defaults",
        statement="Committed offsets are kept for one day",
        since="Kafka 2.0",
        today="They are kept for seven days. Since 2.1 the time begins when the group has lost its"
        " last member, not with the commit.",
        sources=("KIP-186", "KIP-211"),
        shown_by=_asking("commits-one-day"),
        shows=r"offsets\.retention\.minutes +10080",
        asks=("offsets.retention.minutes",),
    ),
    OutdatedStatement(
        id="reads-from-leader",
        topic="Brokers and files",
        statement="Consumers read only from the leader of a partition",
        since="Kafka 2.4",
        today="A broker with a `replica.selector.class` may send consumers to a follower, for"
        " example in their own rack. Without the setting they still read from the leader.",
        sources=("KIP-392",),
        shown_by=_asking("reads-from-leader"),
        shows=rf"replica\.selector\.class +{NO_VALUE}",
        asks=("replica.selector.class",),
    ),
    OutdatedStatement(
        id="segment-suffix",
        topic="Brokers and files",
        statement="The file of a segment is named by its first offset, with the suffix `.kafka`",
        since="Kafka 0.8",
        today="The suffix is `.log`, beside `.index` and `.timeindex`.",
        sources=("documentation: log",),
        shown_by="instep lab run topic-8",
    ),
    OutdatedStatement(
        id="record-format",
        topic="Brokers and files",
        statement="Each message is stored alone: a 64-byte offset, length, magic byte, checksum,"
        " payload",
        since="Kafka 0.11",
        today="Records are stored in batches with one header (format v2), whose first field is an"
        " offset of 64 bits. 4.0 no longer writes the formats v0 and v1, and the setting that chose"
        " one is gone.",
        sources=("KIP-98", "KIP-724", "documentation: record format"),
        shown_by=_asking("record-format"),
        shows=rf"log\.message\.format\.version +{NOT_A_SETTING}",
        asks=("log.message.format.version",),
    ),
)
ALL: Mapping[str, OutdatedStatement] = {one.id: one for one in _KNOWN}


def select(ids: Sequence[str]) -> list[OutdatedStatement]:
    """Return the statements with these ids; all without ids."""
    for id_ in ids:
        if id_ not in ALL:
            near = settings.nearest(id_, [*ALL], count=3, cutoff=0.4)
            raise errors.SettingsError(
                f"unknown statement {id_!r}{near}", "list all: instep lab outdated"
            )
    return [one for one in ALL.values() if not ids or one.id in ids]


def answer(name: str, found: Mapping[str, str | None]) -> str:
    """Return what a broker says about a setting, given all its settings."""
    if name not in found:
        return NOT_A_SETTING
    return found[name] or NO_VALUE


def page() -> str:
    """Return docs/lab/outdated.md."""
    parts = [
        "# Outdated since",
        "Many texts about Kafka were written for releases before 1.0. These statements were true"
        " once. Each has the release that changed it, what is true today, the source, and a command"
        " that shows it. `instep lab outdated` prints the same list.",
        "The commands need a broker, for example one that `instep up` has started, with a topic"
        " `orders` and a group `readers`; put in names of your own. `instep lab run` starts its own"
        " brokers.",
    ]
    for topic in dict.fromkeys(one.topic for one in ALL.values()):
        parts.append(f"## {topic}")
        parts += [_section(one) for one in ALL.values() if one.topic == topic]
    return "\n\n".join(parts) + "\n"


def _section(one: OutdatedStatement) -> str:
    found = [sources.ALL[id_] for id_ in one.sources]
    links = ", ".join(f"[{source.id}]({source.url})" for source in found)
    link = f" ([{one.claim}](claims.md#claim-{one.claim}))" if one.claim else ""
    return (
        f'<a id="{one.id}"></a>\n\n'
        f"> {markdown(one.statement)}\n\n"
        f"**Outdated since {one.since}.** {markdown(one.today)} Sources: {links}.\n\n"
        f"Shown by `{one.shown_by}`{link}."
    )


if __name__ == "__main__":
    sys.stdout.write(page())
