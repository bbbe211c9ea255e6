"""Rules about the pipeline: its guard, its ledger and the log, and what it shares with others."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from instep import settings
from instep.document import transitions
from instep.kafka import groups
from instep.vet.rule import Risk, RuleContext, Severity, Violation, error_if, rule, warning_if
from instep.vet.rules.cluster import is_loopback
from instep.vet.snapshot import PartitionFacts, PartitionProgress

NEAR_EXPIRY_SHARE = 0.5  # of the retention time
DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306}
BATCH_ROWS_FEW, BATCH_ROWS_MANY = 1_000, 2_000_000


@rule(
    "PIPELINE_WITHOUT_GUARD",
    Risk.DISORDER,
    when="a publisher repeats or reorders events, or the topic gets more partitions",
    what="No order value is declared, so the position in the log decides which event is newer.",
    consequence="Anything that disturbs the order of the log disturbs the table: a late "
    "repetition, a second publisher, more partitions, a replay by the source.",
    remedy="Declare a version or time of the event as event.order, and a column that stores it.",
    acceptable_when="If each document has one idempotent publisher and the number of partitions "
    "never changes.",
)
def without_guard(case: RuleContext) -> Iterator[Violation]:
    if not case.guarded:
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            (f"pipelines.{case.name}.event.order is not set",),
            f'[pipelines.{case.name}.event]\norder = "version"\n'
            f'[pipelines.{case.name}.columns]\nversion = "version"',
        )


@rule(
    "PIPELINE_ORDERED_BY_SEVERAL_CLOCKS",
    Risk.DISORDER,
    when="the clocks of two publishers differ, or two events have the same time",
    what="The guard compares times from the clocks of several publishers.",
    consequence="An event from a clock that is behind looks old and is skipped.",
    remedy="Order by a version that the source increments.",
    acceptable_when="If each document is published by one machine, or the time comes from the "
    "source's database.",
)
def ordered_by_several_clocks(case: RuleContext) -> Iterator[Violation]:
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
    "PIPELINE_SKIPS_EXISTING_RECORDS",
    Risk.LOSS,
    when="the pipeline is started for the first time",
    what="The pipeline has no ledger yet and will not start at the beginning of the log.",
    consequence="Records published before that are not applied. Those documents stay as they are "
    "until their next event.",
    remedy='Set start = "earliest".',
    acceptable_when="If the table was loaded from the source up to that moment.",
)
def skips_existing_records(case: RuleContext) -> Iterator[Violation]:
    if case.pipeline.start != "earliest" and not case.ledger:
        yield Violation(
            warning_if(case.must_not_lose),
            f"pipeline {case.name}",
            (f'pipelines.{case.name}.start="{case.pipeline.start}"', "the ledger is empty"),
            f'[pipelines.{case.name}]\nstart = "earliest"',
        )


@rule(
    "PIPELINE_SHARES_COLUMNS",
    Risk.DISORDER,
    when="both pipelines process the same document",
    what="Two pipelines write the same column of the same table.",
    consequence="Each pipeline has its own ledger and order: they overwrite each other.",
    remedy="Give each pipeline its own columns, or use one pipeline for all of them.",
    acceptable_when="If they never have documents in common.",
)
def shares_columns(case: RuleContext) -> Iterator[Violation]:
    pipeline = case.pipeline
    for name, other in case.snapshot.writers.items():
        shared = sorted(set(case.written) & set(other.columns))
        if (
            name != case.name
            and table_identity(other.target, other.table)
            == table_identity(pipeline.target, pipeline.table)
            and shared
        ):
            yield Violation(
                Severity.ERROR,
                f"table {pipeline.table}",
                (f"{' and '.join(sorted((case.name, name)))} both write {', '.join(shared)}",),
                f"remove {', '.join(shared)} from [pipelines.{case.name}.columns] or from"
                f" [pipelines.{name}.columns]",
            )


def table_identity(target: str, table: str) -> tuple[str, str, int | None, str, str]:
    """Return the identity of a table, whatever the user and the name of this machine."""
    url = urlsplit(target)
    kind = url.scheme.partition("+")[0].replace("mariadb", "mysql")
    host = "" if is_loopback(url.hostname) else str(url.hostname)
    database = url.path.lstrip("/")
    schema, _, name = table.rpartition(".")
    default_schema = {"mysql": database, "postgresql": "public"}.get(kind, "main")
    port = url.port or DEFAULT_PORTS.get(kind)
    return kind, host, port, database, f"{schema or default_schema}.{name}"


@rule(
    "PIPELINE_TOPIC_REPLACED",
    Risk.STANDSTILL,
    when="the pipeline is started",
    what="The ledger belongs to another topic of the same name, or to another cluster.",
    consequence="Its offsets are meaningless there: the pipeline stops with TOPIC_REPLACED.",
    remedy="Decide where to continue: instep rewind --accept-new-topic.",
    acceptable_when="Never.",
)
def topic_replaced(case: RuleContext) -> Iterator[Violation]:
    foreign = [
        row
        for row in case.ledger
        if (row.topic_id, row.cluster_id) != (case.topic_id, case.cluster.cluster_id)
    ]
    if foreign:
        yield Violation(
            Severity.ERROR,
            f"pipeline {case.name}",
            (
                f"the ledger has topic id {foreign[0].topic_id} of cluster {foreign[0].cluster_id}",
                f"now it is {case.topic_id} of cluster {case.cluster.cluster_id}",
            ),
            f"instep rewind {case.name} --to start --accept-new-topic",
        )


def _ledger_and_log(case: RuleContext) -> list[tuple[PartitionProgress, PartitionFacts]]:
    """Return the ledger's rows of this topic, each with its partition."""
    parts = {part.partition: part for part in case.topic.partitions}
    return [
        (row, parts[row.partition])
        for row in case.ledger
        if row.topic_id == case.topic_id and row.partition in parts
    ]


@rule(
    "PIPELINE_RECORDS_EXPIRED",
    Risk.LOSS,
    when="now: the log no longer has them",
    what="Records that have not been applied are no longer in the log.",
    consequence="The pipeline stops with OFFSETS_EXPIRED, because continuing would hide the loss.",
    remedy="Publish the lost events again or repair the table from the source, then rewind.",
    acceptable_when="Never.",
)
def records_expired(case: RuleContext) -> Iterator[Violation]:
    lost = [
        (row, part.first)
        for row, part in _ledger_and_log(case)
        if part.first is not None and row.next_offset < part.first
    ]
    if lost:
        yield Violation(
            Severity.ERROR,
            f"pipeline {case.name}",
            tuple(
                f"partition {row.partition}: next offset {row.next_offset}, the log begins at"
                f" {start}"
                for row, start in lost
            ),
            f"instep rewind {case.name} --to start; then instep reconcile {case.name} with the"
            " source",
        )


@rule(
    "PIPELINE_AHEAD_OF_LOG",
    Risk.LOSS,
    when="now: the log has lost its end",
    what="The ledger is beyond the end of the log.",
    consequence="Applied records are no longer in the log: it was truncated, for example by an "
    "unclean election or a restored disk. New records at those offsets would look as if they had "
    "been applied, so the pipeline stops with LOG_DIVERGED.",
    remedy="Find out what was lost, then rewind.",
    acceptable_when="Never.",
)
def ahead_of_log(case: RuleContext) -> Iterator[Violation]:
    beyond = [
        (row, part.end)
        for row, part in _ledger_and_log(case)
        if part.end is not None and row.next_offset > part.end
    ]
    if beyond:
        yield Violation(
            Severity.ERROR,
            f"pipeline {case.name}",
            tuple(
                f"partition {row.partition}: next offset {row.next_offset}, the log ends at {end}"
                for row, end in beyond
            ),
            f"instep rewind {case.name} --to end",
        )


@rule(
    "PIPELINE_RECORDS_EXPIRE_SOON",
    Risk.LOSS,
    when="the pipeline does not catch up in time",
    what="The oldest record that has not been applied will be deleted soon.",
    consequence="Retention does not wait for readers.",
    remedy="Start the pipeline, or raise the topic's retention now.",
    acceptable_when="While a pipeline that was started is catching up quickly.",
)
def records_expire_soon(case: RuleContext) -> Iterator[Violation]:
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
                    f"partition {row.partition}: a record has been waiting for"
                    f" {(row.waiting_age_s or 0) / 3600:.1f} h"
                    for row in old
                ),
                case.evidence("retention.ms"),
            ),
            f"instep run {case.name}; or instep topics alter {case.topic.name} -c"
            f" retention.ms={2 * kept_ms} --execute",
        )


@rule(
    "PIPELINE_HAS_QUARANTINE",
    Risk.STANDSTILL,
    when="now: those documents wait",
    what="The quarantine is not empty: there are dead letters or parked documents.",
    consequence="These events are safe but not in the table. Later events of a parked document "
    "wait behind the first.",
    remedy="Look at the reasons, fix them, and replay or release the events.",
    acceptable_when="If someone has looked at them and decided to leave them.",
)
def has_quarantine(case: RuleContext) -> Iterator[Violation]:
    dead = case.known(case.pipeline.dead_letters, f"dead letters of {case.name}")
    parked = case.known(case.pipeline.parked_documents, f"parked documents of {case.name}")
    if dead or parked:
        yield Violation(
            warning_if(parked),
            f"pipeline {case.name}",
            (f"{dead} dead letters", f"{parked} parked documents"),
            "instep parked list; instep dead list",
        )


@rule(
    "PIPELINE_GROUP_IN_USE",
    Risk.REPETITION,
    when="the other program or the pipeline commits",
    what="Another program uses the consumer group to which the pipeline mirrors its position.",
    consequence="instep does not write to a group that contains another program's offsets, so the "
    "pipeline has no mirror. A member that commits there later overwrites the mirror and starts at "
    "the pipeline's position.",
    remedy="Rename the other program's group, or the pipeline.",
    acceptable_when="Never.",
)
def group_in_use(case: RuleContext) -> Iterator[Violation]:
    group = groups.mirror_name(case.name)
    members = case.known(case.pipeline.group_members, f"members of group {group}")
    foreign = case.known(case.pipeline.group_foreign, f"offsets of group {group}")
    if members or foreign:
        yield Violation(
            error_if(members),
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
    what="The target is a SQLite file, but Spark's tasks run on a cluster.",
    consequence="Each worker would open a file of that name on its own machine.",
    remedy='Use a database server, or master = "local[*]".',
    acceptable_when="If all workers run on this machine.",
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
    what="Spark's tasks run on a cluster, but the address of the brokers or the database is "
    "localhost.",
    consequence="On a worker, localhost is the worker itself: it finds no server there, or the "
    "wrong one.",
    remedy="Use addresses that workers can reach, in the brokers' advertised.listeners and in "
    "target.",
    acceptable_when="If all workers run on this machine.",
)
def localhost_on_cluster(case: RuleContext) -> Iterator[Violation]:
    if case.snapshot.spark.master.startswith("local"):
        return
    local = [
        f"broker {broker.node} at {broker.host}"
        for broker in case.cluster.brokers
        if is_loopback(broker.host)
    ]
    database = case.snapshot.databases.get(case.name)
    if database is not None and database.kind != "sqlite" and is_loopback(database.host):
        local.append(f"database at {database.host or 'a local socket'}")
    if local:
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            (f'spark.master="{case.snapshot.spark.master}"', *local),
            "use names that the workers can resolve in the brokers' advertised.listeners and in"
            " the target's host",
        )


@rule(
    "PIPELINE_SPECULATION_ON",
    Risk.STANDSTILL,
    when="a task takes longer than the others",
    what="Spark may run a second copy of a slow task.",
    consequence="Both copies write the same range. The ledger lets only one of them commit, so "
    "nothing is repeated. The other one waits for its lock and fails, and the batch takes longer.",
    remedy="Set spark.speculation=false.",
    acceptable_when="Never for a pipeline.",
)
def speculation_on(case: RuleContext) -> Iterator[Violation]:
    if case.snapshot.spark.conf.get("spark.speculation", "false").lower() == "true":
        yield Violation(
            Severity.WARNING,
            "[spark] conf",
            ("spark.speculation=true",),
            'remove "spark.speculation" from [spark] conf',
        )


@rule(
    "PIPELINE_SMALL_BATCHES",
    Risk.STANDSTILL,
    when="events arrive faster than small batches can be written",
    what="The limit of records per micro-batch is low.",
    consequence="Each batch takes some tens of milliseconds whatever its size, so small batches "
    "limit the records per second.",
    remedy="Leave batch_rows_max at its default.",
    acceptable_when="If rows are very wide, or few events are ever published.",
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
    what="A micro-batch may contain millions of records.",
    consequence="A batch is planned and reported as a whole: after a long outage there is no "
    "visible progress for minutes, and other pipelines of the same run wait for a core.",
    remedy="Leave batch_rows_max at its default.",
    acceptable_when="If no other pipeline is in the same run.",
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
    "PIPELINE_IGNORES_MISSING_DOCUMENTS",
    Risk.LOSS,
    when="an event is about a document that the table does not have yet",
    what="Events of documents that are not in the table are ignored.",
    consequence="A document that is inserted shortly after its first event does not get that "
    "status until its next event.",
    remedy='Set missing = "park" or "insert".',
    acceptable_when="If the table has every document before the source publishes its first event.",
)
def ignores_missing_documents(case: RuleContext) -> Iterator[Violation]:
    if case.pipeline.missing == "ignore":
        yield Violation(
            Severity.NOTE,
            f"pipeline {case.name}",
            (f'pipelines.{case.name}.missing="ignore"',),
            f'[pipelines.{case.name}]\nmissing = "park"',
        )


@rule(
    "PIPELINE_DELETES_UNMAPPED_COLUMNS",
    Risk.LOSS,
    when="the source publishes a record without a value",
    what="A delete removes the whole row, including columns that this pipeline does not write.",
    consequence="What your application or another pipeline stores in those columns is lost with "
    "the row.",
    remedy='Set deletes = "clear" to empty only the mapped columns, or deletes = "park" to decide '
    "case by case.",
    acceptable_when="If the row has no value without the source's document.",
)
def deletes_unmapped_columns(case: RuleContext) -> Iterator[Violation]:
    others = case.database.other_columns
    if case.deletes_rows and others:
        yield Violation(
            warning_if(case.pipeline.missing != "insert"),
            f"pipeline {case.name}",
            (f"columns that it does not write: {', '.join(others)}",),
            f'[pipelines.{case.name}]\ndeletes = "clear"',
        )


@rule(
    "PIPELINE_STATUS_NOT_DECLARED",
    Risk.STANDSTILL,
    when="an event has a status that no transition names",
    what="Records or rows have a status that the declared transitions do not name.",
    consequence="Such an event is refused and parks its document. A row with such a status never "
    "gets another one.",
    remedy="Add the status to [pipelines.NAME.transitions], with the statuses that may follow it.",
    acceptable_when="If that status is wrong, and parking it is right.",
)
def status_not_declared(case: RuleContext) -> Iterator[Violation]:
    declared = transitions.declare(case.pipeline.followers)
    if not declared:
        return
    known = set(transitions.statuses(declared))
    sample = case.topic.sample
    counts: dict[str, int] = {}
    if sample and case.name in sample.seen:
        counts = sample.seen[case.name].statuses
    unknown = {status: count for status, count in counts.items() if status not in known}
    stored = sorted(set(case.pipeline.statuses or ()) - known)
    if unknown or stored:
        evidence = [
            f"{count} of the newest {sum(counts.values())} events: {status!r}"
            for status, count in unknown.items()
        ]
        evidence += [f"the table contains {status!r}" for status in stored]
        lines = "\n".join(
            f"{msgspec.json.encode(status).decode()} = []"
            for status in dict.fromkeys([*unknown, *stored])
        )
        yield Violation(
            error_if(2 * sum(unknown.values()) >= max(1, sum(counts.values()))),
            f"pipeline {case.name}",
            tuple(evidence),
            f"[pipelines.{case.name}.transitions]\n{lines}",
        )


@rule(
    "PIPELINE_STATUS_UNREACHABLE",
    Risk.STANDSTILL,
    when="a document reaches that status",
    what="The declared transitions name a status that no document can reach, or one that looks "
    "misspelt.",
    consequence="A missing or misspelt transition refuses correct events and parks their "
    "documents.",
    remedy="Let another status lead to it, or correct its name.",
    acceptable_when="If the status is only for documents that start with it.",
)
def status_unreachable(case: RuleContext) -> Iterator[Violation]:
    declared = transitions.declare(case.pipeline.followers)
    if not declared:
        return
    evidence = transitions.findings(declared)
    if evidence:
        correction = "let another status lead to it"
        for misspelt, similar in transitions.doubtful(declared)[:1]:
            correction = f"write {similar!r} instead of {misspelt!r}"
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            tuple(evidence),
            f"{correction} in [pipelines.{case.name}.transitions]; instep settings draws them",
        )


@rule(
    "PIPELINE_DUE_STATUS_UNKNOWN",
    Risk.STANDSTILL,
    when="a document stays in the status that was meant",
    what="A limit in [pipelines.NAME.due] is for a status that no document has.",
    consequence="Statuses are compared exactly, including case. No document is ever found overdue "
    "in a status that is misspelt.",
    remedy="Write the status as the events have it.",
    acceptable_when="If the status is rare, and no document has had it yet.",
)
def due_status_unknown(case: RuleContext) -> Iterator[Violation]:
    if not case.pipeline.due:
        return
    known = set(transitions.statuses(transitions.declare(case.pipeline.followers)))
    if not known:
        sample = case.topic.sample
        seen = sample.seen.get(case.name) if sample else None
        known = set(case.pipeline.statuses or ()) | set(seen.statuses if seen else ())
    unknown = [status for status in case.pipeline.due if status not in known]
    if known and unknown:
        yield Violation(
            Severity.WARNING,
            f"pipeline {case.name}",
            tuple(f"{status!r}{settings.nearest(status, known)}" for status in unknown),
            f"correct the status in [pipelines.{case.name}.due]; known:"
            f" {', '.join(map(repr, sorted(known)))}",
        )


@rule(
    "PIPELINE_GUARANTEE_WEAK",
    Risk.LOSS,
    when="the pipeline dies in the middle of a batch",
    what="The declared guarantee is weaker than exactly-once.",
    consequence="at-most-once loses the events of an unfinished batch, at-least-once applies them "
    "twice. exactly-once does neither, because rows and position are in one transaction, and is as "
    "fast.",
    remedy='Set guarantee = "exactly-once".',
    acceptable_when="If the loss or the repetition is intended, for example in a comparison.",
)
def guarantee_weak(case: RuleContext) -> Iterator[Violation]:
    if case.pipeline.guarantee != "exactly-once":
        loses = case.pipeline.guarantee == "at-most-once"
        twice = "the pipeline dies in the middle of a batch: its events are applied twice"
        yield Violation(
            warning_if(loses),
            f"pipeline {case.name}",
            (f'pipelines.{case.name}.guarantee="{case.pipeline.guarantee}"',),
            f'[pipelines.{case.name}]\nguarantee = "exactly-once"',
            when=None if loses else twice,
        )


@rule(
    "PIPELINE_WITHOUT_HISTORY",
    Risk.LOSS,
    when="someone asks what happened to a document, or events must be replayed after the log has "
    "deleted them",
    what="The pipeline keeps no history.",
    consequence="instep show and instep replay then know only what is still in the log. What was "
    "applied and is no longer in the log cannot be looked up or applied again.",
    remedy="Set history = true. instep history prune keeps it small.",
    acceptable_when="If the log keeps everything that you will ever look up.",
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
    when="someone reads the settings file, or it is committed to a repository",
    what="The database password is in the settings file.",
    consequence="Settings are copied, shown and kept in version control, and the password with "
    "them.",
    remedy="Write ${DB_PASSWORD} instead, and set the variable where the pipeline runs.",
    acceptable_when="On a laptop and in tests.",
)
def password_in_file(case: RuleContext) -> Iterator[Violation]:
    if case.pipeline.password_written:
        yield Violation(
            Severity.NOTE,
            f"pipeline {case.name}",
            (f"pipelines.{case.name}.target contains a password",),
            f"write ${{DB_PASSWORD}} instead of the password in pipelines.{case.name}.target,"
            " and export DB_PASSWORD",
        )
