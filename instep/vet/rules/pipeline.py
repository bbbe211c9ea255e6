"""Rules about the pipeline: its guard, its ledger against the log, and what it shares with others."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from instep.document import transitions
from instep.kafka import groups
from instep.vet.rule import Risk, RuleContext, Severity, Violation, rule
from instep.vet.rules.cluster import is_loopback
from instep.vet.snapshot import PartitionFacts, PartitionProgress

NEAR_EXPIRY_SHARE = 0.5
DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306}
BATCH_ROWS_FEW, BATCH_ROWS_MANY = 1_000, 2_000_000


@rule(
    "PIPELINE_WITHOUT_GUARD",
    Risk.DISORDER,
    when="a publisher repeats or overtakes, or the topic gets more partitions",
    what="No order is declared, so the place in the log decides which event is newer.",
    consequence="Whatever disturbs the log's order disturbs the table: a repetition that arrives late, a second publisher, more "
    "partitions, a replay by the source.",
    remedy="Name a version or time of the event as event.order, and a column that keeps it.",
    acceptable_when="When each document has one idempotent publisher and the number of partitions never changes.",
)
def without_guard(case: RuleContext) -> Iterator[Violation]:
    if not case.guarded:
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            (f"pipelines.{case.name}.event.order is not set",),
            f'[pipelines.{case.name}.event]\norder = "version"\n[pipelines.{case.name}.columns]\nversion = "version"',
        )


@rule(
    "PIPELINE_ORDERED_BY_CLOCKS",
    Risk.DISORDER,
    when="the clocks of two publishers differ, or two events have the same time",
    what="The guard compares times that several publishers take from their own clocks.",
    consequence="An event from the clock that is behind looks old and is skipped.",
    remedy="Order by a version that the source counts.",
    acceptable_when="When each document is published by one machine, or the time comes from the source's database.",
)
def ordered_by_clocks(case: RuleContext) -> Iterator[Violation]:
    if case.guarded and case.pipeline.order_is_time and len(case.publishers) > 1:
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            (
                f'event.order="{case.pipeline.order}" is a time',
                f"publishers: {', '.join(case.publishers)}",
            ),
            f'[pipelines.{case.name}.event]\norder = "version"',
        )


@rule(
    "PIPELINE_STARTS_LATE",
    Risk.LOSS,
    when="the pipeline is started for the first time",
    what="The pipeline has no ledger yet, and will not begin at the log's start.",
    consequence="What was published before is not applied; those documents stay as they are until their next event.",
    remedy='Set start = "earliest".',
    acceptable_when="When the table was filled from the source up to that moment.",
)
def starts_late(case: RuleContext) -> Iterator[Violation]:
    if case.pipeline.start != "earliest" and not case.ledger:
        yield Violation(
            Severity.WARNING if case.must_not_lose else Severity.NOTE,
            f"pipeline {case.name}",
            (f'pipelines.{case.name}.start="{case.pipeline.start}"', "the ledger is empty"),
            f'[pipelines.{case.name}]\nstart = "earliest"',
        )


@rule(
    "PIPELINE_SHARES_COLUMNS",
    Risk.DISORDER,
    when="both pipelines follow the same document",
    what="Two pipelines write the same column of the same table.",
    consequence="Each has its own ledger and its own order: they overwrite each other.",
    remedy="Give each pipeline columns of its own, or one pipeline the whole road.",
    acceptable_when="When their documents are never the same.",
)
def shares_columns(case: RuleContext) -> Iterator[Violation]:
    mine = case.pipeline
    for name, other in case.snapshot.writers.items():
        both = sorted(set(case.written) & set(other.columns))
        if (
            name != case.name
            and _place(other.target, other.table) == _place(mine.target, mine.table)
            and both
        ):
            yield Violation(
                Severity.ERROR,
                f"table {mine.table}",
                (f"{' and '.join(sorted((case.name, name)))} both write {', '.join(both)}",),
                f"take {', '.join(both)} out of [pipelines.{case.name}.columns] or of [pipelines.{name}.columns]",
            )


def _place(target: str, table: str) -> tuple[str, str, int | None, str, str]:
    """Which table that is, whoever logs in and by whatever name of this machine."""
    url = urlsplit(target)
    kind = url.scheme.partition("+")[0].replace("mariadb", "mysql")
    host = "" if is_loopback(url.hostname) else str(url.hostname)
    database = url.path.lstrip("/")
    schema, _, name = table.rpartition(".")
    usual = database if kind == "mysql" else "public" if kind == "postgresql" else "main"
    return kind, host, url.port or DEFAULT_PORTS.get(kind), database, f"{schema or usual}.{name}"


@rule(
    "PIPELINE_TOPIC_REPLACED",
    Risk.STANDSTILL,
    when="the pipeline is started",
    what="The ledger belongs to another topic of the same name, or to another cluster.",
    consequence="Its offsets mean nothing there: the pipeline stops with TOPIC_REPLACED.",
    remedy="Decide where to go on: instep rewind --accept-new-topic.",
    acceptable_when="Never.",
)
def topic_replaced(case: RuleContext) -> Iterator[Violation]:
    strange = [
        row
        for row in case.ledger
        if (row.topic_id, row.cluster_id) != (case.topic_id, case.cluster.cluster_id)
    ]
    if strange:
        yield Violation(
            Severity.ERROR,
            f"pipeline {case.name}",
            (
                f"the ledger knows topic id {strange[0].topic_id} of cluster {strange[0].cluster_id}",
                f"now: {case.topic_id} of {case.cluster.cluster_id}",
            ),
            f"instep rewind {case.name} --to start --accept-new-topic",
        )


def _met(case: RuleContext) -> list[tuple[PartitionProgress, PartitionFacts]]:
    """The ledger's rows with the partitions they are about, as far as they are about this topic."""
    parts = {part.partition: part for part in case.topic.partitions}
    return [
        (row, parts[row.partition])
        for row in case.ledger
        if row.topic_id == case.topic_id and row.partition in parts
    ]


@rule(
    "PIPELINE_RECORDS_EXPIRED",
    Risk.LOSS,
    when="now: they are gone",
    what="Records that were not applied yet are no longer in the log.",
    consequence="The pipeline stops with OFFSETS_EXPIRED, as going on would hide the loss.",
    remedy="Publish the lost events again or mend the table from the source, then rewind.",
    acceptable_when="Never.",
)
def records_expired(case: RuleContext) -> Iterator[Violation]:
    lost = [
        (row, part.first)
        for row, part in _met(case)
        if part.first is not None and row.next_offset < part.first
    ]
    if lost:
        yield Violation(
            Severity.ERROR,
            f"pipeline {case.name}",
            tuple(
                f"partition {row.partition}: next {row.next_offset}, the log begins at {start}"
                for row, start in lost
            ),
            f"instep rewind {case.name} --to start; then instep reconcile {case.name} with the source",
        )


@rule(
    "PIPELINE_AHEAD_OF_LOG",
    Risk.LOSS,
    when="now: the log lost its end",
    what="The ledger is beyond the end of the log.",
    consequence="Applied records are no longer in the log: it was cut, as by an unclean election or a restored disk. New records at "
    "those offsets would be taken for applied; the pipeline stops with LOG_DIVERGED.",
    remedy="Find out what was lost, and rewind.",
    acceptable_when="Never.",
)
def ahead_of_log(case: RuleContext) -> Iterator[Violation]:
    beyond = [
        (row, part.end)
        for row, part in _met(case)
        if part.end is not None and row.next_offset > part.end
    ]
    if beyond:
        yield Violation(
            Severity.ERROR,
            f"pipeline {case.name}",
            tuple(
                f"partition {row.partition}: next {row.next_offset}, the log ends at {end}"
                for row, end in beyond
            ),
            f"instep rewind {case.name} --to end",
        )


@rule(
    "PIPELINE_NEAR_EXPIRY",
    Risk.LOSS,
    when="the pipeline does not catch up in time",
    what="The oldest record that was not applied yet is about to be deleted.",
    consequence="Retention does not wait for readers.",
    remedy="Start the pipeline, or raise the topic's retention now.",
    acceptable_when="While a pipeline that was started is catching up fast.",
)
def near_expiry(case: RuleContext) -> Iterator[Violation]:
    kept_ms = case.number("retention.ms")
    if kept_ms < 0 or "delete" not in (case.setting("cleanup.policy").value or ""):
        return
    old = [
        row for row in case.ledger if (row.waiting_age_s or 0) * 1000 > NEAR_EXPIRY_SHARE * kept_ms
    ]
    if old:
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            (
                *(
                    f"partition {row.partition}: a record waits for {(row.waiting_age_s or 0) / 3600:.1f} h"
                    for row in old
                ),
                case.found("retention.ms"),
            ),
            f"instep run {case.name}; or instep topics alter {case.topic.name} -c retention.ms={2 * kept_ms} --execute",
        )


@rule(
    "PIPELINE_SET_ASIDE",
    Risk.STANDSTILL,
    when="now: those documents wait",
    what="Events were set aside: dead letters, or parked documents.",
    consequence="They are safe and not in the table. Later events of a parked document wait behind the first.",
    remedy="Look at the reasons, mend them, and replay or release.",
    acceptable_when="When somebody has looked and decided to leave them.",
)
def set_aside(case: RuleContext) -> Iterator[Violation]:
    dead = case.known(case.pipeline.dead_letters, f"dead letters of {case.name}")
    parked = case.known(case.pipeline.parked_documents, f"parked documents of {case.name}")
    if dead or parked:
        yield Violation(
            Severity.WARNING if parked else Severity.NOTE,
            f"pipeline {case.name}",
            (f"{dead} dead letters", f"{parked} parked documents"),
            "instep parked list; instep dead list",
        )


@rule(
    "PIPELINE_GROUP_IN_USE",
    Risk.REPETITION,
    when="the other program or the pipeline commits",
    what="Another program uses the consumer group that the pipeline mirrors its position to.",
    consequence="instep does not write a group that holds another program's offsets, so the pipeline has no mirror. A member that "
    "commits there from now on overwrites the mirror, and starts where the pipeline stands.",
    remedy="Rename the other program's group, or the pipeline.",
    acceptable_when="Never.",
)
def group_in_use(case: RuleContext) -> Iterator[Violation]:
    group = groups.mirror_name(case.name)
    members = case.known(case.pipeline.group_members, f"members of group {group}")
    foreign = case.known(case.pipeline.group_foreign, f"offsets of group {group}")
    if members or foreign:
        yield Violation(
            Severity.ERROR if members else Severity.WARNING,
            f"group {group}",
            (
                *(f"member {member}" for member in members),
                *(f"committed by another program: {one}" for one in foreign),
            ),
            "give the other program another group.id",
        )


@rule(
    "PIPELINE_SQLITE_ON_CLUSTER",
    Risk.LOSS,
    when="a task runs on another machine",
    what="The target is a SQLite file, and Spark's tasks run on a cluster.",
    consequence="Each worker would open a file of that name on its own machine.",
    remedy='Use a database server, or master = "local[*]".',
    acceptable_when="When all workers run on this machine.",
)
def sqlite_on_cluster(case: RuleContext) -> Iterator[Violation]:
    if case.pipeline.target.startswith("sqlite") and not case.snapshot.spark.master.startswith(
        "local"
    ):
        yield Violation(
            Severity.ERROR,
            f"pipeline {case.name}",
            (f'spark.master="{case.snapshot.spark.master}"', f"target {case.pipeline.target}"),
            '[spark]\nmaster = "local[*]"',
        )


@rule(
    "PIPELINE_LOCALHOST_ON_CLUSTER",
    Risk.STANDSTILL,
    when="a task runs on another machine",
    what="Spark's tasks run on a cluster, and the brokers or the database are known as localhost.",
    consequence="On a worker, localhost is the worker: it finds no server there, or a wrong one.",
    remedy="Let the brokers advertise, and the target name, addresses that workers can reach.",
    acceptable_when="When all workers run on this machine.",
)
def localhost_on_cluster(case: RuleContext) -> Iterator[Violation]:
    if case.snapshot.spark.master.startswith("local"):
        return
    near = [
        f"broker {broker.node} at {broker.host}"
        for broker in case.cluster.brokers
        if is_loopback(broker.host)
    ]
    database = case.snapshot.databases.get(case.name)
    if database is not None and database.kind != "sqlite" and is_loopback(database.host):
        near.append(f"database at {database.host or 'a local socket'}")
    if near:
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            (f'spark.master="{case.snapshot.spark.master}"', *near),
            "advertised.listeners of the brokers, and the target's host, by names that the workers know",
        )


@rule(
    "PIPELINE_SPECULATION",
    Risk.STANDSTILL,
    when="a task takes longer than its neighbours",
    what="Spark may run a second copy of a slow task.",
    consequence="Both write the same range. The ledger lets only one commit, so nothing is repeated; the other waits for its lock and "
    "fails, and the batch takes longer.",
    remedy="Set spark.speculation=false.",
    acceptable_when="Never for a pipeline.",
)
def speculation(case: RuleContext) -> Iterator[Violation]:
    if case.snapshot.spark.conf.get("spark.speculation", "false").lower() == "true":
        yield Violation(
            Severity.WARNING,
            "[spark] conf",
            ("spark.speculation=true",),
            'take "spark.speculation" out of [spark] conf',
        )


@rule(
    "PIPELINE_SMALL_BATCHES",
    Risk.STANDSTILL,
    when="events come faster than small batches can be written",
    what="A micro-batch takes few records.",
    consequence="Each batch costs some tens of milliseconds whatever its size, so few records a batch bound the records a second.",
    remedy="Leave batch_rows_max at its default.",
    acceptable_when="When rows are very wide, or few events are ever published.",
)
def small_batches(case: RuleContext) -> Iterator[Violation]:
    if case.pipeline.batch_rows_max < BATCH_ROWS_FEW:
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            (f"batch_rows_max={case.pipeline.batch_rows_max}",),
            f"[pipelines.{case.name}]\nbatch_rows_max = 400000",
        )


@rule(
    "PIPELINE_HUGE_BATCHES",
    Risk.STANDSTILL,
    when="a long backlog is read in one batch",
    what="A micro-batch may take millions of records.",
    consequence="A batch is planned and reported as a whole: after a long outage its progress does not show for minutes, and other "
    "pipelines of the same run wait for a core meanwhile.",
    remedy="Leave batch_rows_max at its default.",
    acceptable_when="When the pipeline has a run of its own.",
)
def huge_batches(case: RuleContext) -> Iterator[Violation]:
    if case.pipeline.batch_rows_max > BATCH_ROWS_MANY:
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            (f"batch_rows_max={case.pipeline.batch_rows_max}",),
            f"[pipelines.{case.name}]\nbatch_rows_max = 400000",
        )


@rule(
    "PIPELINE_IGNORES_UNKNOWN",
    Risk.LOSS,
    when="an event names a document that the table does not have yet",
    what="Events of documents that the table does not have are passed over.",
    consequence="A document that is inserted a moment after its first event stays without that status until the next one.",
    remedy='Set missing = "park" or "insert".',
    acceptable_when="When the table holds every document before the source knows it.",
)
def ignores_unknown(case: RuleContext) -> Iterator[Violation]:
    if case.pipeline.missing == "ignore":
        yield Violation(
            Severity.NOTE,
            f"pipeline {case.name}",
            (f'pipelines.{case.name}.missing="ignore"',),
            f'[pipelines.{case.name}]\nmissing = "park"',
        )


@rule(
    "PIPELINE_DELETES_OTHERS_DATA",
    Risk.LOSS,
    when="the source publishes a record without a value",
    what="A delete record removes the whole row, also the columns that this pipeline does not write.",
    consequence="What your application or another pipeline keeps in those columns is gone with the row.",
    remedy='Set deletes = "clear" to empty only the mapped columns, or deletes = "park" to decide case by case.',
    acceptable_when="When the row is worth nothing without the source's document.",
)
def deletes_others_data(case: RuleContext) -> Iterator[Violation]:
    others = case.database.other_columns
    if case.deletes_rows and others:
        yield Violation(
            Severity.NOTE if case.pipeline.missing == "insert" else Severity.WARNING,
            f"pipeline {case.name}",
            (f"columns that it does not write: {', '.join(others)}",),
            f'[pipelines.{case.name}]\ndeletes = "clear"',
        )


@rule(
    "PIPELINE_STATUS_NOT_DECLARED",
    Risk.STANDSTILL,
    when="an event brings a status that no transition names",
    what="Records or rows have a status that the declared transitions do not name.",
    consequence="Such an event is refused and parks its document. A row with such a status never gets another one.",
    remedy="Add the status to [pipelines.NAME.transitions], with those that may follow it.",
    acceptable_when="When that status is wrong, and parking it is right.",
)
def status_not_declared(case: RuleContext) -> Iterator[Violation]:
    declared = transitions.declare(case.pipeline.followers)
    if not declared:
        return
    known = set(transitions.statuses(declared))
    sample = case.topic.sample
    seen = sample.seen[case.name].statuses if sample and case.name in sample.seen else {}
    strange = {status: count for status, count in seen.items() if status not in known}
    stored = sorted(set(case.pipeline.statuses or ()) - known)
    if strange or stored:
        evidence = [
            f"{count} of the newest {sum(seen.values())} events: {status!r}"
            for status, count in strange.items()
        ]
        evidence += [f"the table holds {status!r}" for status in stored]
        lines = "\n".join(
            f"{msgspec.json.encode(status).decode()} = []"
            for status in dict.fromkeys([*strange, *stored])
        )
        yield Violation(
            Severity.ERROR
            if 2 * sum(strange.values()) >= max(1, sum(seen.values()))
            else Severity.WARNING,
            f"pipeline {case.name}",
            tuple(evidence),
            f"[pipelines.{case.name}.transitions]\n{lines}",
        )


@rule(
    "PIPELINE_STATUS_UNREACHABLE",
    Risk.STANDSTILL,
    when="a document gets to that status",
    what="The declared transitions name a status that no document can get to, or one that looks misspelt.",
    consequence="A transition that is missing or misspelt refuses events that are right, and parks their documents.",
    remedy="Let another status lead to it, or correct its name.",
    acceptable_when="When the status is only for documents that begin with it.",
)
def status_unreachable(case: RuleContext) -> Iterator[Violation]:
    declared = transitions.declare(case.pipeline.followers)
    if not declared:
        return
    evidence = transitions.findings(declared)
    lonely = [(status, near) for status, near in transitions.doubtful(declared)]
    if evidence:
        corrected = (
            f"write {lonely[0][1]!r} in place of {lonely[0][0]!r}"
            if lonely
            else "let another status lead to it"
        )
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            tuple(evidence),
            f"{corrected} in [pipelines.{case.name}.transitions]; instep settings draws them",
        )


@rule(
    "PIPELINE_GUARANTEE_WEAK",
    Risk.LOSS,
    when="the pipeline dies in the middle of a batch",
    what="The declared guarantee is weaker than exactly-once.",
    consequence="at-most-once loses the events of a batch that did not end, at-least-once applies them twice. exactly-once does neither, "
    "in the same transaction, and is as fast.",
    remedy='Set guarantee = "exactly-once".',
    acceptable_when="When the loss or the repetition is meant, as in a comparison.",
)
def guarantee_weak(case: RuleContext) -> Iterator[Violation]:
    if case.pipeline.guarantee != "exactly-once":
        loses = case.pipeline.guarantee == "at-most-once"
        yield Violation(
            Severity.WARNING if loses else Severity.NOTE,
            f"pipeline {case.name}",
            (f'pipelines.{case.name}.guarantee="{case.pipeline.guarantee}"',),
            f'[pipelines.{case.name}]\nguarantee = "exactly-once"',
            when=None
            if loses
            else "the pipeline dies in the middle of a batch: its events are applied twice",
        )


@rule(
    "PIPELINE_WITHOUT_HISTORY",
    Risk.LOSS,
    when="somebody asks what happened to a document, or events must be replayed after the log has forgotten them",
    what="The pipeline keeps no history.",
    consequence="instep show and instep replay then know only what the log still holds. What was applied and is no longer in the log "
    "cannot be looked up or applied again.",
    remedy="Set history = true; instep history prune keeps it small.",
    acceptable_when="When the log keeps everything that you will ever look up.",
)
def without_history(case: RuleContext) -> Iterator[Violation]:
    if not case.pipeline.history:
        yield Violation(
            Severity.NOTE,
            f"pipeline {case.name}",
            (f"pipelines.{case.name}.history=false",),
            f"[pipelines.{case.name}]\nhistory = true",
        )


@rule(
    "PIPELINE_PASSWORD_IN_FILE",
    Risk.EXPOSURE,
    when="somebody reads the settings file, or it is committed to a repository",
    what="The database's password stands in the settings file.",
    consequence="Settings are copied, shown and kept in version control; a password in them goes everywhere they go.",
    remedy="Write ${DB_PASSWORD} in its place, and set the variable where the pipeline runs.",
    acceptable_when="On a laptop and in tests.",
)
def password_in_file(case: RuleContext) -> Iterator[Violation]:
    if case.pipeline.password_written:
        yield Violation(
            Severity.NOTE,
            f"pipeline {case.name}",
            (f"pipelines.{case.name}.target holds a password",),
            f"write ${{DB_PASSWORD}} in place of the password in pipelines.{case.name}.target, and export DB_PASSWORD",
        )
