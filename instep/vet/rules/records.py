"""Rules about what the newest records of the topic show: what publishers really do, whatever they were meant to."""

from __future__ import annotations

from collections.abc import Iterator

from instep.vet.rule import Risk, RuleContext, Severity, Violation, rule
from instep.vet.snapshot import MappedSample, RecordSample

AHEAD_S_MAX = 60.0
NEAR_LIMIT_SHARE = 0.8
EVENTS_TELLING = 10
FAR_BEYOND = 2  # the active segment outlives its time by as much as a segment lasts
# a producer id is forgotten a day after its last record, by default
PRODUCER_MEMORY_S = 12 * 3600.0


def _sample(case: RuleContext) -> RecordSample:
    return case.known(case.topic.sample, f"newest records of topic {case.topic.name}")


@rule(
    "RECORDS_WITHOUT_KEY",
    Risk.STANDSTILL,
    when="a record without a key arrives, which waits as a dead letter",
    what="Records have no key.",
    consequence="The key is the document's id, and puts all events of a document into one partition. A record without one becomes a "
    "dead letter.",
    remedy="Let the publisher send the document's id as key.",
    acceptable_when="When those records are not status events and are meant to be dead letters.",
)
def without_key(case: RuleContext) -> Iterator[Violation]:
    sample = _sample(case)
    if sample.keyless:
        yield Violation(
            Severity.ERROR,
            f"topic {case.topic.name}",
            (f"{sample.keyless} of the newest {sample.records} records have no key",),
            f"instep peek {case.topic.name} -n 20 shows them; then let the publisher send the document's id as key",
        )


@rule(
    "RECORDS_IN_WRONG_PARTITION",
    Risk.DISORDER,
    when="two publishers put a document's events into two partitions",
    what="Records lie in other partitions than Java's hash, murmur2, puts their keys.",
    consequence="Partitions are applied side by side. A document whose events lie in two of them has no order but the guard's.",
    remedy="Set partitioner=murmur2 in every publisher that is built on librdkafka.",
    acceptable_when="When all publishers of the topic, and all who ever will, use the same other hash; or after the topic was given more "
    "partitions, for records from before.",
)
def in_wrong_partition(case: RuleContext) -> Iterator[Violation]:
    sample = _sample(case)
    keyed = sample.records - sample.keyless
    if len(case.topic.partitions) < 2 or sample.in_murmur2_place == keyed:
        return
    consistent = sample.in_crc32_place == keyed
    seen = [
        f"{sample.in_murmur2_place} of the newest {keyed} records with a key lie where murmur2 puts them"
    ]
    if sample.in_crc32_place > keyed / len(case.topic.partitions) * 1.5:
        seen.append(f"{sample.in_crc32_place} lie where CRC32 does, the default of librdkafka")
    yield Violation(
        Severity.WARNING if consistent or case.guarded else Severity.ERROR,
        f"topic {case.topic.name}",
        tuple(seen),
        "partitioner=murmur2 in every publisher that is built on librdkafka",
    )


@rule(
    "RECORDS_NOT_IDEMPOTENT",
    Risk.REPETITION,
    when="a publisher's request is answered late and sent again",
    what="The topic has fresh records, and none came from an idempotent producer.",
    consequence="Brokers remember every idempotent producer that wrote lately, and remember none. A retry can then repeat records "
    "or let them overtake each other.",
    remedy="Set enable.idempotence=true in the publisher.",
    acceptable_when="When the guard compares a version: repetitions are skipped, and only show in the history.",
)
def not_idempotent(case: RuleContext) -> Iterator[Violation]:
    producers = case.known(case.topic.idempotent_producers, f"producers of topic {case.topic.name}")
    age_s = _sample(case).newest_age_s
    if producers == 0 and age_s is not None and age_s < PRODUCER_MEMORY_S:
        yield Violation(
            Severity.WARNING if case.guarded or not case.must_not_repeat else Severity.ERROR,
            f"topic {case.topic.name}",
            (
                f"the newest record is {age_s / 60:.0f} min old, and no idempotent producer is known",
            ),
            "enable.idempotence=true in the publisher",
        )


@rule(
    "RECORDS_UNREADABLE",
    Risk.STANDSTILL,
    when="a record that the pipeline does not understand arrives, which is set aside",
    what="Some of the newest records cannot be understood by the pipeline, or none of them.",
    consequence="They become dead letters, or park their documents: kept with a reason, and not in the table. When it is half of them or "
    "more, the mapping is wrong, or the topic.",
    remedy="Correct the mapping in [pipelines.NAME.event] and columns, or the publisher.",
    acceptable_when="When the topic also carries records that are not status events.",
)
def unreadable(case: RuleContext) -> Iterator[Violation]:
    sample = _sample(case)
    mine = {
        key.partition(": ")[2]: count
        for key, count in sample.unreadable.items()
        if key.partition(": ")[0] == case.name
    }
    if mine:
        yield Violation(
            Severity.ERROR if 2 * sum(mine.values()) >= sample.records else Severity.WARNING,
            f"topic {case.topic.name}",
            tuple(
                f"{count} of the newest {sample.records} records: {reason}"
                for reason, count in sorted(mine.items())
            ),
            f"instep peek {case.topic.name} -n 20; then correct [pipelines.{case.name}.event]",
        )


@rule(
    "RECORDS_NEAR_LIMIT",
    Risk.STANDSTILL,
    when="a record grows a little more",
    what="The largest of the newest records is close to what the topic takes.",
    consequence="A record above max.message.bytes is refused, and with it, in the publisher, that document's news.",
    remedy="Raise max.message.bytes of the topic and the publisher's own limit, or make records smaller.",
    acceptable_when="When the largest record that can be is known to fit.",
)
def near_limit(case: RuleContext) -> Iterator[Violation]:
    limit, largest = case.number("max.message.bytes"), _sample(case).largest_bytes
    if largest > NEAR_LIMIT_SHARE * limit:
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            (f"largest record {largest:,} bytes", case.found("max.message.bytes")),
            f"instep topics alter {case.topic.name} -c max.message.bytes={2 * limit} --execute",
        )


@rule(
    "RECORDS_FROM_LONG_AGO",
    Risk.LOSS,
    when="the log's cleaner comes by before the pipeline",
    what="New records carry timestamps that are older than the topic keeps records, or from 1970.",
    consequence="Retention goes by a record's timestamp. A segment whose newest timestamp is that old is deleted at the next look, "
    "minutes after it was written. On a compacted topic min.compaction.lag.ms protects such a record no longer, and "
    "places such as @-1h miss it. Seconds taken for milliseconds look like 1970.",
    remedy="Let the publisher stamp records in milliseconds, or with the time of sending; or set "
    "message.timestamp.type=LogAppendTime.",
    acceptable_when="When old events are being sent again, and the pipeline is running.",
)
def from_long_ago(case: RuleContext) -> Iterator[Violation]:
    if case.setting("message.timestamp.type").value != "CreateTime":
        return
    kept_ms, sample = case.number("retention.ms"), _sample(case)
    deletes = "delete" in (case.setting("cleanup.policy").value or "") and kept_ms >= 0
    # the newest of the newest: a topic at rest has old records, and rightly
    old = (
        deletes
        and sample.newest_age_s is not None
        and sample.newest_age_s * 1000 > FAR_BEYOND * kept_ms
    )
    if not old and not sample.before_2000:
        return
    seen = []
    if sample.before_2000:
        seen.append(
            f"{sample.before_2000} of the newest {sample.records} records have a timestamp before 2000"
        )
    if old:
        seen.append(f"the newest timestamp is {(sample.newest_age_s or 0) / 86_400:.0f} days old")
    yield Violation(
        Severity.ERROR
        if deletes and sample.before_2000 and case.must_not_lose
        else Severity.WARNING,
        f"topic {case.topic.name}",
        (*seen, case.found("retention.ms"), case.found("cleanup.policy")),
        f"instep topics alter {case.topic.name} -c message.timestamp.type=LogAppendTime --execute; or stamp records in milliseconds",
        when=None if deletes else "the cleaner or a place such as @-1h goes by the timestamp",
    )


@rule(
    "RECORDS_FROM_THE_FUTURE",
    Risk.DISORDER,
    when="the event's time decides, and the clock is put right",
    what="Records carry timestamps from the future.",
    consequence="A publisher's clock is ahead. Events that are ordered by time are skipped until the real time has caught up, and the "
    "log keeps such records for longer than its retention says.",
    remedy="Keep the publishers' clocks in step (NTP).",
    acceptable_when="When records carry a business date that may lie ahead, and the guard compares a version.",
)
def from_the_future(case: RuleContext) -> Iterator[Violation]:
    ahead_s = _sample(case).ahead_s_max
    if ahead_s > AHEAD_S_MAX:
        yield Violation(
            Severity.ERROR if case.pipeline.order == "@timestamp" else Severity.WARNING,
            f"topic {case.topic.name}",
            (f"a record's timestamp lies {ahead_s:.0f} s ahead",),
            "set the publisher's clock right, best by NTP",
        )


def _seen(case: RuleContext) -> MappedSample:
    return case.known(
        _sample(case).seen.get(case.name, MappedSample() if case.has_target else None),
        f"newest events of {case.name}",
    )


@rule(
    "RECORDS_KEY_NOT_DOCUMENT",
    Risk.DISORDER,
    when="a document has a second event under another key",
    what="Records have another key than the document's id.",
    consequence="Only the key ties a document's events to one partition, and so to their order. A delete names its document by the key, "
    "and finds none.",
    remedy="Let the publisher send the document's id as key.",
    acceptable_when="When the key is one for all events of a document, such as its customer's, and the source deletes nothing.",
)
def key_not_document(case: RuleContext) -> Iterator[Violation]:
    seen = _seen(case)
    if seen.key_differs:
        evidence = [
            f"{seen.key_differs} of the newest {seen.events} events have another key than their document's id"
        ]
        if seen.two_keys:
            evidence.append(f"{seen.two_keys} documents have events under two keys or more")
        yield Violation(
            Severity.ERROR if seen.two_keys and not case.guarded else Severity.WARNING,
            f"topic {case.topic.name}",
            tuple(evidence),
            f"send the field that pipelines.{case.name}.event.document names as the record's key",
        )


@rule(
    "RECORDS_SAME_ORDER",
    Risk.LOSS,
    when="always: the second event is taken for a repetition",
    what="Events of one document have the same order and different statuses.",
    consequence="The guard takes an event with the same version for a repetition and skips it: the status that came second is not "
    "applied.",
    remedy="Count the version up with every change, or name another field as event.order.",
    acceptable_when="When the first of them is the right one.",
)
def same_order(case: RuleContext) -> Iterator[Violation]:
    seen = _seen(case)
    if seen.same_order:
        yield Violation(
            Severity.ERROR if case.must_not_lose else Severity.WARNING,
            f"topic {case.topic.name}",
            (
                f"{seen.same_order} of the newest {seen.events} events repeat a {case.pipeline.order} of their document"
                " with another status",
            ),
            f"count {case.pipeline.order} up in the source with every change; or remove order from [pipelines.{case.name}.event]",
        )


@rule(
    "RECORDS_OUT_OF_ORDER",
    Risk.DISORDER,
    when="always: an older event comes behind a newer one",
    what="A document's events do not lie in the log in their order.",
    consequence="A publisher overtakes itself, two publishers send the same document, or old events were sent again. The guard skips "
    "what is older; without one, the older status stays.",
    remedy="Let one idempotent publisher send each document's events in order, and declare event.order.",
    acceptable_when="After the source has sent old events again, with a guard.",
)
def out_of_order(case: RuleContext) -> Iterator[Violation]:
    seen = _seen(case)
    if seen.backwards:
        yield Violation(
            Severity.WARNING if case.guarded else Severity.ERROR,
            f"topic {case.topic.name}",
            (
                f"{seen.backwards} of the newest {seen.events} events are older than the one before of their document",
            ),
            "set enable.idempotence=true in every publisher of the topic, and let one publisher send each document",
        )


@rule(
    "RECORDS_ORDER_COARSE",
    Risk.DISORDER,
    when="a document changes twice within a second",
    what="The guard compares times, and the events' times have whole seconds only.",
    consequence="Two events of one second look equally old: the one that lies later in the log wins, even when it is a late repetition.",
    remedy="Order by a version that the source counts, or send times with microseconds.",
    acceptable_when="When no document changes twice within a second.",
)
def order_coarse(case: RuleContext) -> Iterator[Violation]:
    seen = _seen(case)
    if (
        seen.whole_seconds is not None
        and seen.events >= EVENTS_TELLING
        and seen.whole_seconds == seen.events
    ):
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            (
                f"all of the newest {seen.events} events have a {case.pipeline.order} of whole seconds",
            ),
            f"send {case.pipeline.order} with microseconds, as in 2026-11-01T08:00:00.123456Z",
        )


@rule(
    "RECORDS_EVENT_TIME_WRONG",
    Risk.DISORDER,
    when="the event's time decides or is shown",
    what="Events happened before 2000, or more than a day from now, by their own time.",
    consequence="Numbers are read as milliseconds since 1970. Seconds then look like January 1970, microseconds like the far future. The "
    "column keeps a wrong time, freshness is wrong, and a guard that compares it lets nothing or everything through.",
    remedy="Send milliseconds since 1970, or ISO 8601 text.",
    acceptable_when="When documents really happened then.",
)
def event_time_wrong(case: RuleContext) -> Iterator[Violation]:
    seen = _seen(case)
    wrong = [
        f"{count} of the newest {seen.events} events happened {words}"
        for count, words in (
            (seen.before_2000, "before 2000"),
            (seen.ahead, "more than a day from now"),
        )
        if count
    ]
    if wrong:
        yield Violation(
            Severity.ERROR if case.pipeline.order_is_time else Severity.WARNING,
            f"topic {case.topic.name}",
            tuple(wrong),
            f"send {case.pipeline.at or 'the timestamp of the record'} in milliseconds since 1970, or as 2026-11-01T08:00:00Z",
        )


@rule(
    "RECORDS_FIELD_ABSENT",
    Risk.LOSS,
    when="always: the column is never filled",
    what="A column is mapped to a field that none of the newest events has.",
    consequence="A field that an event does not have leaves its column as it is. A misspelt name therefore shows no error: the column "
    "stays empty, or keeps its old value.",
    remedy="Correct the field in [pipelines.NAME.columns], or take the column out.",
    acceptable_when="When the field comes with some events only, and none of them is among the newest.",
)
def field_absent(case: RuleContext) -> Iterator[Violation]:
    seen = _seen(case)
    for column, field in seen.absent.items():
        name, _, near = field.partition("; did you mean ")
        meant = near.strip("'?")
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            (f"{column}: none of the newest {seen.events} events has {field}",),
            f'[pipelines.{case.name}.columns]\n{column} = "{meant}"'
            if meant
            else f"remove {column} from [pipelines.{case.name}.columns], or let the publisher send {name}",
        )


@rule(
    "RECORDS_TIME_WITHOUT_ZONE",
    Risk.DISORDER,
    when="the publisher's clock shows local time, or changes to summer time",
    what="The events' own time names no time zone.",
    consequence="It is taken for UTC. If it is local time, the column and freshness are wrong by hours, and an hour comes twice a year.",
    remedy="Send UTC with a Z behind it, or an offset such as +01:00.",
    acceptable_when="When the publisher sends UTC.",
)
def time_without_zone(case: RuleContext) -> Iterator[Violation]:
    seen = _seen(case)
    if seen.without_zone:
        yield Violation(
            Severity.WARNING if case.pipeline.order_is_time else Severity.NOTE,
            f"topic {case.topic.name}",
            (
                f"{seen.without_zone} of the newest {seen.events} events have a {case.pipeline.at} without a zone",
            ),
            f"send {case.pipeline.at} as 2026-11-01T08:00:00Z or 2026-11-01T09:00:00+01:00",
        )


@rule(
    "RECORDS_STATUS_SPELLINGS",
    Risk.DISORDER,
    when="somebody counts or filters by status",
    what="Statuses differ only in upper and lower case, or in spaces.",
    consequence="To the database and to transitions they are different statuses: queries miss documents, and transitions refuse them.",
    remedy="Let the publisher send one spelling.",
    acceptable_when="When they really mean different things.",
)
def status_spellings(case: RuleContext) -> Iterator[Violation]:
    alike: dict[str, list[str]] = {}
    for status in _seen(case).statuses:
        alike.setdefault(
            "".join(status.split()).casefold().replace("_", "").replace("-", ""), []
        ).append(status)
    for several in alike.values():
        if len(several) > 1:
            yield Violation(
                Severity.NOTE,
                f"topic {case.topic.name}",
                (" and ".join(map(repr, several)),),
                f"send {several[0]!r} in place of {' and '.join(map(repr, several[1:]))}",
            )


@rule(
    "RECORDS_REPEATED",
    Risk.REPETITION,
    when="always: events come more than once",
    what="The newest records hold the same event more than once.",
    consequence="A publisher sends again what had arrived. The guard skips repetitions, and the history shows them.",
    remedy="Set enable.idempotence=true in the publisher, and let the application send each event once.",
    acceptable_when="After the source has sent old events again.",
)
def repeated(case: RuleContext) -> Iterator[Violation]:
    seen = _seen(case)
    if seen.repeated:
        yield Violation(
            Severity.NOTE,
            f"topic {case.topic.name}",
            (f"{seen.repeated} of the newest {seen.events} events repeat an earlier one",),
            "set enable.idempotence=true in every publisher of the topic",
        )
