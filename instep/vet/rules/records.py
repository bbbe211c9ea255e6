"""Rules about what the newest records of the topic show: what publishers really do, whatever they were meant to."""

from __future__ import annotations

from collections.abc import Iterator

from instep.vet.rule import Broken, Case, Severity, Threat, rule
from instep.vet.snapshot import Sample

AHEAD_S_MAX = 60.0
NEAR_LIMIT_SHARE = 0.8
FAR_BEYOND = 2  # the active segment outlives its time by as much as a segment lasts
# a producer id is forgotten a day after its last record, by default
PRODUCER_MEMORY_S = 12 * 3600.0


def _sample(case: Case) -> Sample:
    return case.known(case.topic.sample, f"newest records of topic {case.topic.name}")


@rule(
    "RECORDS_WITHOUT_KEY",
    Threat.STANDSTILL,
    when="a record without a key arrives, which waits as a dead letter",
    what="Records have no key.",
    why="The key is the document's id, and puts all events of a document into one partition. A record without one becomes a "
    "dead letter.",
    mend="Let the publisher send the document's id as key.",
    fine="When those records are not status events and are meant to be dead letters.",
)
def without_key(case: Case) -> Iterator[Broken]:
    sample = _sample(case)
    if sample.keyless:
        yield Broken(
            Severity.ERROR,
            f"topic {case.topic.name}",
            (f"{sample.keyless} of the newest {sample.records} records have no key",),
            f"instep peek {case.topic.name} -n 20 shows them; then mend the publisher",
        )


@rule(
    "RECORDS_IN_WRONG_PARTITION",
    Threat.DISORDER,
    when="two publishers put a document's events into two partitions",
    what="Records lie in other partitions than Java's hash, murmur2, puts their keys.",
    why="Partitions are applied side by side. A document whose events lie in two of them has no order but the guard's.",
    mend="Set partitioner=murmur2 in every publisher that is built on librdkafka.",
    fine="When all publishers of the topic, and all who ever will, use the same other hash; or after the topic was given more "
    "partitions, for records from before.",
)
def in_wrong_partition(case: Case) -> Iterator[Broken]:
    sample = _sample(case)
    keyed = sample.records - sample.keyless
    if len(case.topic.partitions) < 2 or sample.in_murmur2_place == keyed:
        return
    consistent = sample.in_crc32_place == keyed
    seen = [f"{sample.in_murmur2_place} of the newest {keyed} records with a key lie where murmur2 puts them"]
    if sample.in_crc32_place > keyed / len(case.topic.partitions) * 1.5:
        seen.append(f"{sample.in_crc32_place} lie where CRC32 does, the default of librdkafka")
    yield Broken(
        Severity.WARNING if consistent or case.guarded else Severity.ERROR,
        f"topic {case.topic.name}",
        tuple(seen),
        "partitioner=murmur2 in every publisher that is built on librdkafka",
    )


@rule(
    "RECORDS_NOT_IDEMPOTENT",
    Threat.REPETITION,
    when="a publisher's request is answered late and sent again",
    what="The topic has fresh records, and none came from an idempotent producer.",
    why="Brokers remember every idempotent producer that wrote lately, and remember none. A retry can then repeat records "
    "or let them overtake each other.",
    mend="Set enable.idempotence=true in the publisher.",
    fine="When the guard compares a version: repetitions are skipped, and only show in the history.",
)
def not_idempotent(case: Case) -> Iterator[Broken]:
    producers = case.known(case.topic.idempotent_producers, f"producers of topic {case.topic.name}")
    age_s = _sample(case).newest_age_s
    if producers == 0 and age_s is not None and age_s < PRODUCER_MEMORY_S:
        yield Broken(
            Severity.WARNING if case.guarded or not case.must_not_repeat else Severity.ERROR,
            f"topic {case.topic.name}",
            (f"the newest record is {age_s / 60:.0f} min old, and no idempotent producer is known",),
            "enable.idempotence=true in the publisher",
        )


@rule(
    "RECORDS_UNREADABLE",
    Threat.STANDSTILL,
    when="a record that the pipeline does not understand arrives, which waits as a dead letter",
    what="Some of the newest records cannot be understood by the pipeline.",
    why="They become dead letters, or park their documents: kept with a reason, and not in the table.",
    mend="Correct the mapping in [pipelines.NAME.event] and columns, or the publisher.",
    fine="When the topic also carries records that are not status events.",
)
def unreadable(case: Case) -> Iterator[Broken]:
    sample = _sample(case)
    mine = {key.partition(": ")[2]: count for key, count in sample.unreadable.items() if key.partition(": ")[0] == case.name}
    if mine:
        yield Broken(
            Severity.WARNING,
            f"topic {case.topic.name}",
            tuple(f"{count} of the newest {sample.records} records: {reason}" for reason, count in sorted(mine.items())),
            f"instep peek {case.topic.name} -n 20; then correct [pipelines.{case.name}.event]",
        )


@rule(
    "RECORDS_NEAR_LIMIT",
    Threat.STANDSTILL,
    when="a record grows a little more",
    what="The largest of the newest records is close to what the topic takes.",
    why="A record above max.message.bytes is refused, and with it, in the publisher, that document's news.",
    mend="Raise max.message.bytes of the topic and the publisher's own limit, or make records smaller.",
    fine="When the largest record that can be is known to fit.",
)
def near_limit(case: Case) -> Iterator[Broken]:
    limit, largest = case.number("max.message.bytes"), _sample(case).largest_bytes
    if largest > NEAR_LIMIT_SHARE * limit:
        yield Broken(
            Severity.WARNING,
            f"topic {case.topic.name}",
            (f"largest record {largest:,} bytes", case.found("max.message.bytes")),
            f"instep topics alter {case.topic.name} -c max.message.bytes={2 * limit}",
        )


@rule(
    "RECORDS_FROM_LONG_AGO",
    Threat.LOSS,
    when="the log's cleaner comes by before the pipeline",
    what="New records carry timestamps that are older than the topic keeps records.",
    why="Retention goes by a record's timestamp. A segment whose newest timestamp is that old is deleted at the next look, "
    "minutes after it was written. Seconds taken for milliseconds look like 1970.",
    mend="Let the publisher stamp records in milliseconds, or with the time of sending; or set "
    "message.timestamp.type=LogAppendTime.",
    fine="When old events are being sent again, and the pipeline is running.",
)
def from_long_ago(case: Case) -> Iterator[Broken]:
    kept_ms, sample = case.number("retention.ms"), _sample(case)
    by_publishers = case.setting("message.timestamp.type").value == "CreateTime"
    deletes = "delete" in (case.setting("cleanup.policy").value or "") and kept_ms >= 0
    # the newest of the newest: a topic at rest has old records, and rightly
    if deletes and by_publishers and sample.newest_age_s is not None and sample.newest_age_s * 1000 > FAR_BEYOND * kept_ms:
        yield Broken(
            Severity.WARNING,
            f"topic {case.topic.name}",
            (f"the newest timestamp is {sample.newest_age_s / 86_400:.0f} days old", case.found("retention.ms")),
            f"instep topics alter {case.topic.name} -c message.timestamp.type=LogAppendTime; or mend the publisher",
        )


@rule(
    "RECORDS_FROM_THE_FUTURE",
    Threat.DISORDER,
    when="the event's time decides, and the clock is put right",
    what="Records carry timestamps from the future.",
    why="A publisher's clock is ahead. Events that are ordered by time are skipped until the real time has caught up, and the "
    "log keeps such records for longer than its retention says.",
    mend="Keep the publishers' clocks in step (NTP).",
    fine="When records carry a business date that may lie ahead, and the guard compares a version.",
)
def from_the_future(case: Case) -> Iterator[Broken]:
    ahead_s = _sample(case).ahead_s_max
    if ahead_s > AHEAD_S_MAX:
        yield Broken(
            Severity.ERROR if case.pipeline.order == "@timestamp" else Severity.WARNING,
            f"topic {case.topic.name}",
            (f"a record's timestamp lies {ahead_s:.0f} s ahead",),
            "set the publisher's clock right, best by NTP",
        )
