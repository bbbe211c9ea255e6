"""Bugs that the tests put into the lab's own clients and faults.

Each function changes the code of this process. `python -m tests.support.lab_bugs` is a client of
the lab with the bug that the environment names. Bugs in clients show in about one record of
`RATE`.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)

from instep.kafka import topics
from instep.local.proxy import NetworkFault, Proxy
from instep_lab import power_cut, trial, workload
from instep_lab.clients import __main__ as clients_main
from instep_lab.clients import (
    admin,
    bulk,
    committed_offsets,
    consuming,
    defaults,
    kafka_python,
    publishing,
    share_group,
    table,
)
from instep_lab.clients.__main__ import main
from instep_lab.cluster_pool import LabCluster
from instep_lab.history import ClientOperation, HistoryWriter, OperationKind, OperationStatus
from instep_lab.queues import redis

VARIABLE = "INSTEP_TEST_LAB_BUG"
RATE = 37
BROKEN = (
    *("sender", "bulk", "consumer", "java", "python", "share", "queue", "pool", "table"),
    *("proxy", "broker", "disk", "power", "throttle", "topic", "history", "commits", "defaults"),
)

Patch = Callable[[object, str, object], None]
Bug = Callable[[Patch], None]


class Rarely:
    """Answers yes once in a while."""

    def __init__(self, rate: int = RATE) -> None:
        self._rate = rate
        self._calls = itertools.count(1)

    def __call__(self) -> bool:
        return next(self._calls) % self._rate == 0


# --- senders -------------------------------------------------------------------------------------


def sender_drops(patch: Patch) -> None:
    """Report a record as sent that is never sent."""
    send, hits = publishing._Sender.send, Rarely()

    def broken(self: publishing._Sender, record: workload.WorkloadRecord) -> None:
        if hits():
            self._note(record.key, record.number, OperationStatus.OK)
        else:
            send(self, record)

    patch(publishing._Sender, "send", broken)


def sender_repeats(patch: Patch) -> None:
    """Send a record twice and report it once."""
    send, hits = publishing._Sender.send, Rarely()

    def broken(self: publishing._Sender, record: workload.WorkloadRecord) -> None:
        send(self, record)
        if hits():
            key = publishing._encode_key(record, self._plan.encoding)
            headers = workload.headers(self._id, self._handed_over - 1)
            self._producer.produce(self._plan.topic, record.value, key=key, headers=headers)

    patch(publishing._Sender, "send", broken)


def sender_swaps(patch: Patch) -> None:
    """Send a record after the next one of its key."""
    send, end, hits = publishing._Sender.send, publishing._Sender.end, Rarely()
    held: dict[str, workload.WorkloadRecord] = {}

    def broken(self: publishing._Sender, record: workload.WorkloadRecord) -> None:
        if record.key in held:
            send(self, record)
            send(self, held.pop(record.key))
        elif hits():
            held[record.key] = record
        else:
            send(self, record)

    def broken_end(self: publishing._Sender) -> None:
        for record in held.values():
            send(self, record)
        held.clear()
        end(self)

    patch(publishing._Sender, "send", broken)
    patch(publishing._Sender, "end", broken_end)


def sender_reports_other_offsets(patch: Patch) -> None:
    """Record another offset than the one that was acknowledged."""
    _change_history(patch, OperationKind.SEND, lambda one: {"offset": (one.offset or 0) + 1})


def sender_ignores_errors(patch: Patch) -> None:
    """Record every failed send as acknowledged."""
    patch(publishing, "outcome_of", lambda _error: OperationStatus.OK)


def sender_does_not_die(patch: Patch) -> None:
    """Survive the record after which the plan has it die."""
    publish = publishing.publish

    def broken(plan: publishing.Publishing, *rest: Any) -> None:
        publish(msgspec.structs.replace(plan, dies_after=None), *rest)

    patch(publishing, "publish", broken)
    patch(clients_main, "publish", broken)


def bulk_sender_drops(patch: Patch) -> None:
    """Report records as sent that are never sent, where rates are measured."""
    hits = Rarely()

    class Broken(Producer):
        def produce(self, *args: Any, **rest: Any) -> None:
            if not hits():
                super().produce(*args, **rest)

    patch(bulk, "Producer", Broken)


def sender_loses_keys(patch: Patch) -> None:
    """Send records without their key."""
    patch(publishing, "_encode_key", lambda *_: None)


# --- consumers -----------------------------------------------------------------------------------


def _change_batches(
    patch: Patch, change: Callable[[list[Message]], Sequence[Message]], rate: int = RATE
) -> None:
    """Change a batch in which a record is hit; other batches stay as they are."""
    handle, hits = consuming._Reader._handle, Rarely(rate)

    def broken(self: consuming._Reader, batch: Sequence[Message]) -> None:
        hit = [hits() for _ in batch]
        handle(self, change(list(batch)) if any(hit) else batch)

    patch(consuming._Reader, "_handle", broken)


def consumer_skips(patch: Patch) -> None:
    """Pass over a record."""
    _change_batches(patch, lambda batch: batch[1:])


def consumer_swaps(patch: Patch) -> None:
    """Hand out two records in the wrong order."""
    _change_batches(patch, lambda batch: [*batch[1::-1], *batch[2:]])


def consumer_repeats(patch: Patch) -> None:
    """Hand a record out twice."""
    _change_batches(patch, lambda batch: [*batch, batch[-1]])


def consumer_does_not_work(patch: Patch) -> None:
    """Read a record and do not work on it."""
    work, hits = consuming._Reader._work, Rarely()

    def broken(self: consuming._Reader, message: Message) -> None:
        if not hits():
            work(self, message)

    patch(consuming._Reader, "_work", broken)


def consumer_works_twice(patch: Patch) -> None:
    """Work twice on a record."""
    work, hits = consuming._Reader._work, Rarely()

    def broken(self: consuming._Reader, message: Message) -> None:
        work(self, message)
        if hits():
            work(self, message)

    patch(consuming._Reader, "_work", broken)


def consumer_commits_too_far(patch: Patch) -> None:
    """Commit the offset after the next record."""
    mark = consuming._Reader._mark

    def broken(self: consuming._Reader, batch: Sequence[Message]) -> None:
        mark(self, batch)
        for message in batch:
            self._last[message.partition() or 0] += 1

    patch(consuming._Reader, "_mark", broken)


def consumer_commits_nothing(patch: Patch) -> None:
    """Record commits that were never requested."""

    def broken(self: consuming._Reader, *, synchronous: bool) -> None:
        for number, last in self._last.items():
            place = TopicPartition(self._plan.topic, number, last + 1)
            self._note_commit(place, OperationStatus.OK, "sync")

    patch(consuming._Reader, "_commit", broken)


def consumer_commits_first(patch: Patch) -> None:
    """Commit before the work although the plan says after it."""
    handle = consuming._Reader._handle

    def broken(self: consuming._Reader, batch: Sequence[Message]) -> None:
        if self._plan.commit is consuming.CommitMode.SYNC:
            self._mark(batch)
            self._commit(synchronous=True)
        handle(self, batch)

    patch(consuming._Reader, "_handle", broken)


def consumer_skips_final_commit(patch: Patch) -> None:
    """Do not commit when partitions are revoked or the consumer closes."""
    commit = consuming._Reader._commit

    def broken(self: consuming._Reader, *, synchronous: bool) -> None:
        if self._plan.commit is not consuming.CommitMode.COMBINED or not synchronous:
            commit(self, synchronous=synchronous)

    patch(consuming._Reader, "_commit", broken)


def consumer_does_not_die(patch: Patch) -> None:
    """Survive the point at which the plan has it die."""
    patch(consuming._Reader, "_die_on", lambda *_: None)
    patch(consuming._Reader, "_maybe_die", lambda *_: None)


def consumer_records_other_partitions(patch: Patch) -> None:
    """Record every read as one of partition 0."""
    _change_history(patch, OperationKind.READ, lambda _: {"partition": 0}, rate=1)


def consumer_records_other_offsets(patch: Patch) -> None:
    """Record the offset before the one that was read."""
    _change_history(patch, OperationKind.READ, lambda one: {"offset": (one.offset or 1) - 1})


def consumer_records_other_times(patch: Patch) -> None:
    """Record another timestamp than that of the record."""
    _change_history(
        patch, OperationKind.READ, lambda one: {"timestamp_ms": (one.timestamp_ms or 0) + 5_000}
    )


def consumer_starts_at_the_beginning(patch: Patch) -> None:
    """Read partitions from the beginning whatever the group has committed."""
    assigned = consuming._Reader._assigned

    def broken(self: consuming._Reader, consumer: Consumer, parts: list[TopicPartition]) -> None:
        assigned(self, consumer, parts)
        first = [TopicPartition(one.topic, one.partition, OFFSET_BEGINNING) for one in parts]
        if self._plan.config.get("group.protocol") == "consumer":
            consumer.incremental_assign(first)
        else:
            consumer.assign(first)

    patch(consuming._Reader, "_assigned", broken)


def consumer_reads_uncommitted(patch: Patch) -> None:
    """Ignore the isolation level of the plan."""
    start = consuming._Reader.__init__

    def broken(self: consuming._Reader, plan: consuming.Consuming, *rest: Any) -> None:
        config = {**plan.config, "isolation.level": "read_uncommitted"}
        start(self, msgspec.structs.replace(plan, config=config), *rest)

    patch(consuming._Reader, "__init__", broken)


def consumer_stops_early(patch: Patch) -> None:
    """End before the end of the log."""
    poll = consuming._Reader._poll

    def broken(self: consuming._Reader, limit: int) -> list[Message]:
        found = poll(self, limit)
        if self._plan.to_end and self.progress.read + len(found) > 2 * RATE:
            self.progress.ends |= dict.fromkeys(self.progress.assigned, 0)
        return found

    patch(consuming._Reader, "_poll", broken)


def consumer_rejoins(patch: Patch) -> None:
    """Leave the group after the first batch and join it again, as after a lost session."""
    poll = consuming._Reader._poll
    away: set[int] = set()

    def broken(self: consuming._Reader, limit: int) -> list[Message]:
        if self.progress.read and self._plan.assigned is None and id(self) not in away:
            away.add(id(self))
            self._consumer.unsubscribe()
            self.__enter__()
        return poll(self, limit)

    patch(consuming._Reader, "_poll", broken)


def consumer_ignores_auto_commit(patch: Patch) -> None:
    """Never commit automatically."""
    start = consuming._Reader.__init__

    def broken(self: consuming._Reader, plan: consuming.Consuming, *rest: Any) -> None:
        config = {**plan.config, "enable.auto.commit": False}
        start(self, msgspec.structs.replace(plan, config=config), *rest)

    patch(consuming._Reader, "__init__", broken)


def consumer_joins_another_group(patch: Patch) -> None:
    """Join a group of another name than the plan's."""
    start = consuming._Reader.__init__

    def broken(self: consuming._Reader, plan: consuming.Consuming, *rest: Any) -> None:
        config = {**plan.config, "group.id": f"{plan.group}-{plan.member}"}
        start(self, msgspec.structs.replace(plan, config=config), *rest)

    patch(consuming._Reader, "__init__", broken)


def pool_ignores_keys(patch: Patch) -> None:
    """Give some records of a key to another thread."""
    hits = Rarely(20)
    submit = consuming._Workers.submit

    def broken(self: consuming._Workers, message: Message) -> None:
        if hits():
            self._queues[-1].put(message)
        else:
            submit(self, message)

    patch(consuming._Workers, "submit", broken)


# --- the Java client ------------------------------------------------------------------------------


def _java_bug(patch: Patch, name: str) -> None:
    """Let the lab's Java clients have a bug, which is built into them."""
    java_connection = LabCluster.java_connection

    def broken(self: LabCluster, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**java_connection(self, config), "lab.bug": name}

    patch(LabCluster, "java_connection", broken)


def java_drops(patch: Patch) -> None:
    """Report a record as sent that is never sent."""
    _java_bug(patch, "drop")


def java_repeats(patch: Patch) -> None:
    """Send a record twice and report it once."""
    _java_bug(patch, "repeat")


def java_swaps(patch: Patch) -> None:
    """Send a record after the next one of its key."""
    _java_bug(patch, "swap")


def java_skips(patch: Patch) -> None:
    """Pass over a record."""
    _java_bug(patch, "skip")


def java_does_not_work(patch: Patch) -> None:
    """Read a record and do not work on it."""
    _java_bug(patch, "no work")


def java_commits_too_far(patch: Patch) -> None:
    """Commit the offset after the next record."""
    _java_bug(patch, "commit too far")


def java_does_not_die(patch: Patch) -> None:
    """Survive the point at which the plan has it die."""
    _java_bug(patch, "no death")


def java_bulk_sender_drops(patch: Patch) -> None:
    """Report records as sent that are never sent, where rates are measured."""
    _java_bug(patch, "bulk drop")


def java_swaps_what_it_reads(patch: Patch) -> None:
    """Hand out two records in the wrong order."""
    _java_bug(patch, "swap reads")


def java_reports_other_offsets(patch: Patch) -> None:
    """Record another offset than the one that was acknowledged."""
    _java_bug(patch, "other offsets")


def java_commits_nothing(patch: Patch) -> None:
    """Record commits that were never requested."""
    _java_bug(patch, "commit nothing")


def java_ignores_auto_commit(patch: Patch) -> None:
    """Never commit automatically."""
    _java_bug(patch, "no automatic commit")


def java_stops_early(patch: Patch) -> None:
    """End before the end of the log."""
    _java_bug(patch, "stop early")


# --- other clients --------------------------------------------------------------------------------


def python_skips(patch: Patch) -> None:
    """Pass over a record."""
    handle, hits = kafka_python._PythonReader._handle, Rarely()

    def broken(self: kafka_python._PythonReader, records: list[Any]) -> None:
        handle(self, [record for record in records if not hits()])

    patch(kafka_python._PythonReader, "_handle", broken)


def python_starts_at_the_beginning(patch: Patch) -> None:
    """Read partitions from the beginning whatever the group has committed."""
    assigned = kafka_python._PythonReader.on_partitions_assigned

    def broken(self: kafka_python._PythonReader, parts: Collection[Any]) -> None:
        self._consumer.seek_to_beginning(*parts)
        assigned(self, parts)

    patch(kafka_python._PythonReader, "on_partitions_assigned", broken)


def share_joins_another_group(patch: Patch) -> None:
    """Let each member read in a share group of its own."""
    consumer = ShareConsumer

    def broken(config: dict[str, Any]) -> Any:
        return consumer({**config, "group.id": f"{config['group.id']}-{config['client.id']}"})

    patch(share_group, "ShareConsumer", broken)


def queue_client_drops(patch: Patch) -> None:
    """Pass over a message that was read."""
    dequeue, hits = redis.ListQueue.dequeue, Rarely()

    def broken(self: redis.ListQueue, count: int) -> list[bytes]:
        return [message for message in dequeue(self, count) if not hits()]

    patch(redis.ListQueue, "dequeue", broken)


# --- the table -----------------------------------------------------------------------------------


def table_forgets_offsets(patch: Patch) -> None:
    """Return offset 0 for every partition."""
    offsets = table.SqliteTable.offsets
    patch(table.SqliteTable, "offsets", lambda self, topic: dict.fromkeys(offsets(self, topic), 0))


def table_is_ahead(patch: Patch) -> None:
    """Return offsets that are two records ahead."""
    offsets = table.SqliteTable.offsets
    patch(
        table.SqliteTable,
        "offsets",
        lambda self, topic: {part: at + 2 for part, at in offsets(self, topic).items()},
    )


def table_has_no_index(patch: Patch) -> None:
    """Create the table without its unique index."""
    start = table.SqliteTable.__init__

    def broken(self: table.SqliteTable, *args: Any, unique: Any = None, **rest: Any) -> None:
        start(self, *args, unique=type(unique)(), **rest)

    patch(table.SqliteTable, "__init__", broken)


# --- faults --------------------------------------------------------------------------------------


def proxy_corrupts_nothing(patch: Patch) -> None:
    """Count requests as corrupted that pass unchanged."""

    def broken(self: Proxy, chunk: bytes, _every: int) -> bytes:
        self.counts.garbled_chunks += 1
        return chunk

    patch(Proxy, "_garbled", broken)


def proxy_cuts_nothing(patch: Patch) -> None:
    """Report connections as cut that stay open."""
    patch(Proxy, "cut", lambda _self: 1)


def proxy_swallows_nothing(patch: Patch) -> None:
    """Pass the responses that are to be dropped."""
    inject = Proxy.inject

    def broken(self: Proxy, fault: NetworkFault) -> None:
        inject(self, NetworkFault(fault.delay_s, False, fault.refuses, fault.garbles_every))

    patch(Proxy, "inject", broken)


def broker_is_not_killed(patch: Patch) -> None:
    """Record the kill of a broker that lives on."""
    patch(trial.Trial, "kill", lambda self, node: self.note(f"fault: kill -9 of broker {node}"))


def broker_is_not_frozen(patch: Patch) -> None:
    """Record that a broker is frozen that works on."""
    patch(trial.Trial, "freeze", lambda self, node: self.note(f"fault: SIGSTOP of broker {node}"))


def disk_is_not_wiped(patch: Patch) -> None:
    """Record that the data of a broker was deleted although it is there."""
    patch(trial.Trial, "wipe", lambda self, node: self.note(f"fault: wiped broker {node}"))


def topic_settings_are_ignored(patch: Patch) -> None:
    """Create topics without their settings."""
    create = topics.create

    def broken(
        cluster: Any, name: str, partitions: int, replicas: Any, _: Any, **rest: Any
    ) -> None:
        create(cluster, name, partitions, replicas, {}, **rest)

    patch(topics, "create", broken)


def power_is_not_cut(patch: Patch) -> None:
    """Report that the power of a disk was cut that works on."""
    patch(power_cut.PowerCutDisk, "cut", lambda self: None)


def throttle_does_nothing(patch: Patch) -> None:
    """Report a limit of replication that was never set."""
    patch(admin, "limit_replication", lambda *_: None)


# --- what the brokers and the libraries tell ------------------------------------------------------


def commits_are_passed_over(patch: Patch) -> None:
    """Pass over commits in the offsets topic."""
    decode, hits = committed_offsets.decode_key, Rarely()
    patch(committed_offsets, "decode_key", lambda key: None if hits() else decode(key))


def commits_are_misread(patch: Patch) -> None:
    """Return the offset before the committed one."""
    position = committed_offsets.position
    patch(committed_offsets, "position", lambda *place: (position(*place) or 1) - 1)


def defaults_are_mixed_up(patch: Patch) -> None:
    """Give each setting of a Java client the default of the next one."""
    parse = defaults.parse

    def broken(page: str) -> dict[str, str]:
        found = parse(page)
        names = list(found)
        return dict(zip(names, [found[name] for name in (*names[1:], *names[:1])], strict=True))

    patch(defaults, "parse", broken)


def _mix_up(patch: Patch, name: str) -> None:
    """Give each setting that a library reports the value of the next one."""
    report = getattr(defaults, name)

    def broken(*args: Any) -> tuple[str, dict[str, str]]:
        release, found = report(*args)
        names = list(found)
        return release, {
            one: found[other] for one, other in zip(names, names[1:] + names[:1], strict=True)
        }

    patch(defaults, name, broken)


def defaults_of_librdkafka_are_mixed_up(patch: Patch) -> None:
    """Give each setting of librdkafka the value of the next one."""
    _mix_up(patch, "of_librdkafka")


def defaults_of_kafka_python_are_mixed_up(patch: Patch) -> None:
    """Give each setting of kafka-python the value of the next one."""
    _mix_up(patch, "of_kafka_python")
    _mix_up(patch, "of_kafka_python_consumer")


# --- the history ---------------------------------------------------------------------------------


def history_loses_lines(patch: Patch) -> None:
    """Do not write some of the operations."""
    note, hits = HistoryWriter.note, Rarely()

    def broken(self: HistoryWriter, operation: ClientOperation) -> None:
        if not hits():
            note(self, operation)

    patch(HistoryWriter, "note", broken)


def _change_history(
    patch: Patch,
    kind: OperationKind,
    change: Callable[[ClientOperation], dict[str, Any]],
    rate: int = RATE,
) -> None:
    note, hits = HistoryWriter.note, Rarely(rate)

    def broken(self: HistoryWriter, operation: ClientOperation) -> None:
        if operation.kind is kind and operation.offset is not None and hits():
            operation = msgspec.structs.replace(operation, **change(operation))
        note(self, operation)

    patch(HistoryWriter, "note", broken)


ALL: dict[str, Bug] = {
    name: function
    for name, function in list(globals().items())
    if name.partition("_")[0] in BROKEN and callable(function)
}


if __name__ == "__main__":
    ALL[os.environ[VARIABLE]](setattr)
    main(*sys.argv[1:3])
