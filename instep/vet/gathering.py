"""Read a snapshot from a live cluster and the databases of pipelines and relays.

Nothing is changed.

What cannot be read stays unknown, with the reason. Only a cluster that does not answer is an error.
"""

from __future__ import annotations

import binascii
import difflib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from instep import __version__, errors, settings, sinks
from instep.document import partition as hashing
from instep.document.decoding import Decoder, record_of
from instep.document.reasons import Unfit
from instep.kafka import (
    admin_extras,
    configs,
    groups,
    layout,
    offsets,
    position_topic,
    reading,
    record_writer,
    topics,
)
from instep.kafka.admin import consumer_groups
from instep.kafka.connection import Cluster
from instep.relay import position as relay_positions
from instep.sinks import facts, inspection, target
from instep.sinks.target import Target
from instep.sources import facts as source_facts
from instep.streams import starts
from instep.vet import clients, sampling, snapshot

SAMPLED_PER_PARTITION = 20
STATUSES_MAX = 1_000
OPEN_TRANSACTION_S = 60
SPARK_READ = ("spark.speculation",)  # the rules check no others, and those may contain secrets
INTERNAL = ("__consumer_offsets", "__transaction_state")

Fact = TypeVar("Fact")


def gather(
    cluster: Cluster,
    declared: settings.Settings,
    names: list[str],
    loaded: settings.Loaded | None = None,
    relays: list[str] | None = None,
    streams: list[str] | None = None,
) -> snapshot.Snapshot:
    """Read everything that the rules need about these pipelines and relays.

    `loaded` has the origin of each setting, if the settings were read from a file.
    """
    return Gathering(cluster, declared, loaded).of(names, relays or [], streams or [])


class Gathering:
    """Reads the snapshot; `unknown` collects what could not be found out."""

    def __init__(
        self, cluster: Cluster, declared: settings.Settings, loaded: settings.Loaded | None
    ) -> None:
        self.cluster = cluster
        self.declared = declared
        self.loaded = loaded
        self.unknown: dict[str, str] = {}
        self.now_s = time.time()  # one time for all ages

    def of(
        self, names: list[str], relay_names: list[str], stream_names: list[str]
    ) -> snapshot.Snapshot:
        relays = {name: settings.relay(self.declared, name) for name in relay_names}
        streams = {name: settings.stream(self.declared, name) for name in stream_names}
        pipelines = {name: settings.pipeline(self.declared, name) for name in names}
        # Not through `_try`: nothing can be checked without the cluster.
        self.layouts = layout.read(self.cluster)
        # Before the topics, whose records are decoded with the mapping of each target.
        databases = {name: facts.read(name, pipeline) for name, pipeline in pipelines.items()}
        self.targets = {
            name: self._target(name, pipelines[name], databases[name]) for name in names
        }
        wanted = dict.fromkeys(
            [
                *(pipeline.topic for pipeline in pipelines.values()),
                *(relay.topic for relay in relays.values()),
                *(position_topic.of_relay(name).topic for name in relays),
                *(stream.source for stream in streams.values()),
                *(stream.target for stream in streams.values()),
                *(position_topic.of_stream(name, 0).topic for name in streams),
            ]
        )
        with admin_extras.connect(self.cluster) as extras:
            log_dirs = extras.log_dirs([*wanted]) if extras else None
            known_topics = {name: self._topic(name, extras, log_dirs) for name in wanted}
            known_cluster = self._cluster(extras, log_dirs)
        return snapshot.Snapshot(
            taken_at=datetime.now(UTC),
            instep=__version__,
            outage_hours_max=self.declared.vet.outage_hours_max,
            cluster=known_cluster,
            topics=known_topics,
            near_topics=self._near_topics(wanted),
            publishers=_publishers(self.declared),
            pipelines={
                name: self._pipeline(name, pipeline, known_topics[pipeline.topic])
                for name, pipeline in pipelines.items()
            },
            databases=databases,
            writers={name: _writer(declared) for name, declared in self.declared.pipelines.items()},
            relays={name: self._relay(name, relay) for name, relay in relays.items()},
            declared_relays={
                name: _declared_relay(relay) for name, relay in self.declared.relays.items()
            },
            streams={name: self._stream(name, stream) for name, stream in streams.items()},
            declared_streams={
                name: snapshot.DeclaredStream(
                    source=stream.source, target=stream.target, guarantee=stream.guarantee
                )
                for name, stream in self.declared.streams.items()
            },
            readers={name: _reader(name, one) for name, one in self.declared.readers.items()},
            spark=snapshot.SparkFacts(
                master=self.declared.spark.master,
                conf=_only(self.declared.spark.conf, SPARK_READ),
            ),
            accepted=dict(self.declared.vet.accept),
            unknown=self.unknown,
        )

    # --- the cluster ------------------------------------------------------------------------------

    def _cluster(
        self, extras: admin_extras.AdminExtras | None, log_dirs: list[admin_extras.LogDir] | None
    ) -> snapshot.ClusterFacts:
        racks: dict[int, str | None] | None = None
        quorum, features, clock_ahead_s = None, None, None
        if extras is not None:
            racks, quorum, features = extras.racks(), extras.quorum(), extras.features()
        if quorum is not None and quorum.leader_clock_s is not None:
            clock_ahead_s = quorum.leader_clock_s - time.time()
        return snapshot.ClusterFacts(
            cluster_id=self.layouts.cluster_id,
            bootstrap=[
                address.strip() for address in self.cluster.bootstrap.split(",") if address.strip()
            ],
            protocol=self.cluster.kafka.security.protocol,
            brokers=[
                self._broker(node, (racks or {}).get(node), log_dirs)
                for node in self.layouts.brokers
            ],
            voters=list(quorum.voters) if quorum else None,
            features=features,
            clock_ahead_s=clock_ahead_s,
            internal={
                name: self._internal(name) for name in INTERNAL if name in self.layouts.topics
            },
        )

    def _broker(
        self, node: int, rack: str | None, log_dirs: list[admin_extras.LogDir] | None
    ) -> snapshot.BrokerFacts:
        host, port = self.layouts.brokers[node]
        values = self._try(
            f"settings of broker {node}", lambda: configs.of_brokers(self.cluster, [node])[node]
        )
        disks = [
            snapshot.Disk(
                path=log_dir.path,
                total_bytes=log_dir.total_bytes,
                free_bytes=log_dir.free_bytes,
                error=log_dir.error,
            )
            for log_dir in log_dirs or ()
            if log_dir.broker == node
        ]
        return snapshot.BrokerFacts(
            node=node,
            host=host,
            port=port,
            rack=rack,
            settings=_values(values) if values else None,
            disks=disks or None,  # a broker reports none to a user without the right to see them
        )

    def _internal(self, name: str) -> tuple[int, int | None]:
        replicas = min(
            (len(part.replicas) for part in self.layouts.topics[name].partitions), default=0
        )
        in_sync = self._try(
            f"settings of topic {name}", lambda: layout.min_in_sync(self.cluster, [name]).get(name)
        )
        return replicas, in_sync

    def _near_topics(self, wanted: Iterable[str]) -> dict[str, str]:
        """Return, for each topic that does not exist, the one with the most similar name."""
        existing = [name for name in self.layouts.topics if not name.startswith("__")]
        similar = {
            name: difflib.get_close_matches(name, existing, n=1)
            for name in wanted
            if name not in self.layouts.topics
        }
        return {name: close[0] for name, close in similar.items() if close}

    # --- topics -----------------------------------------------------------------------------------

    def _topic(
        self,
        name: str,
        extras: admin_extras.AdminExtras | None,
        log_dirs: list[admin_extras.LogDir] | None,
    ) -> snapshot.TopicFacts | None:
        if name not in self.layouts.topics:
            return None
        topic_layout = self.layouts.topics[name]
        values = self._try(
            f"settings of topic {name}", lambda: configs.of_topics(self.cluster, [name])[name]
        )
        spans = (
            self._try(
                f"offsets of topic {name}",
                lambda: offsets.spans(
                    self.cluster, [(name, number) for number in topic_layout.with_leader]
                ),
            )
            or {}
        )
        sizes = {
            (log_dir.broker, number): size
            for log_dir in log_dirs or ()
            for (topic, number), size in log_dir.replicas.items()
            if topic == name
        }
        opened = (
            self._try(
                f"open transactions of topic {name}", lambda: self._open_transactions(name, spans)
            )
            or {}
        )
        return snapshot.TopicFacts(
            name=name,
            id=(
                self._try(f"id of topic {name}", lambda: topics.ids(self.cluster, [name])[name])
                or ""
            ),
            settings=_values(values) if values else None,
            partitions=[
                _partition(
                    part, spans.get((name, part.partition)), sizes, opened.get(part.partition)
                )
                for part in topic_layout.partitions
            ],
            sample=self._try(f"newest records of topic {name}", lambda: self._sample(name, spans)),
            idempotent_producers=extras.producer_count(name, topic_layout.with_leader)
            if extras
            else None,
            span_s=self._try(f"oldest record of topic {name}", lambda: self._span_s(name, spans)),
        )

    def _open_transactions(
        self, topic: str, spans: Mapping[offsets.TopicPartitionPair, offsets.Span]
    ) -> dict[int, int]:
        """Return the first offset of a transaction that has been open for a while, by partition."""
        held_back = {
            number: span.committed_end
            for (_, number), span in spans.items()
            if span.committed_end < span.end
        }
        if not held_back:
            return {}
        # The committed end is the first record of the open transaction. If an offset that is a
        # minute old comes after it, the transaction has been open for longer than that.
        limit = datetime.fromtimestamp(self.now_s - OPEN_TRANSACTION_S, UTC)
        young = offsets.at_time(self.cluster, topic, list(held_back), limit)
        return {number: first for number, first in held_back.items() if first < young[number]}

    def _sample(
        self, topic: str, spans: Mapping[offsets.TopicPartitionPair, offsets.Span]
    ) -> snapshot.RecordSample:
        """Return what the newest records show."""
        ranges = {
            number: (
                max(span.first, span.committed_end - SAMPLED_PER_PARTITION),
                span.committed_end,
            )
            for (_, number), span in spans.items()
        }
        records = list(reading.read(self.cluster, topic, ranges))
        count = len(self.layouts.topics[topic].partitions)
        keyed = [record for record in records if record.key is not None]
        # -1: a record without a timestamp.
        times = [record.timestamp_ms / 1000 for record in records if record.timestamp_ms >= 0]
        return snapshot.RecordSample(
            records=len(records),
            keyless=len(records) - len(keyed),
            in_murmur2_place=sum(
                hashing.partition_of(record.key or b"", count) == record.partition
                for record in keyed
            ),
            in_crc32_place=sum(
                binascii.crc32(record.key or b"") % count == record.partition for record in keyed
            ),
            largest_bytes=max(
                (len(record.key or b"") + len(record.value or b"") for record in records), default=0
            ),
            ahead_s_max=max(0.0, max(times) - self.now_s) if times else 0.0,
            newest_age_s=max(0.0, self.now_s - max(times)) if times else None,
            unreadable=self._unreadable(topic, records),
            before_2000=sum(when < sampling.YEAR_2000_S for when in times),
            seen={
                name: sampling.read_sample(to.mapping, records, self.now_s)
                for name, to in self._followers(topic).items()
            },
        )

    def _followers(self, topic: str) -> dict[str, Target]:
        """Return the known targets of the pipelines that read a topic as it is.

        What a transformation yields of the records is not known without Spark.
        """
        return {
            name: to
            for name, to in self.targets.items()
            if to is not None and to.topic == topic and to.slots == 1
        }

    def _unreadable(self, topic: str, records: list[offsets.LogRecord]) -> dict[str, int]:
        """Return how many records each pipeline of the topic could not apply, by reason."""
        counts: dict[str, int] = {}
        for name, to in self._followers(topic).items():
            decoder = Decoder(to.mapping)
            for record in records:
                reason = _refusal(decoder, record)
                if reason:
                    counts[f"{name}: {reason}"] = counts.get(f"{name}: {reason}", 0) + 1
        return counts

    def _span_s(
        self, topic: str, spans: Mapping[offsets.TopicPartitionPair, offsets.Span]
    ) -> float | None:
        firsts = {
            number: span.first
            for (_, number), span in spans.items()
            if span.first < span.committed_end
        }
        records = offsets.first_records(self.cluster, topic, firsts).values()
        times = [
            record.timestamp_ms / 1000
            for record in records
            if record is not None and record.timestamp_ms >= 0
        ]
        return max(0.0, self.now_s - min(times)) if times else None

    # --- pipelines --------------------------------------------------------------------------------

    def _target(
        self, name: str, pipeline: settings.Pipeline, database: facts.Facts
    ) -> Target | None:
        if database.unreachable or database.unfit:
            reason = database.unreachable or (database.unfit or ("",))[0]
            # The names under which rules ask for these facts (`RuleContext.known`).
            for what in ("database", "ledger", "dead letters", "parked documents", "newest events"):
                self.unknown[f"{what} of {name}"] = reason.partition("\n")[0]
            return None
        return self._try(f"target of {name}", lambda: inspection.inspect(name, pipeline))

    def _pipeline(
        self, name: str, pipeline: settings.Pipeline, topic: snapshot.TopicFacts | None
    ) -> snapshot.PipelineFacts:
        to = self.targets[name]
        stored = (
            self._try(
                f"ledger of {name}",
                lambda: self._read_database(
                    to, topic, wants_statuses=bool(pipeline.transitions or pipeline.due)
                ),
            )
            if to
            else None
        )
        ledger, dead, parked, statuses = stored or (None, None, None, None)
        group = groups.mirror_name(name)
        members = self._try(
            f"members of group {group}", lambda: consumer_groups.members(self.cluster, group)
        )
        foreign = self._try(
            f"offsets of group {group}", lambda: self._foreign_offsets(group, pipeline.topic, topic)
        )
        group_members, group_foreign, status_column = None, None, None
        if members is not None:
            group_members = [str(member) for member in members]
        if foreign is not None:
            group_foreign = [f"{pipeline.topic} {partition}" for partition in foreign]
        if to is not None and to.mapping.status_column:
            status_column = to.mapping.status_column.name
        return snapshot.PipelineFacts(
            topic=pipeline.topic,
            guarantee=pipeline.guarantee,
            start=pipeline.start,
            target=target.shown(target.database_url(pipeline.target)),
            table=pipeline.table,
            missing=pipeline.missing,
            deletes=pipeline.on_delete,
            history=pipeline.history,
            batch_rows_max=pipeline.batch_rows_max,
            order=pipeline.event.order,
            at=pipeline.event.at,
            order_is_time=to.mapping.order_is_time if to else None,
            transitions=bool(pipeline.transitions),
            ledger=ledger,
            dead_letters=dead,
            parked_documents=parked,
            group_members=group_members,
            group_foreign=group_foreign,
            password_written=self._writes_password(f"pipelines.{name}.target", pipeline.target),
            status_column=status_column,
            followers=dict(pipeline.transitions),
            statuses=statuses,
            due=dict(pipeline.due),
        )

    def _foreign_offsets(
        self, group: str, name: str, topic: snapshot.TopicFacts | None
    ) -> list[int]:
        """Return the partitions in which another program has committed to the mirror group."""
        if topic is None:
            return []
        return groups.foreign_offsets(
            self.cluster, group, name, [partition.partition for partition in topic.partitions]
        )

    def _writes_password(self, setting: str, url: str) -> bool | None:
        """Return whether a database's password is in the settings file itself."""
        if self.loaded is None:
            return None
        origin = self.loaded.origin(setting)
        in_file = "${" not in origin and not origin.startswith(settings.ENVIRONMENT_PREFIX)
        return bool(target.database_url(url).password) and in_file

    def _read_database(
        self, to: Target, topic: snapshot.TopicFacts | None, *, wants_statuses: bool
    ) -> tuple[list[snapshot.PartitionProgress], int, int, list[str]]:
        """Read the ledger, the size of the quarantine, and the statuses in the table."""
        sink = sinks.open_sink(to)
        try:
            with sink.translated():
                positions, dead, parked = (
                    sink.ledger.positions(),
                    sink.journal.dead_letter_count(),
                    sink.journal.parked_count(),
                )
                statuses = sorted(sink.table.statuses(STATUSES_MAX)) if wants_statuses else []
        finally:
            sink.close()
        ends = (
            {part.partition: (part.first, part.end) for part in topic.partitions} if topic else {}
        )
        behind = {
            number: row.next_offset
            for number, row in positions.items()
            if topic
            # Offsets in a topic that was deleted mean nothing in the new one.
            and topics.kafka_spelling(row.topic_id) == topic.id
            and (ends.get(number, (None, None))[1] or 0) > row.next_offset
        }
        next_records = (
            self._try(
                f"waiting records of {to.pipeline}", lambda: self._next_records(to.topic, behind)
            )
            or {}
        )
        ages = {
            number: self.now_s - record.timestamp_ms / 1000
            for number, record in next_records.items()
            if record and record.timestamp_ms >= 0
        }
        rows = [
            snapshot.PartitionProgress(
                partition=number,
                next_offset=row.next_offset,
                topic_id=topics.kafka_spelling(row.topic_id),
                cluster_id=row.cluster_id,
                waiting_age_s=ages.get(number),
            )
            for number, row in sorted(positions.items())
        ]
        return rows, dead, parked, statuses

    def _next_records(
        self, topic: str, behind: Mapping[int, int]
    ) -> dict[int, offsets.LogRecord | None]:
        if behind:
            return offsets.first_records(self.cluster, topic, behind)
        return {}

    # --- relays -----------------------------------------------------------------------------------

    def _relay(self, name: str, relay: settings.Relay) -> snapshot.RelayFacts:
        place = position_topic.of_relay(name)
        source = source_facts.read(name, relay)
        if source.database.unreachable:
            self.unknown[f"source of relay {name}"] = source.database.unreachable.partition("\n")[0]
        return snapshot.RelayFacts(
            topic=relay.topic,
            guarantee=relay.guarantee,
            outbox=relay.outbox,
            position_topic=place.topic,
            transaction_timeout_ms=record_writer.TRANSACTION_TIMEOUT_MS,
            source_facts=source,
            position=self._position(name) if place.topic in self.layouts.topics else None,
            groups=self._try(
                f"groups that read topic {relay.topic}", lambda: self._reading_groups(relay.topic)
            ),
            password_written=self._writes_password(f"relays.{name}.source", relay.source),
        )

    def _position(self, name: str) -> snapshot.PublishedPosition | None:
        """Return what the last position says about topic and source."""
        value = self._try(
            f"position of relay {name}",
            lambda: position_topic.read(self.cluster, position_topic.of_relay(name)),
        )
        found = value and self._try(
            f"position of relay {name}", lambda: relay_positions.decode(value, name)
        )
        if not found:
            return None
        return snapshot.PublishedPosition(
            topic_id=topics.kafka_spelling(found.topic_id),
            cluster_id=found.cluster_id,
            partitions=found.partitions,
            source_id=found.source_id,
        )

    # --- streams ----------------------------------------------------------------------------------

    def _stream(self, name: str, stream: settings.Stream) -> snapshot.StreamFacts:
        place = position_topic.of_stream(name, 0)
        return snapshot.StreamFacts(
            source=stream.source,
            target=stream.target,
            guarantee=stream.guarantee,
            position_topic=place.topic,
            transaction_timeout_ms=record_writer.TRANSACTION_TIMEOUT_MS,
            position=self._stream_position(name),
            groups=self._try(
                f"groups that read topic {stream.target}",
                lambda: self._reading_groups(stream.target),
            ),
        )

    def _stream_position(self, name: str) -> snapshot.PublishedPosition | None:
        """Return what the newest position says about the output topic."""
        found = self._try(
            f"position of stream {name}", lambda: starts.read_positions(self.cluster, name)
        )
        newest = max((found or {}).values(), key=lambda one: one.at_ms, default=None)
        if newest is None:
            return None
        return snapshot.PublishedPosition(
            topic_id=topics.kafka_spelling(newest.target_id),
            cluster_id=newest.cluster_id,
            partitions=newest.target_partitions,
        )

    def _reading_groups(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets for a topic, except the pipelines' own."""
        own = {groups.mirror_name(name) for name in self.declared.pipelines}
        listed, failures = consumer_groups.listings(self.cluster)
        if failures:  # a list with gaps must not count as the whole
            raise failures[0]
        names = [one.group for one in listed if one.group not in own]
        committed = groups.positions_of_each(self.cluster, names)
        return [
            name
            for name, positions in committed.items()
            if any(pair[0] == topic for pair in positions)
        ]

    def _try(self, what: str, read: Callable[[], Fact]) -> Fact | None:
        try:
            return read()
        except errors.InstepError as error:
            self.unknown[what] = error.what
            return None


def _refusal(decoder: Decoder, record: offsets.LogRecord) -> str | None:
    try:
        event = decoder.decode(record_of(record))
    except Unfit as unfit:
        return unfit.reason.value
    return event.refusal.reason.value if event.refusal else None


def _partition(
    part: layout.Partition,
    span: offsets.Span | None,
    sizes: Mapping[tuple[int, int], int],
    open_from: int | None,
) -> snapshot.PartitionFacts:
    return snapshot.PartitionFacts(
        partition=part.partition,
        leader=part.leader,
        replicas=list(part.replicas),
        in_sync=list(part.in_sync),
        first=span.first if span else None,
        end=span.end if span else None,
        size_bytes=sizes.get((part.leader, part.partition)) if part.leader is not None else None,
        open_from=open_from,
    )


def _values(given: configs.Settings) -> snapshot.Values:
    """Return the settings without those whose names suggest a secret."""
    return {
        name: snapshot.EffectiveSetting(setting.value, setting.source)
        for name, setting in given.items()
        if not settings.SECRET.search(name)
    }


def _writer(pipeline: settings.Pipeline) -> snapshot.DeclaredWriter:
    shown = target.shown(target.database_url(pipeline.target))
    return snapshot.DeclaredWriter(
        target=shown, table=pipeline.table, columns=list(pipeline.columns), topic=pipeline.topic
    )


def _publishers(declared: settings.Settings) -> dict[str, snapshot.PublisherFacts]:
    """Return the declared publishers, and the bridges: these publish as instep's publisher does."""
    bridges = {
        f"bridge {name}": snapshot.PublisherFacts(topic=bridge.topic, client="instep")
        for name, bridge in declared.bridges.items()
    }
    return bridges | {name: _publisher(one) for name, one in declared.publishers.items()}


def _publisher(publisher: settings.DeclaredPublisher) -> snapshot.PublisherFacts:
    # Settings files have true and false; Python would write True and False.
    texts = {
        name: msgspec.json.encode(value).decode() if isinstance(value, bool) else str(value)
        for name, value in publisher.config.items()
    }
    return snapshot.PublisherFacts(
        topic=publisher.topic, client=publisher.client, config=clients.of_interest(texts)
    )


def _declared_relay(relay: settings.Relay) -> snapshot.DeclaredRelay:
    return snapshot.DeclaredRelay(
        source=target.shown(target.database_url(relay.source)),
        outbox=relay.outbox,
        topic=relay.topic,
        guarantee=relay.guarantee,
    )


def _reader(name: str, reader: settings.DeclaredReader) -> snapshot.ReaderFacts:
    return snapshot.ReaderFacts(
        topic=reader.topic,
        client=reader.client,
        group=reader.group or name,
        isolation=clients.isolation_level(reader.config),
    )


def _only(config: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in config.items() if name in names}
