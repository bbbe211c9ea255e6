"""Rules about the newest records of the topic: they show what publishers really do."""

from __future__ import annotations

from collections.abc import Iterator

from instep.vet.rule import Risk, RuleContext, Severity, Violation, error_if, rule, warning_if
from instep.vet.snapshot import MappedSample, RecordSample

AHEAD_S_MAX = 60.0
NEAR_LIMIT_SHARE = 0.8
EVENTS_MIN = 10  # fewer events may have whole seconds by chance
# Whole segments are deleted, so a record outlives its retention by up to the span of a segment.
RETENTION_FACTOR = 2
# By default, brokers forget a producer id a day after its last record. Rely on half of that.
PRODUCER_MEMORY_S = 12 * 3600.0


def _sample(case: RuleContext) -> RecordSample:
    return case.known(case.topic.sample, f"newest records of topic {case.topic.name}")


@rule(
    "RECORDS_WITHOUT_KEY",
    Risk.STANDSTILL,
    when="a record without a key arrives and becomes a dead letter",
    what="Some records have no key.",
    consequence="The key is the document's id and puts all events of a document into one "
    "partition. A record without a key becomes a dead letter.",
    remedy="Let the publisher send the document's id as the key.",
    acceptable_when="If those records are not status events and are meant to be dead letters.",
)
def without_key(case: RuleContext) -> Iterator[Violation]:
    sample = _sample(case)
    if sample.keyless:
        yield Violation(
            Severity.ERROR,
            f"topic {case.topic.name}",
            (f"{sample.keyless} of the newest {sample.records} records have no key",),
            f"look at them with instep peek {case.topic.name} -n 20; then let the publisher send"
            " the document's id as the key",
        )


@rule(
    "RECORDS_IN_WRONG_PARTITION",
    Risk.DISORDER,
    when="two publishers put the events of a document into two partitions",
    what="Records are not in the partition that Java's partitioner, murmur2, chooses for their "
    "key.",
    consequence="Partitions are applied in parallel. If the events of a document are in two "
    "partitions, only the guard keeps them in order.",
    remedy="Set partitioner=murmur2 in every publisher that uses librdkafka.",
    acceptable_when="If all current and future publishers of the topic use the same other hash, or "
    "for records from before partitions were added.",
)
def in_wrong_partition(case: RuleContext) -> Iterator[Violation]:
    sample = _sample(case)
    keyed = sample.records - sample.keyless
    if len(case.topic.partitions) < 2 or sample.in_murmur2_place == keyed:
        return
    consistent = sample.in_crc32_place == keyed
    evidence = [
        f"{sample.in_murmur2_place} of the newest {keyed} records with a key are in the partition"
        " that murmur2 chooses"
    ]
    # By chance, one record in as many as there are partitions is where any hash puts it.
    if sample.in_crc32_place > keyed / len(case.topic.partitions) * 1.5:
        evidence.append(
            f"{sample.in_crc32_place} are in the partition that CRC32 chooses, librdkafka's default"
        )
    yield Violation(
        error_if(not consistent and not case.guarded),
        f"topic {case.topic.name}",
        tuple(evidence),
        "set partitioner=murmur2 in every publisher that uses librdkafka",
    )


@rule(
    "RECORDS_NOT_IDEMPOTENT",
    Risk.REPETITION,
    when="the answer to a publisher's request is late and the request is sent again",
    what="The topic has recent records, but none from an idempotent producer.",
    consequence="Brokers remember every idempotent producer that wrote recently, and they know "
    "none. A retry can then repeat records or reorder them.",
    remedy="Set enable.idempotence=true in the publisher.",
    acceptable_when="If the guard compares a version: it skips repetitions, which only show in the "
    "history.",
)
def not_idempotent(case: RuleContext) -> Iterator[Violation]:
    producers = case.known(case.topic.idempotent_producers, f"producers of topic {case.topic.name}")
    age_s = _sample(case).newest_age_s
    if producers == 0 and age_s is not None and age_s < PRODUCER_MEMORY_S:
        yield Violation(
            error_if(case.must_not_repeat and not case.guarded),
            f"topic {case.topic.name}",
            (
                f"the newest record is {age_s / 60:.0f} min old, and no idempotent producer is"
                " known",
            ),
            "set enable.idempotence=true in the publisher",
        )


@rule(
    "RECORDS_UNREADABLE",
    Risk.STANDSTILL,
    when="a record arrives that the pipeline cannot read and puts in quarantine",
    what="The pipeline cannot read some or all of the newest records.",
    consequence="They become dead letters or park their documents: they are kept with a reason but "
    "are not in the table. If half of them or more are unreadable, the mapping or the topic is "
    "wrong.",
    remedy="Correct the mapping in [pipelines.NAME.event] and columns, or correct the publisher.",
    acceptable_when="If the topic also contains records that are not status events.",
)
def unreadable(case: RuleContext) -> Iterator[Violation]:
    sample = _sample(case)
    counts = {
        key.partition(": ")[2]: count
        for key, count in sample.unreadable.items()
        if key.partition(": ")[0] == case.name
    }
    if counts:
        yield Violation(
            error_if(2 * sum(counts.values()) >= sample.records),
            f"topic {case.topic.name}",
            tuple(
                f"{count} of the newest {sample.records} records: {reason}"
                for reason, count in sorted(counts.items())
            ),
            f"look at them with instep peek {case.topic.name} -n 20; then correct"
            f" [pipelines.{case.name}.event]",
        )


@rule(
    "RECORDS_NEAR_SIZE_LIMIT",
    Risk.STANDSTILL,
    when="a record gets slightly larger",
    what="The largest of the newest records is close to the topic's limit.",
    consequence="A record above max.message.bytes is refused, and the document's event stays with "
    "the publisher.",
    remedy="Raise max.message.bytes of the topic and the publisher's own limit, or make records "
    "smaller.",
    acceptable_when="If the largest possible record is known to fit.",
)
def near_size_limit(case: RuleContext) -> Iterator[Violation]:
    limit, largest = case.number("max.message.bytes"), _sample(case).largest_bytes
    if largest > NEAR_LIMIT_SHARE * limit:
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            (f"largest record {largest:,} bytes", case.evidence("max.message.bytes")),
            f"instep topics alter {case.topic.name} -c max.message.bytes={2 * limit} --execute",
        )


@rule(
    "RECORDS_TIMESTAMPS_TOO_OLD",
    Risk.LOSS,
    when="the log is cleaned before the pipeline has read the records",
    what="New records have timestamps from before the topic's retention period, or from 1970.",
    consequence="Retention uses a record's timestamp. A segment whose newest timestamp is that old "
    "is deleted at the next check, minutes after it was written. On a compacted topic "
    "min.compaction.lag.ms does not protect such a record, and places such as @-1h miss it. "
    "Seconds that are taken for milliseconds look like 1970.",
    remedy="Let the publisher set timestamps in milliseconds or to the time of sending, or set "
    "message.timestamp.type=LogAppendTime.",
    acceptable_when="If old events are being published again and the pipeline is running.",
)
def timestamps_too_old(case: RuleContext) -> Iterator[Violation]:
    if case.setting("message.timestamp.type").value != "CreateTime":
        return
    kept_ms, sample = case.number("retention.ms"), _sample(case)
    deletes = "delete" in (case.setting("cleanup.policy").value or "") and kept_ms >= 0
    # Only the newest timestamp counts: old records are normal in a topic without new ones.
    is_old = (
        deletes
        and sample.newest_age_s is not None
        and sample.newest_age_s * 1000 > RETENTION_FACTOR * kept_ms
    )
    if not is_old and not sample.before_2000:
        return
    evidence = []
    if sample.before_2000:
        evidence.append(
            f"{sample.before_2000} of the newest {sample.records} records have a timestamp"
            " before 2000"
        )
    if is_old:
        evidence.append(
            f"the newest timestamp is {(sample.newest_age_s or 0) / 86_400:.0f} days old"
        )
    yield Violation(
        error_if(deletes and sample.before_2000 and case.must_not_lose),
        f"topic {case.topic.name}",
        (*evidence, case.evidence("retention.ms"), case.evidence("cleanup.policy")),
        f"instep topics alter {case.topic.name} -c message.timestamp.type=LogAppendTime"
        " --execute; or send timestamps in milliseconds",
        when=None if deletes else "the log cleaner or a place such as @-1h uses the timestamp",
    )


@rule(
    "RECORDS_TIMESTAMPS_IN_FUTURE",
    Risk.DISORDER,
    when="the guard compares the event's time and the clock is corrected",
    what="Records have timestamps in the future.",
    consequence="A publisher's clock is ahead. Events that are ordered by time are skipped until "
    "the real time has caught up, and the log keeps such records longer than its retention period.",
    remedy="Synchronize the publishers' clocks with NTP.",
    acceptable_when="If records have a business date that may be in the future, and the guard "
    "compares a version.",
)
def timestamps_in_future(case: RuleContext) -> Iterator[Violation]:
    ahead_s = _sample(case).ahead_s_max
    if ahead_s > AHEAD_S_MAX:
        yield Violation(
            error_if(case.pipeline.order == "@timestamp"),
            f"topic {case.topic.name}",
            (f"a record's timestamp is {ahead_s:.0f} s in the future",),
            "synchronize the publisher's clock, preferably with NTP",
        )


def _mapped_sample(case: RuleContext) -> MappedSample:
    return case.known(
        _sample(case).seen.get(case.name, MappedSample() if case.has_target else None),
        f"newest events of {case.name}",
    )


@rule(
    "RECORDS_KEY_IS_NOT_DOCUMENT_ID",
    Risk.DISORDER,
    when="a document has a second event with another key",
    what="The key of records is not the document's id.",
    consequence="Only the key ties a document's events to one partition, and therefore to their "
    "order. A delete identifies its document by the key and finds none.",
    remedy="Let the publisher send the document's id as the key.",
    acceptable_when="If all events of a document have the same key, such as that of its customer, "
    "and the source deletes nothing.",
)
def key_is_not_document_id(case: RuleContext) -> Iterator[Violation]:
    mapped = _mapped_sample(case)
    if mapped.key_differs:
        evidence = [
            f"{mapped.key_differs} of the newest {mapped.events} events have a key that is not"
            " their document's id"
        ]
        if mapped.two_keys:
            evidence.append(f"{mapped.two_keys} documents have events with different keys")
        yield Violation(
            error_if(mapped.two_keys and not case.guarded),
            f"topic {case.topic.name}",
            tuple(evidence),
            f"use the field in pipelines.{case.name}.event.document as the record's key",
        )


@rule(
    "RECORDS_SAME_ORDER_VALUE",
    Risk.LOSS,
    when="always: the second event is taken for a repetition",
    what="Events of one document have the same order value but different statuses.",
    consequence="The guard treats an event with the same version as a repetition and skips it: the "
    "second status is not applied.",
    remedy="Increment the version with every change, or declare another field as event.order.",
    acceptable_when="If the first of them is the right one.",
)
def same_order_value(case: RuleContext) -> Iterator[Violation]:
    mapped = _mapped_sample(case)
    if mapped.same_order:
        yield Violation(
            error_if(case.must_not_lose),
            f"topic {case.topic.name}",
            (
                f"{mapped.same_order} of the newest {mapped.events} events have the same"
                f" {case.pipeline.order} as an earlier event of their document, but another status",
            ),
            f"increment {case.pipeline.order} in the source with every change; or remove order"
            f" from [pipelines.{case.name}.event]",
        )


@rule(
    "RECORDS_OUT_OF_ORDER",
    Risk.DISORDER,
    when="always: an older event follows a newer one",
    what="The events of a document are not in order in the log.",
    consequence="A publisher reorders its records, two publishers send the same document, or old "
    "events were published again. The guard skips older events; without a guard, the older status "
    "stays.",
    remedy="Let one idempotent publisher send each document's events in order, and declare "
    "event.order.",
    acceptable_when="With a guard, after the source has published old events again.",
)
def out_of_order(case: RuleContext) -> Iterator[Violation]:
    mapped = _mapped_sample(case)
    if mapped.backwards:
        yield Violation(
            error_if(not case.guarded),
            f"topic {case.topic.name}",
            (
                f"{mapped.backwards} of the newest {mapped.events} events are older than the"
                " previous event of their document",
            ),
            "set enable.idempotence=true in every publisher of the topic, and let one"
            " publisher send each document",
        )


@rule(
    "RECORDS_ORDER_IN_WHOLE_SECONDS",
    Risk.DISORDER,
    when="a document changes twice within a second",
    what="The guard compares times, but the events' times have no fractions of a second.",
    consequence="Two events of the same second look equally old: the later one in the log wins, "
    "even if it is a late repetition.",
    remedy="Order by a version that the source increments, or send times with microseconds.",
    acceptable_when="If no document changes twice within a second.",
)
def order_in_whole_seconds(case: RuleContext) -> Iterator[Violation]:
    mapped = _mapped_sample(case)
    if (
        mapped.whole_seconds is not None
        and mapped.events >= EVENTS_MIN
        and mapped.whole_seconds == mapped.events
    ):
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            (
                f"all of the newest {mapped.events} events have a {case.pipeline.order} in whole"
                " seconds",
            ),
            f"send {case.pipeline.order} with microseconds, as in 2026-11-01T08:00:00.123456Z",
        )


@rule(
    "RECORDS_EVENT_TIME_IMPLAUSIBLE",
    Risk.DISORDER,
    when="the event's time is compared or shown",
    what="According to their own time, events happened before 2000 or more than a day in the "
    "future.",
    consequence="Numbers are read as milliseconds since 1970. Seconds then look like January 1970, "
    "microseconds like the far future. The column gets a wrong time, freshness is wrong, and a "
    "guard that compares it accepts nothing or everything.",
    remedy="Send milliseconds since 1970, or ISO 8601 text.",
    acceptable_when="If the events really happened then.",
)
def event_time_implausible(case: RuleContext) -> Iterator[Violation]:
    mapped = _mapped_sample(case)
    wrong = []
    if mapped.before_2000:
        wrong.append(
            f"{mapped.before_2000} of the newest {mapped.events} events have a time before 2000"
        )
    if mapped.ahead:
        wrong.append(
            f"{mapped.ahead} of the newest {mapped.events} events have a time more than a day"
            " from now"
        )
    if wrong:
        yield Violation(
            error_if(case.pipeline.order_is_time),
            f"topic {case.topic.name}",
            tuple(wrong),
            f"send {case.pipeline.at or 'the timestamp of the record'} in milliseconds since"
            " 1970, or as 2026-11-01T08:00:00Z",
        )


@rule(
    "RECORDS_FIELD_MISSING",
    Risk.LOSS,
    when="always: the column is never filled",
    what="A column is mapped to a field that none of the newest events has.",
    consequence="A field that an event does not have leaves its column unchanged. A misspelt name "
    "therefore causes no error: the column stays empty or keeps its old value.",
    remedy="Correct the field in [pipelines.NAME.columns], or remove the column.",
    acceptable_when="If only some events have the field, and none of the newest does.",
)
def field_missing(case: RuleContext) -> Iterator[Violation]:
    mapped = _mapped_sample(case)
    for column, field in mapped.absent.items():
        name, _, similar = field.partition("; did you mean ")
        meant = similar.strip("'?")
        fix = (
            f"remove {column} from [pipelines.{case.name}.columns], or let the publisher send"
            f" {name}"
        )
        if meant:
            fix = f'[pipelines.{case.name}.columns]\n{column} = "{meant}"'
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            (f"{column}: none of the newest {mapped.events} events has {field}",),
            fix,
        )


@rule(
    "RECORDS_TIME_WITHOUT_ZONE",
    Risk.DISORDER,
    when="the publisher's clock shows local time, or changes to daylight saving time",
    what="The time of the events has no time zone.",
    consequence="It is read as UTC. If it is local time, the column and freshness are wrong by "
    "hours, and one hour occurs twice a year.",
    remedy="Send UTC with a trailing Z, or an offset such as +01:00.",
    acceptable_when="If the publisher sends UTC.",
)
def time_without_zone(case: RuleContext) -> Iterator[Violation]:
    mapped = _mapped_sample(case)
    if mapped.without_zone:
        yield Violation(
            warning_if(case.pipeline.order_is_time),
            f"topic {case.topic.name}",
            (
                f"{mapped.without_zone} of the newest {mapped.events} events have a"
                f" {case.pipeline.at} without a zone",
            ),
            f"send {case.pipeline.at} as 2026-11-01T08:00:00Z or 2026-11-01T09:00:00+01:00",
        )


@rule(
    "RECORDS_STATUS_SPELLINGS_DIFFER",
    Risk.DISORDER,
    when="someone counts or filters by status",
    what="Statuses differ only in case, spaces, hyphens or underscores.",
    consequence="For the database and for transitions they are different statuses: queries miss "
    "documents, and transitions refuse them.",
    remedy="Let the publisher send one spelling.",
    acceptable_when="If they really mean different things.",
)
def status_spellings_differ(case: RuleContext) -> Iterator[Violation]:
    by_letters: dict[str, list[str]] = {}
    for status in _mapped_sample(case).statuses:
        letters = "".join(status.split()).casefold().replace("_", "").replace("-", "")
        by_letters.setdefault(letters, []).append(status)
    for spellings in by_letters.values():
        if len(spellings) > 1:
            yield Violation(
                Severity.NOTE,
                f"topic {case.topic.name}",
                (" and ".join(map(repr, spellings)),),
                f"send {spellings[0]!r} instead of {' and '.join(map(repr, spellings[1:]))}",
            )


@rule(
    "RECORDS_REPEATED",
    Risk.REPETITION,
    when="always: events arrive more than once",
    what="The newest records contain the same event more than once.",
    consequence="A publisher sends events again that had already arrived. The guard skips "
    "repetitions, and the history shows them.",
    remedy="Set enable.idempotence=true in the publisher, and let the application send each event "
    "once.",
    acceptable_when="After the source has published old events again.",
)
def repeated(case: RuleContext) -> Iterator[Violation]:
    mapped = _mapped_sample(case)
    if mapped.repeated:
        yield Violation(
            Severity.NOTE,
            f"topic {case.topic.name}",
            (f"{mapped.repeated} of the newest {mapped.events} events repeat an earlier one",),
            "set enable.idempotence=true in every publisher of the topic",
        )
