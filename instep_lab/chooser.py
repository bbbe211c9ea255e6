"""From five answers to settings for publishers, consumers, topics and brokers. Pure.

Each setting names the claims of the lab that show why. `instep lab choose` prints the settings for
one client; docs/lab/choose-kafka-settings.md shows all of them, written by

    python -m instep_lab.chooser docs/lab/choose-kafka-settings.md
"""

from __future__ import annotations

import enum
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from instep import errors
from instep_lab import marked

BEGIN, END = "<!-- chooser: begin -->", "<!-- chooser: end -->"
# Options of kafka-topics.sh when it creates a topic; all others are settings.
PARTITIONS, REPLICAS = "--partitions", "--replication-factor"
DAY_MS = 24 * 60 * 60 * 1000
DAY_MINUTES = 24 * 60


class LossAllowed(enum.StrEnum):
    NO = "no"
    SOME = "some"


class RepeatsAllowed(enum.StrEnum):
    NO = "no"
    YES = "yes"


class Ordering(enum.StrEnum):
    NONE = "none"
    KEY = "key"
    ALL = "all"


class Absence(enum.StrEnum):
    HOURS = "hours"
    DAYS = "days"
    WEEKS = "weeks"


class ClientKind(enum.StrEnum):
    JAVA = "java"
    LIBRDKAFKA = "librdkafka"


class SettingPart(enum.StrEnum):
    """What a setting belongs to."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    TOPIC = "topic"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class ChooserQuestion:
    """A question with its possible answers, each explained."""

    name: str
    text: str
    answers: dict[enum.StrEnum, str]


QUESTIONS = (
    ChooserQuestion(
        "loss",
        "May records be lost?",
        {
            LossAllowed.NO: (
                "no acknowledged record may be lost, even if a broker dies; what retention deletes"
                " is another matter"
            ),
            LossAllowed.SOME: "some may be lost when a broker or a consumer dies",
        },
    ),
    ChooserQuestion(
        "repeats",
        "May records repeat?",
        {
            RepeatsAllowed.NO: "each record must take effect once",
            RepeatsAllowed.YES: "a repeated record does no harm",
        },
    ),
    ChooserQuestion(
        "order",
        "Order of what?",
        {
            Ordering.NONE: "order does not matter",
            Ordering.KEY: "all records of one key, such as a document",
            Ordering.ALL: "all records of the topic",
        },
    ),
    ChooserQuestion(
        "away",
        "How long may a consumer be away?",
        {
            Absence.HOURS: "a few hours",
            Absence.DAYS: "up to a week",
            Absence.WEEKS: "up to four weeks",
        },
    ),
    ChooserQuestion(
        "client",
        "Which client?",
        {
            ClientKind.JAVA: "Kafka's Java client",
            ClientKind.LIBRDKAFKA: (
                "the C library below confluent-kafka for Python, Go, .NET and JavaScript. Not"
                " kafka-python, aiokafka, Sarama, franz-go, kafka-go or kafkajs: they have defaults"
                " of their own"
            ),
        },
    ),
)


@dataclass(frozen=True, slots=True)
class ChooserAnswers:
    """One answer to each of the questions."""

    loss: LossAllowed
    repeats: RepeatsAllowed
    order: Ordering
    away: Absence
    client: ClientKind

    @property
    def idempotent(self) -> bool:
        """Whether the publisher has to be idempotent, which needs acks=all."""
        return (
            self.loss is LossAllowed.NO
            or self.repeats is RepeatsAllowed.NO
            or self.order is not Ordering.NONE
        )

    @property
    def exactly_once(self) -> bool:
        return self.loss is LossAllowed.NO and self.repeats is RepeatsAllowed.NO

    @property
    def commits_what_was_polled(self) -> bool:
        """Whether commits are automatic and cover all that was polled, done or not."""
        return (
            self.loss is LossAllowed.SOME
            and self.repeats is RepeatsAllowed.YES
            and self.client is ClientKind.JAVA
        )


@dataclass(frozen=True, slots=True)
class ChosenSetting:
    """A setting with the reason and the claims that show it."""

    part: SettingPart
    name: str
    value: str
    reason: str
    claims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgramRule:
    """What a setting cannot do: the program has to."""

    text: str
    claims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SettingsChoice:
    """The settings for some answers, what the program has to do, and warnings."""

    settings: tuple[ChosenSetting, ...]
    program: tuple[ProgramRule, ...]
    warnings: tuple[str, ...]

    def of(self, part: SettingPart) -> dict[str, str]:
        """Return the settings of a part by name."""
        return {one.name: one.value for one in self.settings if one.part is part}


def choose(answers: ChooserAnswers) -> SettingsChoice:
    """Return the settings that these answers ask for."""
    settings = (*_producer(answers), *_consumer(answers), *_topic(answers), *_broker(answers))
    return SettingsChoice(settings, tuple(_program(answers)), tuple(_warnings(answers)))


def parse(given: dict[str, str]) -> ChooserAnswers:
    """Return the answers by the names of their questions."""
    found: dict[str, enum.StrEnum] = {}
    for question in QUESTIONS:
        found[question.name] = read_answer(question, given.get(question.name, ""))
    return ChooserAnswers(**found)  # type: ignore[arg-type]


def read_answer(question: ChooserQuestion, word: str) -> enum.StrEnum:
    """Return the answer with this word."""
    for answer in question.answers:
        if answer.value == word:
            return answer
    words = ", ".join(answer.value for answer in question.answers)
    if not word:
        problem = f"{question.text} There is no answer"
    else:
        problem = f"{question.text} {word!r} is not an answer"
    raise errors.SettingsError(problem, f"use --{question.name} with one of: {words}")


def combinations() -> Iterator[ChooserAnswers]:
    """Yield every combination of answers."""
    for loss, repeats, order, away, client in itertools.product(
        LossAllowed, RepeatsAllowed, Ordering, Absence, ClientKind
    ):
        yield ChooserAnswers(loss, repeats, order, away, client)


def _producer(answers: ChooserAnswers) -> Iterator[ChosenSetting]:
    def setting(name: str, value: str, reason: str, *claims: str) -> ChosenSetting:
        return ChosenSetting(SettingPart.PRODUCER, name, value, reason, claims)

    if answers.idempotent:
        yield setting(
            "acks",
            "all",
            "a record is acknowledged when all in-sync replicas have it",
            "send-1",
            "send-2",
        )
        yield setting(
            "enable.idempotence",
            "true",
            "a retry neither repeats nor reorders records",
            "send-8",
            "order-5",
        )
        yield setting(
            "max.in.flight.requests.per.connection",
            "5",
            "the most that an idempotent producer may have",
            "order-5",
        )
    else:
        yield setting(
            "acks", "1", "only the leader has an acknowledged record", "send-1", "send-13"
        )
        yield setting(
            "enable.idempotence",
            "false",
            "retries may repeat; idempotence would need acks=all, as Kafka's documentation says",
            "send-8",
        )
    if answers.order is Ordering.KEY and answers.client is ClientKind.LIBRDKAFKA:
        yield setting(
            "partitioner",
            "murmur2_random",
            "places keys as the Java client does; the default differs",
            "send-11",
        )


def _consumer(answers: ChooserAnswers) -> Iterator[ChosenSetting]:
    def setting(name: str, value: str, reason: str, *claims: str) -> ChosenSetting:
        return ChosenSetting(SettingPart.CONSUMER, name, value, reason, claims)

    if answers.loss is LossAllowed.SOME and answers.repeats is RepeatsAllowed.YES:
        yield setting(
            "enable.auto.commit",
            "true",
            "a crash loses or repeats what lies between work and commit",
            "commit-1",
            "commit-2",
        )
        if answers.client is ClientKind.LIBRDKAFKA:
            yield setting(
                "enable.auto.offset.store",
                "false",
                "store the offset after the work, or a crash loses records",
                "commit-1",
            )
    else:
        yield setting(
            "enable.auto.commit",
            "false",
            "the program decides when to commit",
            "commit-1",
            "commit-3",
        )
    if answers.repeats is RepeatsAllowed.NO:
        yield setting(
            "isolation.level",
            "read_committed",
            "records of an aborted transaction are not read: its producer sends them again",
            "commit-15",
        )
    if answers.exactly_once:
        yield setting(
            "auto.offset.reset",
            "none" if answers.client is ClientKind.JAVA else "error",
            "a lost offset is an error: neither skip nor repeat silently",
            "start-5",
            "start-7",
        )
    elif answers.loss is LossAllowed.NO or answers.repeats is RepeatsAllowed.YES:
        yield setting(
            "auto.offset.reset",
            "earliest",
            "a group without an offset reads what the log still has; what retention has deleted"
            " is skipped without an error",
            "start-2",
            "start-7",
        )
    else:
        yield setting(
            "auto.offset.reset",
            "latest",
            "a group without an offset skips the backlog, and in a partition that is added later"
            " what was written before the group noticed it",
            "start-1",
            "start-7",
        )


def _topic(answers: ChooserAnswers) -> Iterator[ChosenSetting]:
    def setting(name: str, value: str, reason: str, *claims: str) -> ChosenSetting:
        return ChosenSetting(SettingPart.TOPIC, name, value, reason, claims)

    match answers.order:
        case Ordering.ALL:
            yield setting(PARTITIONS, "1", "order holds within a partition", "order-1", "order-2")
        case Ordering.KEY:
            yield setting(
                PARTITIONS,
                "12",
                "as many as readers you may ever need: adding some later moves keys",
                "order-3",
                "order-6",
                "group-2",
            )
        case Ordering.NONE:
            yield setting(
                PARTITIONS,
                "12",
                "as many as readers at the same time, or a multiple",
                "group-2",
                "group-3",
            )
    if answers.loss is LossAllowed.NO:
        yield setting(REPLICAS, "3", "publishing goes on while one broker is down", "topic-9")
        yield setting(
            "min.insync.replicas",
            "2",
            "no acknowledgement while only one replica has the record",
            "send-2",
            "send-3",
        )
        yield setting(
            "unclean.leader.election.enable",
            "false",
            "a replica that lacks records never becomes the leader",
            "send-1",
        )
    else:
        yield setting(REPLICAS, "2", "one broker may die", "topic-9")
        yield setting(
            "min.insync.replicas",
            "1",
            "publishing goes on with one replica, and its loss loses records",
            "send-3",
        )
    yield setting(
        "retention.ms",
        str(_kept_days(answers.away) * DAY_MS),
        f"{_kept_days(answers.away)} days, twice the longest absence or more",
        "topic-5",
        "start-7",
    )
    yield setting(
        "retention.bytes",
        "-1",
        "no limit by size, which could delete records before their time",
        "topic-5",
        "storage-3",
    )


def _broker(answers: ChooserAnswers) -> Iterator[ChosenSetting]:
    days = max(7, _kept_days(answers.away))
    yield ChosenSetting(
        SettingPart.BROKER,
        "offsets.retention.minutes",
        str(days * DAY_MINUTES),
        f"{days} days: a group that is away longer starts by auto.offset.reset",
        ("start-3",),
    )


def _program(answers: ChooserAnswers) -> Iterator[ProgramRule]:
    if answers.loss is LossAllowed.NO:
        yield ProgramRule(
            "Check the result of every send, by callback or by waiting, and flush before the"
            " process ends.",
            ("send-5", "send-6"),
        )
        yield ProgramRule(
            "Keep the replicas on machines that do not lose power together: Kafka acknowledges a"
            " record before it is on disk.",
            ("storage-1",),
        )
        yield ProgramRule(
            "A send that fails for good may leave a gap with later records behind it: stop and look"
            " before you send again.",
            ("send-5", "send-17"),
        )
    match answers.order:
        case Ordering.KEY:
            yield ProgramRule("Publish each record with its key.", ("order-3",))
            yield ProgramRule(
                "Let one producer send all records of a key, or put a version into them.",
                ("order-2", "order-3"),
            )
            if not answers.commits_what_was_polled:
                yield ProgramRule(
                    "Use one thread per partition, or choose the thread by the key.", ("order-4",)
                )
        case Ordering.ALL:
            yield ProgramRule(
                "Publish from one process, and read with one member and one thread.",
                ("order-2", "order-8"),
            )
        case Ordering.NONE:
            pass
    commits_first = answers.loss is LossAllowed.SOME and answers.repeats is RepeatsAllowed.NO
    if answers.order is not Ordering.ALL and not commits_first:
        yield ProgramRule(_threads(answers), ("commit-1", "commit-13"))
    yield ProgramRule(
        "Finish the work on each batch within `max.poll.interval.ms`: a member that hangs loses its"
        f" partitions, and {_after_a_hang(answers)}.",
        ("commit-17", "commit-12"),
    )
    if answers.repeats is RepeatsAllowed.NO:
        yield ProgramRule(
            "Give each record an id or a version and check it when writing: a publisher that"
            " restarts may send a record again.",
            ("send-9", "commit-9"),
        )
    match answers.loss, answers.repeats:
        case LossAllowed.NO, RepeatsAllowed.NO:
            yield ProgramRule(
                "Write the offset in the same database transaction as the result, and check the"
                " stored offset there: a member that was paused may come back.",
                ("commit-8",),
            )
            yield ProgramRule(
                "If the result goes to Kafka instead, send it and the offsets in one transaction,"
                " with a `transactional.id` that is different in each producer and the same after a"
                " restart; pass the consumer's group metadata with the offsets; and set"
                " `isolation.level=read_committed` in every reader of the results:"
                " `read_uncommitted`, Java's default, also returns aborted results.",
                ("commit-15",),
            )
            yield ProgramRule(
                "With offsets in a database, seek to them when partitions are assigned. Otherwise"
                " commit the group's first offsets before its first start, for example with"
                " `instep groups reset`. The same is needed for every partition that is added"
                " later: with `none` (librdkafka: `error`) it is an error until then.",
                ("commit-8", "start-5"),
            )
        case LossAllowed.NO, _:
            yield ProgramRule(
                "Commit after the work, and synchronously at the end.", ("commit-3", "commit-6")
            )
        case _, RepeatsAllowed.NO:
            yield ProgramRule("Commit before the work.", ("commit-4",))
        case _ if answers.client is ClientKind.LIBRDKAFKA:
            yield ProgramRule(
                "Store the offset after the work (`rd_kafka_offsets_store`, in Python"
                " `store_offsets`).",
                ("commit-2",),
            )
        case _:
            yield ProgramRule(
                "With automatic commit, do not close the consumer within a batch: close commits all"
                " of it.",
                ("commit-1",),
            )


def _threads(answers: ChooserAnswers) -> str:
    """Return what threads have to do so that a crash does not lose what they work on."""
    if answers.loss is LossAllowed.NO:
        return (
            "With several threads, commit an offset only when they have finished every earlier"
            " record of its partition, and wait for them before a partition is given up at a"
            " rebalance: otherwise a crash or a rebalance loses records."
        )
    if answers.client is ClientKind.LIBRDKAFKA:
        return (
            "With several threads, store an offset only when they have finished every earlier"
            " record of its partition: otherwise a crash loses more than it has to."
        )
    return (
        "With automatic commit, work in the thread that polls: with other threads, a crash or a"
        " rebalance loses what they have not finished."
    )


def _after_a_hang(answers: ChooserAnswers) -> str:
    if answers.loss is LossAllowed.SOME and answers.repeats is RepeatsAllowed.NO:
        return "what it committed before is not read again"
    return "another one repeats its records, and its own commit fails"


def _warnings(answers: ChooserAnswers) -> Iterator[str]:
    if answers.loss is LossAllowed.SOME and answers.repeats is RepeatsAllowed.NO:
        yield (
            "You allow loss, but no repeats: only an idempotent producer retries without repeating,"
            " and it needs acks=all. Publishing is therefore safer, and slower, than you asked for;"
            " the consumer still loses the records that it was working on when it died."
        )
    elif answers.loss is LossAllowed.SOME and answers.order is not Ordering.NONE:
        yield (
            "You allow loss, but want order: retries reorder records unless the producer is"
            " idempotent, which needs acks=all. Publishing is therefore safer, and slower, than you"
            " asked for."
        )
    if answers.order is Ordering.ALL:
        yield (
            "Order of all records means one partition: one reader per group, and no more throughput"
            " than one partition has."
        )
    if answers.away is Absence.WEEKS:
        yield (
            f"The log keeps {_kept_days(answers.away)} days of records: plan the disks of all"
            " replicas for them."
        )


def _kept_days(away: Absence) -> int:
    return {Absence.HOURS: 2, Absence.DAYS: 14, Absence.WEEKS: 56}[away]


CLIENTS = {ClientKind.JAVA: "Java", ClientKind.LIBRDKAFKA: "librdkafka"}
LOSSES = {LossAllowed.NO: "No loss", LossAllowed.SOME: "Some loss"}
REPEATS = {RepeatsAllowed.NO: "no repeats", RepeatsAllowed.YES: "repeats allowed"}
ORDERS = {
    Ordering.NONE: "no order",
    Ordering.KEY: "order of each key",
    Ordering.ALL: "order of all records",
}


# --- the page -----------------------------------------------------------------------------------


def section() -> str:
    """Return the chooser's part of docs/lab/choose-kafka-settings.md."""
    rows = [
        [question.text, f"`--{question.name}`", "; ".join(_explained(question))]
        for question in QUESTIONS
    ]
    absences = [
        [
            f"`{away}`",
            QUESTIONS[3].answers[away],
            *_kept(away),
            _claims(("topic-5", "start-7", "start-3")),
        ]
        for away in Absence
    ]
    parts = [
        _table(("question", "option", "answers"), rows),
        "How long a consumer may be away decides how long records and commits are kept."
        " `retention.ms` is a setting of the topic; `offsets.retention.minutes` is one of the"
        " broker, for all groups:",
        _table(
            ("away", "meaning", "`retention.ms`", "`offsets.retention.minutes`", "shown by"),
            absences,
        ),
        f"Everything else follows from the first three answers. `{PARTITIONS}` and `{REPLICAS}` are"
        " options of `kafka-topics.sh --create`. Open yours:",
    ]
    for loss, repeats, order in itertools.product(LossAllowed, RepeatsAllowed, Ordering):
        parts += _block(loss, repeats, order)
    return "\n\n".join(parts)


def write(page: str) -> str:
    """Return the page with the chooser's part written again."""
    return marked.replace(page, BEGIN, f"\n{section()}\n", END)


def _explained(question: ChooserQuestion) -> list[str]:
    return [f"`{answer}`: {text}" for answer, text in question.answers.items()]


def _kept(away: Absence) -> list[str]:
    choice = choose(
        ChooserAnswers(LossAllowed.NO, RepeatsAllowed.NO, Ordering.NONE, away, ClientKind.JAVA)
    )
    return [
        f"`{choice.of(SettingPart.TOPIC)['retention.ms']}`",
        f"`{choice.of(SettingPart.BROKER)['offsets.retention.minutes']}`",
    ]


def _block(loss: LossAllowed, repeats: RepeatsAllowed, order: Ordering) -> Iterator[str]:
    """Yield what some answers lead to, for both clients, as a block that opens."""
    both = {
        client: choose(ChooserAnswers(loss, repeats, order, Absence.DAYS, client))
        for client in ClientKind
    }
    java, other = both[ClientKind.JAVA], both[ClientKind.LIBRDKAFKA]
    places = dict.fromkeys((one.part, one.name) for one in (*other.settings, *java.settings))
    by_place = {(one.part, one.name): one for one in (*other.settings, *java.settings)}
    rows = [
        [
            part,
            f"`{name}`",
            *(f"`{one.of(part)[name]}`" if name in one.of(part) else "" for one in (java, other)),
            by_place[part, name].reason,
            _claims(by_place[part, name].claims),
        ]
        for part, name in sorted(places, key=lambda place: list(SettingPart).index(place[0]))
        if name not in ("retention.ms", "offsets.retention.minutes")
    ]
    title = ", ".join((LOSSES[loss], REPEATS[repeats], ORDERS[order]))
    yield f"<details><summary>{title}</summary>"
    yield _table(("part", "setting", *CLIENTS.values(), "reason", "shown by"), rows)
    rules = [
        f"- {_clients(rule, both)}{rule.text} ({_claims(rule.claims)})"
        for rule in dict.fromkeys((*java.program, *other.program))
    ]
    if rules:
        yield "In the program:\n\n" + "\n".join(rules)
    for warning in java.warnings:
        yield f"**Note.** {warning}"
    yield (
        f"`instep lab choose --loss {loss} --repeats {repeats} --order {order}"
        f" --away {Absence.DAYS} --client {ClientKind.JAVA}`; the client may also be"
        f" `{ClientKind.LIBRDKAFKA}`."
    )
    yield "</details>"


def _clients(rule: ProgramRule, choices: Mapping[ClientKind, SettingsChoice]) -> str:
    """Return for which client a rule is; nothing if it is for both."""
    with_rule = [client for client, choice in choices.items() if rule in choice.program]
    return "" if len(with_rule) == len(choices) else f"{CLIENTS[with_rule[0]]}: "


def _claims(ids: Sequence[str]) -> str:
    return ", ".join(f"[{id_}](claims.md#claim-{id_})" for id_ in ids)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(write(file.read_text(encoding="utf-8")), encoding="utf-8")
