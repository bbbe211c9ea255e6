"""Rules about the cluster: its brokers, controllers, disks, and how it is reached."""

from __future__ import annotations

from collections.abc import Iterator

from instep.document.showing import counted
from instep.vet.rule import (
    Risk,
    RuleContext,
    Severity,
    TopicContext,
    Violation,
    error_if,
    rule,
)

LOOPBACK = ("localhost", "::1")
FREE_SHARE_LOW, FREE_SHARE_FULL = 0.15, 0.05
QUORUM_MIN = 3
TEMPORARY = ("/tmp/", "/var/tmp/", "/private/tmp/")  # noqa: S108 - only compared
REPLICA_LAG_MS_MAX = 60_000
CLOCK_S_MAX = 5.0
TRANSACTION_LEVEL = 2
# Topics inherit these settings. If brokers disagree, the value depends on a partition's leader.
SAME_ON_ALL_BROKERS = (
    "unclean.leader.election.enable",
    "min.insync.replicas",
    "auto.create.topics.enable",
    "message.max.bytes",
    "log.retention.ms",
    "log.retention.hours",
    "log.retention.minutes",
    "log.retention.bytes",
    "log.cleanup.policy",
    "log.message.timestamp.type",
    "default.replication.factor",
    "transaction.max.timeout.ms",
    "delete.topic.enable",
)


@rule(
    "CLUSTER_SINGLE_BROKER",
    Risk.STANDSTILL,
    when="the only broker stops",
    what="The cluster has one broker.",
    consequence="While it is down, nothing can be published or applied. Its disk has the only copy "
    "of every record.",
    remedy="Run at least three brokers and give topics three replicas.",
    acceptable_when="On a laptop, in tests, and if the source can publish everything again.",
)
def single_broker(case: TopicContext) -> Iterator[Violation]:
    if len(case.cluster.brokers) == 1:
        yield Violation(
            Severity.WARNING,
            "the cluster",
            ("1 broker",),
            "add brokers; locally: instep up --brokers 3",
        )


@rule(
    "CLUSTER_BROKER_DOWN",
    Risk.STANDSTILL,
    when="one more broker stops",
    what="A broker that holds replicas of the topic is down.",
    consequence="Its partitions have one copy less. The next failure may stop publishing, or lose "
    "records if one copy is enough to acknowledge them.",
    remedy="Start the broker, or move its replicas to other brokers.",
    acceptable_when="For minutes, during a rolling restart.",
)
def broker_down(case: TopicContext) -> Iterator[Violation]:
    up = {broker.node for broker in case.cluster.brokers}
    needed = {node for part in case.topic.partitions for node in part.replicas}
    down = sorted(needed - up)
    if down:
        named = ", ".join(map(str, down))
        yield Violation(
            Severity.WARNING,
            "the cluster",
            (
                f"topic {case.topic.name} has replicas on broker {named}",
                f"brokers that are up: {', '.join(map(str, sorted(up)))}",
            ),
            f"start broker {named}",
        )


@rule(
    "CLUSTER_AUTO_CREATES_TOPICS",
    Risk.LOSS,
    when="a publisher misspells the topic or the topic is deleted",
    what="Brokers create a topic when a client names one that does not exist.",
    consequence="A misspelt name becomes a topic that no pipeline reads, by default with one "
    "replica, and the publisher sees no error. A deleted topic comes back empty under the same "
    "name.",
    remedy="Set auto.create.topics.enable=false on every broker and create topics explicitly.",
    acceptable_when="In development.",
)
def auto_creates_topics(case: TopicContext) -> Iterator[Violation]:
    brokers = [
        broker.node
        for broker in case.cluster.brokers
        if case.broker_value(broker, "auto.create.topics.enable").value == "true"
    ]
    if brokers:
        yield Violation(
            Severity.WARNING,
            "the cluster",
            (f"auto.create.topics.enable=true on broker {', '.join(map(str, brokers))}",),
            "set auto.create.topics.enable=false in every broker's server.properties, and"
            " restart them one by one",
        )


@rule(
    "CLUSTER_BROKER_SETTINGS_DIFFER",
    Risk.LOSS,
    when="the leader of a partition moves to a broker with different settings",
    what="Brokers have different values for a setting that topics inherit.",
    consequence="The effective value depends on which broker leads a partition, and changes when "
    "the leader moves.",
    remedy="Set the same value on all brokers, preferably as a cluster-wide default.",
    acceptable_when="While a change is being rolled out.",
)
def broker_settings_differ(case: TopicContext) -> Iterator[Violation]:
    for name in SAME_ON_ALL_BROKERS:
        values: dict[str | None, list[int]] = {}
        for broker in case.cluster.brokers:
            settings = case.known(broker.settings, f"settings of broker {broker.node}")
            if name in settings:
                values.setdefault(settings[name].value, []).append(broker.node)
        if len(values) > 1:
            yield Violation(
                Severity.WARNING,
                "the cluster",
                tuple(
                    f"{name}={value} on broker {', '.join(map(str, nodes))}"
                    for value, nodes in values.items()
                ),
                f"set {name} to the same value on all brokers",
            )


@rule(
    "CLUSTER_TOO_FEW_CONTROLLERS",
    Risk.STANDSTILL,
    when="one controller stops",
    what="The controller quorum has fewer than three voters, or an even number of them.",
    consequence="Without a majority of controllers no leader can be elected, so a broker failure "
    "stops its partitions. An even number tolerates no more failures than the odd number below it.",
    remedy="Run three or five controllers.",
    acceptable_when="On a laptop and in tests.",
)
def too_few_controllers(case: TopicContext) -> Iterator[Violation]:
    voters = case.known(case.cluster.voters, "the controllers")
    # An even number of voters tolerates no more failures than one voter less.
    if len(voters) < QUORUM_MIN or len(voters) % 2 == 0:
        word = "controllers vote"
        if len(voters) == 1:
            word = "controller votes"
        yield Violation(
            Severity.WARNING,
            "the cluster",
            (f"{len(voters)} {word}: {', '.join(map(str, voters))}",),
            "kafka-metadata-quorum.sh add-controller, until three or five vote",
        )


@rule(
    "CLUSTER_DISK_NEARLY_FULL",
    Risk.STANDSTILL,
    when="a broker's disk becomes full",
    what="A log directory of a broker has little free space.",
    consequence="A broker whose log directory is full shuts down, and the partitions that it leads "
    "become unavailable.",
    remedy="Add disk space, or shorten retention where it is longer than needed.",
    acceptable_when="If the logs have stopped growing because retention by size limits them.",
)
def disk_nearly_full(case: TopicContext) -> Iterator[Violation]:
    for broker in case.cluster.brokers:
        for disk in case.known(broker.disks, f"disks of broker {broker.node}"):
            if (
                not disk.total_bytes
                or disk.free_bytes is None
                or disk.free_bytes >= FREE_SHARE_LOW * disk.total_bytes
            ):
                continue
            share = disk.free_bytes / disk.total_bytes
            yield Violation(
                error_if(share < FREE_SHARE_FULL),
                f"broker {broker.node}",
                (
                    f"{disk.path}: {share:.0%} free, {disk.free_bytes / 2**30:.1f} of"
                    f" {disk.total_bytes / 2**30:.1f} GiB",
                ),
                f"free or add space below {disk.path} on broker {broker.node}",
            )


@rule(
    "CLUSTER_LOGS_IN_TMP",
    Risk.LOSS,
    when="the machine restarts or old temporary files are removed",
    what="A broker stores its logs in a directory for temporary files.",
    consequence="Kafka's sample settings do this. Systems empty /tmp at a restart or remove old "
    "files from it, and the broker's segments are deleted.",
    remedy="Set log.dirs to a dedicated directory.",
    acceptable_when="On a laptop and in tests.",
)
def logs_in_tmp(case: TopicContext) -> Iterator[Violation]:
    for broker in case.cluster.brokers:
        for disk in case.known(broker.disks, f"disks of broker {broker.node}"):
            if disk.path.startswith(TEMPORARY):
                yield Violation(
                    Severity.WARNING,
                    f"broker {broker.node}",
                    (f"log.dirs={disk.path}",),
                    "set log.dirs=/var/lib/kafka in server.properties",
                )


@rule(
    "CLUSTER_DISK_OFFLINE",
    Risk.LOSS,
    when="another copy is lost before the disk is back",
    what="A broker has taken one of its log directories offline.",
    consequence="The replicas in it are no longer written: each of their partitions has one copy "
    "less.",
    remedy="Repair or replace the disk and restart the broker.",
    acceptable_when="Never for long.",
)
def disk_offline(case: TopicContext) -> Iterator[Violation]:
    for broker in case.cluster.brokers:
        for disk in case.known(broker.disks, f"disks of broker {broker.node}"):
            if disk.error:
                yield Violation(
                    Severity.ERROR,
                    f"broker {broker.node}",
                    (f"{disk.path}: error {disk.error}",),
                    f"repair the disk of {disk.path}, and restart broker {broker.node}",
                )


@rule(
    "CLUSTER_OFFSETS_TOPIC_UNDER_REPLICATED",
    Risk.STANDSTILL,
    when="a broker stops",
    what="The topic of the groups' offsets has fewer replicas than the cluster allows.",
    consequence="Groups whose coordinator is down can neither commit nor be described. A pipeline "
    "continues, because its position is in the ledger, but its mirror group stops, and so do other "
    "consumers.",
    remedy="Raise the replicas of __consumer_offsets to three.",
    acceptable_when="If only instep reads from this cluster.",
)
def offsets_topic_under_replicated(case: RuleContext) -> Iterator[Violation]:
    yield from _under_replicated(case, "__consumer_offsets", Severity.NOTE)


@rule(
    "CLUSTER_TRANSACTION_LOG_UNDER_REPLICATED",
    Risk.LOSS,
    when="a broker stops while transactions are being committed",
    what="A publisher or relay uses transactions, but the transaction log has too few replicas or "
    "min.insync.replicas=1.",
    consequence="The outcome of a transaction can be lost with one disk: committed records may be "
    "aborted, or the publisher may stop.",
    remedy="Give __transaction_state three replicas and min.insync.replicas=2.",
    acceptable_when="If no publisher uses transactions.",
)
def transaction_log_under_replicated(case: TopicContext) -> Iterator[Violation]:
    if case.uses_transactions:
        yield from _under_replicated(
            case,
            "__transaction_state",
            error_if(case.must_not_lose, otherwise=Severity.NOTE),
            in_sync_min=2,
        )


def _under_replicated(
    case: TopicContext, topic: str, severity: Severity, in_sync_min: int = 1
) -> Iterator[Violation]:
    if topic in case.cluster.internal:
        replicas, in_sync = case.cluster.internal[topic]
    elif topic == "__transaction_state":
        # It does not exist yet. The brokers' settings say how it will be created.
        replicas = min(
            int(case.broker_value(broker, "transaction.state.log.replication.factor").value or 0)
            for broker in case.cluster.brokers
        )
        in_sync = min(
            int(case.broker_value(broker, "transaction.state.log.min.isr").value or 0)
            for broker in case.cluster.brokers
        )
    else:
        return
    wanted = min(3, max(2, len(case.cluster.brokers)))
    weak_in_sync = in_sync is not None and in_sync < in_sync_min
    if replicas < wanted or weak_in_sync:
        steps = []
        if len(case.cluster.brokers) < wanted:
            steps.append(f"add brokers until there are {wanted}")
        if replicas < wanted:
            steps.append(f"instep topics replicate {topic} -r {wanted} --execute")
        if weak_in_sync:
            steps.append(
                f"instep topics alter {topic} -c min.insync.replicas={in_sync_min} --execute"
            )
        yield Violation(
            severity,
            f"topic {topic}",
            (counted(replicas, "replica"), f"min.insync.replicas={in_sync}"),
            "; then ".join(steps),
        )


@rule(
    "CLUSTER_SINGLE_BOOTSTRAP_ADDRESS",
    Risk.STANDSTILL,
    when="that broker is down when a pipeline starts",
    what="The settings name only one of several brokers.",
    consequence="A client learns the other brokers from the first one that answers. If that one is "
    "down, nothing can start.",
    remedy="Name two or three brokers in kafka.bootstrap.",
    acceptable_when="If the address is a load balancer or a name that resolves to several brokers.",
)
def single_bootstrap_address(case: TopicContext) -> Iterator[Violation]:
    if len(case.cluster.bootstrap) == 1 and len(case.cluster.brokers) > 1:
        addresses = ",".join(f"{broker.host}:{broker.port}" for broker in case.cluster.brokers)
        yield Violation(
            Severity.WARNING,
            "kafka.bootstrap",
            (
                f'kafka.bootstrap="{case.cluster.bootstrap[0]}"',
                f"{len(case.cluster.brokers)} brokers",
            ),
            f'[kafka]\nbootstrap = "{addresses}"',
        )


@rule(
    "CLUSTER_NOT_ENCRYPTED",
    Risk.EXPOSURE,
    when="someone listens on the network",
    what="Connections to brokers on other machines are not encrypted.",
    consequence="Records can be read and changed in transit, and with SASL_PLAINTEXT and the "
    "mechanism PLAIN the password as well.",
    remedy="Use SSL or SASL_SSL.",
    acceptable_when="On a network that is itself encrypted, such as a service mesh.",
)
def not_encrypted(case: TopicContext) -> Iterator[Violation]:
    remote = [
        f"{broker.host}:{broker.port}"
        for broker in case.cluster.brokers
        if not is_loopback(broker.host)
    ]
    if remote and case.cluster.protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
        protocol = "SSL"
        if case.cluster.protocol.startswith("SASL"):
            protocol = "SASL_SSL"
        yield Violation(
            Severity.WARNING,
            "kafka.security",
            (f'protocol="{case.cluster.protocol}" to {", ".join(remote)}',),
            f'[kafka.security]\nprotocol = "{protocol}"\nca = "ca.pem"',
        )


@rule(
    "CLUSTER_NO_AUTHORIZER",
    Risk.LOSS,
    when="someone deletes the topic or publishes to it by mistake",
    what="The cluster has no authorizer, so it checks no permissions.",
    consequence="Anyone who can reach a broker can delete the topic, change its settings, or "
    "publish to it.",
    remedy="Set authorizer.class.name and grant each user what it needs.",
    acceptable_when="If only trusted programs can reach the brokers.",
)
def no_authorizer(case: TopicContext) -> Iterator[Violation]:
    brokers = [
        broker.node
        for broker in case.cluster.brokers
        if not case.broker_value(broker, "authorizer.class.name").value
    ]
    if brokers:
        yield Violation(
            Severity.NOTE,
            "the cluster",
            (f"authorizer.class.name is empty on broker {', '.join(map(str, brokers))}",),
            "set authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer in"
            " server.properties",
        )


@rule(
    "CLUSTER_REPLICA_LAG_TIMEOUT_LONG",
    Risk.STANDSTILL,
    when="a broker hangs without dying",
    what="A replica that lags counts as in sync for a long time.",
    consequence="A record is acknowledged when every in-sync replica has it. A replica that hangs "
    "delays all publishers for that time.",
    remedy="Leave replica.lag.time.max.ms at its default of 30 s.",
    acceptable_when="If links between brokers are slow.",
)
def replica_lag_timeout_long(case: TopicContext) -> Iterator[Violation]:
    for broker in case.cluster.brokers:
        lag = case.broker_value(broker, "replica.lag.time.max.ms")
        if len(case.cluster.brokers) > 1 and int(lag.value or 0) > REPLICA_LAG_MS_MAX:
            yield Violation(
                Severity.WARNING,
                f"broker {broker.node}",
                (f"replica.lag.time.max.ms={lag.value} ({lag.source})",),
                "set replica.lag.time.max.ms=30000 in server.properties",
            )


@rule(
    "CLUSTER_OFFSETS_RETENTION_SHORT",
    Risk.REPETITION,
    when="a group has no members for that long",
    what="Offsets of idle groups are deleted before the longest planned outage is over.",
    consequence="Consumers start again from the beginning or skip records. Pipelines are not "
    "affected, because their position is in the ledger, but their mirror groups disappear.",
    remedy="Leave offsets.retention.minutes at its default of 7 days.",
    acceptable_when="If only instep reads from this cluster.",
)
def offsets_retention_short(case: RuleContext) -> Iterator[Violation]:
    for broker in case.cluster.brokers:
        kept = case.broker_value(broker, "offsets.retention.minutes")
        if int(kept.value or 0) * 60_000 < case.outage_ms:
            yield Violation(
                Severity.NOTE,
                f"broker {broker.node}",
                (f"offsets.retention.minutes={kept.value} ({kept.source})",),
                "set offsets.retention.minutes=10080 in server.properties",
            )


@rule(
    "CLUSTER_TRANSACTION_PROTOCOL_OLD",
    Risk.STANDSTILL,
    when="a record of an ended transaction arrives late and leaves a transaction open forever",
    what="A publisher or relay uses transactions, but the cluster has not enabled the newer "
    "transaction protocol.",
    consequence="With the older protocol, a delayed record can join a transaction that has already "
    "ended. That transaction stays open: pipelines read only committed records and wait at that "
    "place.",
    remedy="Upgrade the feature transaction.version to 2 (Kafka 4.0 and newer).",
    acceptable_when="While brokers older than Kafka 4.0 are still in use.",
)
def transaction_protocol_old(case: TopicContext) -> Iterator[Violation]:
    if case.uses_transactions:
        level = case.known(case.cluster.features, "the cluster's features").get(
            "transaction.version", 0
        )
        if level < TRANSACTION_LEVEL:
            yield Violation(
                Severity.NOTE,
                "the cluster",
                (f"transaction.version={level}",),
                f"kafka-features.sh upgrade --feature transaction.version={TRANSACTION_LEVEL}",
            )


@rule(
    "CLUSTER_ELIGIBLE_LEADER_REPLICAS_OFF",
    Risk.LOSS,
    when="the replicas of a partition fail one after the other and the last one loses the cache of "
    "its disk",
    what="The cluster does not remember which replicas are complete once they are out of sync.",
    consequence="Only the last in-sync replica may become leader again. If it comes back without "
    "its newest records, acknowledged records are lost, even if another replica still has them.",
    remedy="Upgrade the feature eligible.leader.replicas.version to 1 (Kafka 4.0 and newer).",
    acceptable_when="If brokers never lose power at the same time.",
)
def eligible_leader_replicas_off(case: TopicContext) -> Iterator[Violation]:
    level = case.known(case.cluster.features, "the cluster's features").get(
        "eligible.leader.replicas.version", 0
    )
    if level < 1 and len(case.cluster.brokers) > 1:
        yield Violation(
            Severity.NOTE,
            "the cluster",
            (f"eligible.leader.replicas.version={level}",),
            "kafka-features.sh upgrade --feature eligible.leader.replicas.version=1",
        )


@rule(
    "CLUSTER_CLOCK_DIFFERS",
    Risk.LOSS,
    when="a time matters: a start time, a place in the log, retention",
    what="The clock of the cluster differs from the clock of this machine.",
    consequence="Freshness and lag in seconds are wrong by the difference, `start` and places such "
    "as @-1h select other records than intended, and records are deleted earlier or later than "
    "planned.",
    remedy="Synchronize all clocks with NTP.",
    acceptable_when="Never for long.",
)
def clock_differs(case: TopicContext) -> Iterator[Violation]:
    ahead_s = case.known(case.cluster.clock_ahead_s, "the cluster's clock")
    if abs(ahead_s) > CLOCK_S_MAX:
        word = "ahead of" if ahead_s > 0 else "behind"
        yield Violation(
            Severity.WARNING,
            "the cluster",
            (f"its clock is {abs(ahead_s):.1f} s {word} ours",),
            "synchronize the clocks, preferably with NTP",
        )


@rule(
    "CLUSTER_ALLOWS_EVERYONE_WITHOUT_ACL",
    Risk.LOSS,
    when="someone deletes the topic or publishes to it by mistake",
    what="The cluster lets everyone use a topic for which there is no ACL.",
    consequence="With allow.everyone.if.no.acl.found=true, a topic without an ACL is open to "
    "anyone who can reach a broker.",
    remedy="Set allow.everyone.if.no.acl.found=false and grant each user what it needs.",
    acceptable_when="While ACLs are being introduced.",
)
def allows_everyone_without_acl(case: TopicContext) -> Iterator[Violation]:
    brokers = _brokers_with(case, "allow.everyone.if.no.acl.found", "true")
    if brokers:
        yield Violation(
            Severity.NOTE,
            "the cluster",
            (f"allow.everyone.if.no.acl.found=true on broker {brokers}",),
            "set allow.everyone.if.no.acl.found=false in server.properties of every broker",
        )


@rule(
    "CLUSTER_CONTROLLED_SHUTDOWN_OFF",
    Risk.STANDSTILL,
    when="a broker is restarted",
    what="A broker that is stopped does not hand over its partitions first.",
    consequence="Its partitions have no leader until the cluster notices, as after a crash. "
    "Publishers and pipelines wait.",
    remedy="Leave controlled.shutdown.enable at its default, true.",
    acceptable_when="Never.",
)
def controlled_shutdown_off(case: TopicContext) -> Iterator[Violation]:
    brokers = _brokers_with(case, "controlled.shutdown.enable", "false")
    if brokers:
        yield Violation(
            Severity.WARNING,
            "the cluster",
            (f"controlled.shutdown.enable=false on broker {brokers}",),
            "set controlled.shutdown.enable=true in server.properties of every broker",
        )


@rule(
    "CLUSTER_TRANSACTION_VERIFICATION_OFF",
    Risk.STANDSTILL,
    when="a record of an ended transaction arrives late",
    what="A publisher or relay uses transactions, but the brokers do not check that the "
    "transaction of a record is open.",
    consequence="Such a record opens a transaction that no one ends. Pipelines wait behind it "
    "forever.",
    remedy="Leave transaction.partition.verification.enable at its default, true.",
    acceptable_when="Never with transactions.",
)
def transaction_verification_off(case: TopicContext) -> Iterator[Violation]:
    brokers = _brokers_with(case, "transaction.partition.verification.enable", "false")
    if brokers and case.uses_transactions:
        yield Violation(
            Severity.WARNING,
            "the cluster",
            (f"transaction.partition.verification.enable=false on broker {brokers}",),
            "set transaction.partition.verification.enable=true in server.properties of every"
            " broker",
        )


def _brokers_with(case: TopicContext, name: str, value: str) -> str:
    """Return the brokers with this value of a setting, except those that do not know it."""
    found = []
    for broker in case.cluster.brokers:
        values = case.known(broker.settings, f"settings of broker {broker.node}")
        if name in values and values[name].value == value:
            found.append(str(broker.node))
    return ", ".join(found)


def is_loopback(host: str | None) -> bool:
    return host is None or host in LOOPBACK or host.startswith("127.")
