"""The state of cluster, topics, publishers, pipelines, relays and databases at one time, as JSON.

Rules check only a snapshot, so a saved one can be checked offline. It contains no secrets.
What could not be found out is None, and `unknown` says why. Unknown never counts as good.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec

from instep import errors
from instep.settings import Client, Deletes, Guarantee, Missing, ReaderClient, RelayGuarantee
from instep.sinks.facts import Facts
from instep.sources.facts import SourceFacts

FORMAT = 1


class EffectiveSetting(msgspec.Struct, frozen=True, omit_defaults=True):
    """An effective value, and where it was set."""

    value: str | None
    source: str = "default"


Values = dict[str, EffectiveSetting]


class Disk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A log directory of a broker."""

    path: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    error: int = 0


class BrokerFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    node: int
    host: str
    port: int
    rack: str | None = None
    settings: Values | None = None
    disks: list[Disk] | None = None


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    cluster_id: str
    bootstrap: list[str]
    protocol: str
    brokers: list[BrokerFacts]
    voters: list[int] | None = None
    features: dict[str, int] | None = None
    clock_ahead_s: float | None = None  # the clock of the leading controller, compared to ours
    # replicas and min.insync.replicas of the internal topics that exist, by name
    internal: dict[str, tuple[int, int | None]] = {}


class PartitionFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    partition: int
    leader: int | None
    replicas: list[int]
    in_sync: list[int]
    first: int | None = None
    end: int | None = None
    size_bytes: int | None = None
    # the first offset of a transaction that has been open for more than a minute
    open_from: int | None = None


class MappedSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pipeline's mapping reads from the newest records."""

    events: int = 0
    key_differs: int = 0  # events whose record's key is not the document's id
    two_keys: int = 0  # documents whose events have different keys
    # events with the order value of an earlier event of their document, but another status
    same_order: int = 0
    backwards: int = 0  # events with a lower order value, or an earlier time, than the one before
    whole_seconds: int | None = None  # events whose order is a time without a fraction of a second
    before_2000: int = 0  # events that happened before 2000, by their own time
    ahead: int = 0  # events that happen more than a day from now, by their own time
    statuses: dict[str, int] = {}
    repeated: int = 0  # events with the order and the status of an earlier one of their document
    without_zone: int = 0  # events whose own time is a text without a time zone
    # columns whose field is in no event, with the field and the one that was probably meant
    absent: dict[str, str] = {}


class RecordSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the newest records of a topic show."""

    records: int
    keyless: int = 0
    in_murmur2_place: int = 0  # of those with a key
    in_crc32_place: int = 0
    largest_bytes: int = 0
    ahead_s_max: float = 0.0  # how far the newest timestamp lies in the future
    newest_age_s: float | None = None
    unreadable: dict[str, int] = {}  # by pipeline and reason, "pipeline: reason"
    before_2000: int = 0  # records with such a timestamp
    seen: dict[str, MappedSample] = {}  # by pipeline


class TopicFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    id: str = ""
    settings: Values | None = None
    partitions: list[PartitionFacts] = []
    sample: RecordSample | None = None
    idempotent_producers: int | None = None  # that the leaders remember
    span_s: float | None = None  # from the oldest record to now


class PublisherFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topic: str
    client: Client
    config: dict[str, str] = {}


class PartitionProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a partition was applied, and the age of the first record that was not."""

    partition: int
    next_offset: int
    topic_id: str
    cluster_id: str
    waiting_age_s: float | None = None


class PipelineFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topic: str
    guarantee: Guarantee
    start: str
    target: str
    table: str
    missing: Missing
    deletes: Deletes = "row"
    history: bool
    batch_rows_max: int
    order: str | None
    at: str | None
    order_is_time: bool | None = None
    transitions: bool = False
    ledger: list[PartitionProgress] | None = None
    dead_letters: int | None = None
    parked_documents: int | None = None
    group_members: list[str] | None = None  # of the mirror group: there should be none
    # partitions of the mirror group for which another program has committed offsets
    group_foreign: list[str] | None = None
    password_written: bool | None = None  # in the settings file, not in the environment
    status_column: str | None = None
    followers: dict[str, list[str]] = {}  # the declared transitions
    # statuses in the table, if transitions or limits are declared
    statuses: list[str] | None = None
    due: dict[str, str] = {}  # how long a document may keep a status


class DeclaredWriter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a declared pipeline writes, whether it is checked or not."""

    target: str
    table: str
    columns: list[str]
    topic: str = ""


class PublishedPosition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output topic for which the last position of a relay or a stream was written.

    `source_id` identifies the source database of a relay.
    """

    topic_id: str
    cluster_id: str
    partitions: int
    source_id: str | None = None


class RelayFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topic: str
    guarantee: RelayGuarantee
    outbox: str
    position_topic: str
    transaction_timeout_ms: int
    source_facts: SourceFacts
    position: PublishedPosition | None = None  # None: it has not published yet
    # groups that have committed offsets for the topic, other than those of the pipelines
    groups: list[str] | None = None
    password_written: bool | None = None  # in the settings file, not in the environment


class DeclaredRelay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a declared relay reads and publishes to, whether it is checked or not."""

    source: str
    outbox: str
    topic: str
    guarantee: RelayGuarantee


class StreamFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    source: str
    target: str
    guarantee: RelayGuarantee
    position_topic: str
    transaction_timeout_ms: int
    position: PublishedPosition | None = None  # None: it has not published yet
    groups: list[str] | None = None  # that have committed offsets for the output topic


class DeclaredStream(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a declared stream reads and publishes to, whether it is checked or not."""

    source: str
    target: str
    guarantee: RelayGuarantee


class ReaderFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A declared program that reads a topic."""

    topic: str
    client: ReaderClient
    group: str
    isolation: str | None = None  # None: the client's default


class SparkFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    master: str
    conf: dict[str, str] = {}


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    format: int = FORMAT
    taken_at: datetime
    instep: str
    outage_hours_max: int
    cluster: ClusterFacts
    topics: dict[str, TopicFacts | None]  # None: the cluster has no such topic
    near_topics: dict[str, str] = {}  # for a topic that does not exist, one with a similar name
    publishers: dict[str, PublisherFacts] = {}
    pipelines: dict[str, PipelineFacts] = {}
    databases: dict[str, Facts] = {}
    writers: dict[str, DeclaredWriter] = {}
    relays: dict[str, RelayFacts] = {}
    declared_relays: dict[str, DeclaredRelay] = {}
    streams: dict[str, StreamFacts] = {}
    declared_streams: dict[str, DeclaredStream] = {}
    readers: dict[str, ReaderFacts] = {}
    spark: SparkFacts
    accepted: dict[str, str] = {}
    unknown: dict[str, str] = {}  # what could not be found out, and why


def save(snapshot: Snapshot, file: Path) -> None:
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(snapshot), indent=1) + b"\n")
    except OSError as error:
        raise errors.SettingsError(
            f"the snapshot cannot be written to {file}: {error.strerror}",
            "name a file that this user can write",
        ) from error


def load(file: Path) -> Snapshot:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Snapshot)
    except OSError as error:
        raise errors.SettingsError(
            f"the snapshot {file} cannot be read: {error.strerror}",
            "name a file that this user can read",
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.SettingsError(
            f"{file} is not a snapshot: {error}",
            "take one where the cluster can be reached: instep vet --snapshot FILE",
        ) from error


def only(
    snapshot: Snapshot, pipelines: list[str], relays: list[str], streams: list[str]
) -> Snapshot:
    """Return the snapshot with only these pipelines, relays and streams, or with all."""
    for kind, names, existing in (
        ("pipeline", pipelines, [*snapshot.pipelines]),
        ("relay", relays, [*snapshot.relays]),
        ("stream", streams, [*snapshot.streams]),
    ):
        for name in names:
            if name not in existing:
                raise errors.SettingsError(
                    f"the snapshot has no {kind} {name!r}",
                    f"it has: {', '.join(map(repr, existing)) or 'none'}",
                )
    if not pipelines and not relays and not streams:
        return snapshot
    return msgspec.structs.replace(
        snapshot,
        pipelines={name: snapshot.pipelines[name] for name in pipelines},
        relays={name: snapshot.relays[name] for name in relays},
        streams={name: snapshot.streams[name] for name in streams},
    )
