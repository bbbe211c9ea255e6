"""Documents that explain the findings of the lab: proposals, issues and reference pages.

Claims name them by id. Ids of proposals (KIP) and issues (KAFKA, librdkafka) say what they are.
"""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

KIPS = "https://cwiki.apache.org/confluence/display/KAFKA/"
JIRA = "https://issues.apache.org/jira/browse/"
DOCUMENTATION = "https://kafka.apache.org/documentation/"
JAVADOC = "https://kafka.apache.org/40/javadoc/org/apache/kafka/clients/consumer/"
# Proposals with a page named "KIP-98 - Title". The other pages are named "KIP-848: Title".
DASHED = frozenset({8, 11, 19, 32, 82, 98, 101, 106, 152, 219, 226, 277, 504, 651})
LIBRDKAFKA = "https://github.com/confluentinc/librdkafka/"


@dataclass(frozen=True, slots=True)
class Source:
    """A document with its title and address."""

    id: str
    title: str
    url: str


def _kip(number: int, title: str) -> Source:
    separator = " - " if number in DASHED else ": "
    page = urllib.parse.quote_plus(f"KIP-{number}{separator}{title}")
    return Source(f"KIP-{number}", title, KIPS + page)


def _issue(number: int, title: str) -> Source:
    return Source(f"KAFKA-{number}", title, f"{JIRA}KAFKA-{number}")


def _documentation(id_: str, title: str, anchor: str) -> Source:
    return Source(id_, title, f"{DOCUMENTATION}#{anchor}")


def _upgrade(release: str, version: str, title: str) -> Source:
    return Source(
        f"upgrade notes: {release}",
        f"Upgrade notes of {title}",
        f"https://kafka.apache.org/{version}/getting-started/upgrade",
    )


def _javadoc(id_: str, title: str, page: str) -> Source:
    return Source(id_, title, f"{JAVADOC}{page}")


_KNOWN = (
    # proposals, by number
    _kip(8, "Add a flush method to the producer API"),
    _kip(19, "Add a request timeout to NetworkClient"),
    _kip(32, "Add timestamps to Kafka message"),
    _kip(62, "Allow consumer to send heartbeats from a background thread"),
    # the only page that is named with a blank
    Source(
        "KIP-91",
        "Provide Intuitive User Timeouts in The Producer",
        f"{KIPS}KIP-91+Provide+Intuitive+User+Timeouts+in+The+Producer",
    ),
    _kip(98, "Exactly Once Delivery and Transactional Messaging"),
    _kip(106, "Change Default unclean.leader.election.enabled from True to False"),
    _kip(176, "Remove deprecated new-consumer option for tools"),
    _kip(186, "Increase offsets retention default to 7 days"),
    _kip(211, "Revise Expiration Semantics of Consumer Group Offsets"),
    _kip(289, "Improve the default group id behavior in KafkaConsumer"),
    _kip(345, "Introduce static membership protocol to reduce consumer rebalances"),
    _kip(377, "TopicCommand to use AdminClient"),
    _kip(392, "Allow consumers to fetch from closest replica"),
    _kip(429, "Kafka Consumer Incremental Rebalance Protocol"),
    _kip(447, "Producer scalability for exactly once semantics"),
    _kip(455, "Create an Administrative API for Replica Reassignment"),
    _kip(480, "Sticky Partitioner"),
    _kip(500, "Replace ZooKeeper with a Self-Managed Metadata Quorum"),
    _kip(555, "Deprecate Direct Zookeeper access in Kafka Administrative Tools"),
    _kip(679, "Producer will enable the strongest delivery guarantee by default"),
    _kip(724, "Drop support for message formats v0 and v1"),
    _kip(735, "Increase default consumer session timeout"),
    _kip(794, "Strictly Uniform Sticky Partitioner"),
    _kip(833, "Mark KRaft as Production Ready"),
    _kip(848, "The Next Generation of the Consumer Rebalance Protocol"),
    _kip(858, "Handle JBOD broker disk failure in KRaft"),
    _kip(890, "Transactions Server-Side Defense"),
    _kip(932, "Queues for Kafka"),
    _kip(939, "Support Participation in 2PC"),
    _kip(966, "Eligible Leader Replicas"),
    _kip(1030, "Change constraints and default values for various configurations"),
    _kip(1106, "Add duration based offset reset option for consumer clients"),
    # issues, by number
    _issue(1012, "Implement an Offset Manager and hook offset requests to it"),
    _issue(3356, "Remove ConsumerOffsetChecker, deprecated in 0.9, in 0.11"),
    _issue(3806, "Increase offsets retention default to 7 days"),
    _issue(
        5494,
        "Idempotent producer should not require max.in.flight.requests.per.connection=1",
    ),
    _issue(13598, "Idempotence is not enabled by default with the documented settings"),
    _issue(15583, "The high watermark advances only with min.insync.replicas in sync"),
    _issue(15591, "The first batch on a new partition may be rejected until it expires"),
    _issue(17390, "Remove broker-list in GetOffsetShell"),
    _issue(18641, "AsyncKafkaConsumer could lose records with auto offset commit"),
    # pages of the documentation
    _documentation("documentation: acks", "The producer's setting acks", "producerconfigs_acks"),
    _documentation(
        "documentation: auto.offset.reset",
        "The consumer's setting auto.offset.reset",
        "consumerconfigs_auto.offset.reset",
    ),
    _documentation(
        "documentation: batch.size",
        "The producer's setting batch.size",
        "producerconfigs_batch.size",
    ),
    _documentation(
        "documentation: broker.session.timeout.ms",
        "The broker's setting broker.session.timeout.ms",
        "brokerconfigs_broker.session.timeout.ms",
    ),
    _javadoc(
        "documentation: commitAsync",
        "KafkaConsumer.commitAsync",
        "KafkaConsumer.html#commitAsync()",
    ),
    _javadoc(
        "documentation: commitSync", "KafkaConsumer.commitSync", "KafkaConsumer.html#commitSync()"
    ),
    _javadoc(
        "documentation: ConsumerRebalanceListener",
        "ConsumerRebalanceListener",
        "ConsumerRebalanceListener.html",
    ),
    _documentation(
        "documentation: enable.auto.commit",
        "The consumer's setting enable.auto.commit",
        "consumerconfigs_enable.auto.commit",
    ),
    _documentation(
        "documentation: enable.idempotence",
        "The producer's setting enable.idempotence",
        "producerconfigs_enable.idempotence",
    ),
    _documentation(
        "documentation: expanding a cluster",
        "Operations: expanding your cluster",
        "basic_ops_cluster_expansion",
    ),
    _documentation(
        "documentation: flush", "Operations: application and operating system flush", "appvsosflush"
    ),
    _documentation(
        "documentation: group coordinator", "Consumer offset tracking", "impl_offsettracking"
    ),
    _documentation(
        "documentation: group.id", "The consumer's setting group.id", "consumerconfigs_group.id"
    ),
    _documentation(
        "documentation: isolation.level",
        "The consumer's setting isolation.level",
        "consumerconfigs_isolation.level",
    ),
    Source(
        "documentation: Kafka 0.8",
        "Documentation of Kafka 0.8.1: consumers and ZooKeeper",
        "https://kafka.apache.org/081/implementation/distribution",
    ),
    Source(
        "documentation: KafkaConsumer",
        "Javadoc of KafkaConsumer",
        "https://kafka.apache.org/40/javadoc/org/apache/kafka/clients/consumer/KafkaConsumer.html",
    ),
    Source(
        "documentation: KafkaProducer",
        "Javadoc of KafkaProducer",
        "https://kafka.apache.org/40/javadoc/org/apache/kafka/clients/producer/KafkaProducer.html",
    ),
    _documentation(
        "documentation: linger.ms", "The producer's setting linger.ms", "producerconfigs_linger.ms"
    ),
    _documentation("documentation: log", "Implementation: the log and its files", "log"),
    _documentation(
        "documentation: max.block.ms",
        "The producer's setting max.block.ms",
        "producerconfigs_max.block.ms",
    ),
    _documentation(
        "documentation: max.in.flight",
        "The producer's setting max.in.flight.requests.per.connection",
        "producerconfigs_max.in.flight.requests.per.connection",
    ),
    _documentation(
        "documentation: max.poll.interval.ms",
        "The consumer's setting max.poll.interval.ms",
        "consumerconfigs_max.poll.interval.ms",
    ),
    _documentation(
        "documentation: message.timestamp.type",
        "The topic's setting message.timestamp.type",
        "topicconfigs_message.timestamp.type",
    ),
    _documentation(
        "documentation: metadata.max.age.ms",
        "The producer's setting metadata.max.age.ms",
        "producerconfigs_metadata.max.age.ms",
    ),
    _documentation(
        "documentation: min.insync.replicas",
        "The topic's setting min.insync.replicas",
        "topicconfigs_min.insync.replicas",
    ),
    _documentation("documentation: modifying topics", "Modifying topics", "basic_ops_modify_topic"),
    _documentation(
        "documentation: offsets.retention.minutes",
        "The broker's setting offsets.retention.minutes",
        "brokerconfigs_offsets.retention.minutes",
    ),
    _documentation(
        "documentation: offsets.topic.replication.factor",
        "The broker's setting offsets.topic.replication.factor",
        "brokerconfigs_offsets.topic.replication.factor",
    ),
    _documentation(
        "documentation: partition.assignment.strategy",
        "The consumer's setting partition.assignment.strategy",
        "consumerconfigs_partition.assignment.strategy",
    ),
    _documentation(
        "documentation: partitioner.class",
        "The producer's setting partitioner.class",
        "producerconfigs_partitioner.class",
    ),
    _documentation("documentation: persistence", "Design: persistence", "persistence"),
    _documentation("documentation: producer", "The design of the producer", "theproducer"),
    _documentation(
        "documentation: record format", "Implementation: record batches on disk", "recordbatch"
    ),
    _documentation("documentation: replication", "Design: replication", "replication"),
    _documentation(
        "documentation: replication factor",
        "Operations: increasing the replication factor",
        "basic_ops_increase_replication_factor",
    ),
    _documentation(
        "documentation: retention",
        "The topic's setting retention.bytes",
        "topicconfigs_retention.bytes",
    ),
    _documentation(
        "documentation: retries", "The producer's setting retries", "producerconfigs_retries"
    ),
    _documentation(
        "documentation: segment.bytes",
        "The topic's setting segment.bytes",
        "topicconfigs_segment.bytes",
    ),
    _documentation("documentation: semantics", "Message delivery semantics", "semantics"),
    _javadoc(
        "documentation: storing offsets outside Kafka",
        "KafkaConsumer: storing offsets outside Kafka",
        "KafkaConsumer.html#rebalancecallback",
    ),
    _documentation("documentation: the consumer", "Design: the consumer", "theconsumer"),
    _documentation(
        "documentation: topics and partitions",
        "Main concepts and terminology",
        "intro_concepts_and_terms",
    ),
    _documentation(
        "documentation: transactional.id",
        "The producer's setting transactional.id",
        "producerconfigs_transactional.id",
    ),
    # upgrade notes
    _upgrade("0.11", "0110", "Kafka 0.11"),
    _upgrade("0.9", "090", "Kafka 0.9"),
    _upgrade("2.0", "20", "Kafka 2.0"),
    _upgrade("3.0", "30", "Kafka 3.0"),
    _upgrade("4.0", "40", "Kafka 4.0"),
    # other documents
    Source(
        "documentation: producer of 0.8",
        "Settings of the producer in Kafka 0.8",
        "https://kafka.apache.org/08/configuration/producer-configs",
    ),
    Source(
        "librdkafka#1092",
        "Order of records after retries",
        f"{LIBRDKAFKA}issues/1092",
    ),
    Source(
        "librdkafka#4989",
        "Requests in flight of librdkafka's idempotent producer",
        f"{LIBRDKAFKA}pull/4989",
    ),
    Source(
        "librdkafka: configuration",
        "Settings of librdkafka",
        f"{LIBRDKAFKA}blob/master/CONFIGURATION.md",
    ),
    Source(
        "librdkafka: release 1.0",
        "Release notes of librdkafka 1.0 as quoted by its Python client",
        "https://github.com/confluentinc/confluent-kafka-python/releases/tag/v1.0.0",
    ),
    Source(
        "rabbitmq-server#8507",
        "RabbitMQ: classic queues write without fsync",
        "https://github.com/rabbitmq/rabbitmq-server/pull/8507",
    ),
)
ALL = {source.id: source for source in _KNOWN}
