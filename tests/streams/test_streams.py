"""Test streams that copy records from topic to topic, on a real broker."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from instep import errors
from instep.kafka import configs, offsets, position_topic, topics
from instep.kafka.connection import Cluster
from instep.kafka.record_writer import Headers
from instep.pipeline.runner import RunnerState
from instep.streams import output, reset, starts
from instep.streams.runner import StreamRunner
from tests.support import bad_input
from tests.support.producing import IN_ORDER
from tests.support.runs import event, send
from tests.support.streams import Copy, by_key, contents, declare, log, own_id, same, wait_same
from tests.support.waiting import wait_until

LARGE = 900_000  # bytes; the topic refuses little more


def _ended(run: StreamRunner) -> StreamRunner:
    run.join(90)
    assert not run.is_alive()
    if run.error:
        raise run.error
    return run


def test_every_record_is_copied_once_and_in_order_whatever_it_contains(
    cluster: Cluster, copy: Copy
) -> None:
    name, stream = declare(cluster)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    for case in bad_input.CASES.values():
        for sent in case.records("stream"):
            if sent.key is not None and len(sent.value or b"") <= LARGE:
                headers: Headers = list(sent.headers)
                producer.produce(stream.source, sent.value, sent.key, headers=headers)
    assert producer.flush(30) == 0
    send(cluster, stream.source, (b"", b"an empty key is a key"), (b"gone", None))
    run = _ended(copy(name, stream, once=True))
    found = log(cluster, stream.target)
    assert contents(found) == contents(log(cluster, stream.source))
    assert same(cluster, stream)
    ids = [own_id(record) for record in found]
    assert len(set(ids)) == len(ids)
    assert run.progress.totals["applied"] == len(ids)


@pytest.mark.parametrize("sql", [None, "SELECT value FROM records"])
def test_a_record_keeps_its_timestamp_as_far_as_the_output_topic_accepts_it(
    cluster: Cluster, copy: Copy, sql: str | None
) -> None:
    name, stream = declare(cluster, partitions=(1, 1), sql=sql)
    now = time.time_ns() // 1_000_000
    hour = 3_600_000
    accepted = {"message.timestamp.before.max.ms": str(20 * hour)}
    configs.alter_topic(cluster, stream.target, accepted)
    configs.alter_topic(cluster, stream.source, {"message.timestamp.after.max.ms": str(2**62)})
    kept = [now - 3 * hour, now - 19 * hour, now - 5 * hour, now + hour // 2]
    replaced = [now - 21 * hour, now + 2 * hour, now * 1_000, 1]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    for number, timestamp_ms in enumerate([*kept, *replaced]):
        producer.produce(stream.source, b"v", b"%d" % number, timestamp=timestamp_ms)
    assert producer.flush(30) == 0

    _ended(copy(name, stream, once=True))

    found = [one.timestamp_ms for one in log(cluster, stream.target)]
    assert found[: len(kept)] == kept
    assert all(now <= one <= now + hour for one in found[len(kept) :])


def test_a_stream_may_use_the_time_of_publication(cluster: Cluster, copy: Copy) -> None:
    name, stream = declare(cluster, partitions=(1, 1), timestamp="publish")
    now = time.time_ns() // 1_000_000
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    producer.produce(stream.source, b"v", b"k", timestamp=now - 3_600_000)
    assert producer.flush(30) == 0
    _ended(copy(name, stream, once=True))
    [record] = log(cluster, stream.target)
    assert record.timestamp_ms >= now


def test_a_second_run_continues_behind_the_first(cluster: Cluster, copy: Copy) -> None:
    name, stream = declare(cluster)
    send(cluster, stream.source, *(event(f"job-{n}", 1) for n in range(20)))
    _ended(copy(name, stream, once=True))
    send(cluster, stream.source, *(event(f"job-{n}", 2) for n in range(20)))
    run = _ended(copy(name, stream, once=True))
    assert run.progress.totals["records"] == 20
    assert same(cluster, stream)


def test_a_record_that_passed_another_stream_has_the_id_of_the_last_one(
    cluster: Cluster, copy: Copy
) -> None:
    first, stream = declare(cluster)
    second, further = declare(cluster, source=stream.target)
    send(cluster, stream.source, event("job-1", 1))
    _ended(copy(first, stream, once=True))
    _ended(copy(second, further, once=True))
    (record,) = log(cluster, further.target)
    assert own_id(record).startswith(f"{second}/")
    assert output.origin(record.headers, first) is None


def test_the_id_of_a_record_is_the_same_however_often_it_is_published(
    cluster: Cluster, copy: Copy
) -> None:
    name, stream = declare(cluster, guarantee="at-least-once")
    send(cluster, stream.source, event("job-1", 1))
    _ended(copy(name, stream, once=True))
    _reset(cluster, name, stream, "start", [])
    _ended(copy(name, stream, once=True))
    ids = {own_id(record) for record in log(cluster, stream.target)}
    assert len(log(cluster, stream.target)) == 2
    topic_id = topics.kafka_spelling(topics.describe(cluster, stream.source).id)
    (partition,) = [record.partition for record in log(cluster, stream.source)]
    assert ids == {f"{name}/{topic_id}/{partition}/0/0"}


def test_new_partitions_are_read_while_the_stream_runs(cluster: Cluster, copy: Copy) -> None:
    name, stream = declare(cluster)
    send(cluster, stream.source, event("job-1", 1))
    run = copy(name, stream)
    wait_same(cluster, stream)
    topics.grow(cluster, stream.source, 5)
    for partition in range(5):
        send(cluster, stream.source, event(f"job-{partition + 5}", 1), partition=partition)
    wait_same(cluster, stream)
    wait_until(lambda: run.state is RunnerState.RUNNING, "the stream to run")
    assert set(starts.read_positions(cluster, name)) == set(range(5))


def test_of_two_runs_at_once_the_older_one_ends(cluster: Cluster, copy: Copy) -> None:
    name, stream = declare(cluster)
    send(cluster, stream.source, *(event(f"job-{n}", 1) for n in range(20)))
    older = copy(name, stream)
    wait_same(cluster, stream)
    newer = copy(name, stream)
    wait_until(lambda: newer.state is RunnerState.RUNNING, "the newer run")
    for version in range(2, 5):
        send(cluster, stream.source, *(event(f"job-{n}", version) for n in range(20)))
    wait_until(lambda: older.state is RunnerState.ENDED, "the end of the older run")
    wait_same(cluster, stream)
    assert isinstance(older.error, errors.Fenced)
    assert newer.state is not RunnerState.ENDED


def _forget_output(cluster: Cluster, topic: str) -> None:
    """Remove all records, so that nothing shows that they were published."""
    ends = offsets.latest(cluster, topic, [0, 1])
    topics.trim(cluster, topic, {part: end for part, end in ends.items() if end})


# --- stops ----------------------------------------------------------------------------------------


def _published_once(cluster: Cluster, copy: Copy, **changes: Any) -> tuple[str, Any]:
    name, stream = declare(cluster, **changes)
    send(cluster, stream.source, *(event(f"job-{n}", 1) for n in range(20)))
    _ended(copy(name, stream, once=True))
    return name, stream


def test_a_position_that_was_lost_stops_the_stream(cluster: Cluster, copy: Copy) -> None:
    name, stream = _published_once(cluster, copy)
    _delete_positions(cluster, name)
    before = contents(log(cluster, stream.target))
    with pytest.raises(errors.PositionMissing, match="has published records of partition 0, 1, 2"):
        _ended(copy(name, stream, once=True))
    assert contents(log(cluster, stream.target)) == before


def test_a_position_that_was_removed_from_its_topic_stops_the_stream(
    cluster: Cluster, copy: Copy
) -> None:
    name, stream = _published_once(cluster, copy)
    topic = position_topic.of_stream(name, 0).topic
    configs.alter_topic(cluster, topic, {"cleanup.policy": "delete"})
    topics.trim(cluster, topic, offsets.latest(cluster, topic, [1]))
    _forget_output(cluster, stream.target)
    with pytest.raises(errors.PositionMissing, match="of partition 1 before"):
        _ended(copy(name, stream, once=True))


def test_a_lost_position_is_noticed_behind_many_records_of_others(
    cluster: Cluster, copy: Copy
) -> None:
    name, stream = _published_once(cluster, copy)
    _delete_positions(cluster, name)
    _publish_others(cluster, stream)
    with pytest.raises(errors.PositionMissing, match="has published records of partition 0, 1, 2"):
        _ended(copy(name, stream, once=True))


def test_a_position_that_may_have_been_lost_stops_the_stream(cluster: Cluster, copy: Copy) -> None:
    name, stream = _published_once(cluster, copy)
    _delete_positions(cluster, name)
    _forget_output(cluster, stream.target)
    with pytest.raises(errors.PositionMissing, match="may have published") as stopped:
        _ended(copy(name, stream, once=True))
    assert f"instep stream reset {name} --to start" in stopped.value.remedy
    _reset(cluster, name, stream, "start", [])
    _ended(copy(name, stream, once=True))
    assert same(cluster, stream)


def test_a_reset_of_one_partition_decides_nothing_about_the_others(
    cluster: Cluster, copy: Copy
) -> None:
    name, stream = _published_once(cluster, copy)
    _delete_positions(cluster, name)
    _publish_others(cluster, stream)
    _reset(cluster, name, stream, "end", [0])
    with pytest.raises(errors.PositionMissing, match="of partition 1, 2 before"):
        _ended(copy(name, stream, once=True))


def test_a_position_that_was_deleted_in_its_topic_stops_the_stream(
    cluster: Cluster, copy: Copy
) -> None:
    """Compaction removes the position behind a tombstone, and keeps the first offset."""
    name, stream = _published_once(cluster, copy)
    topic = position_topic.of_stream(name, 0).topic
    _delete_positions(cluster, name)
    _reset(cluster, name, stream, "end", [0, 2])
    send(cluster, topic, (position_topic.KEY, None), partition=1)
    _forget_output(cluster, stream.target)
    with pytest.raises(errors.PositionMissing, match="of partition 1 before"):
        _ended(copy(name, stream, once=True))


def test_a_stream_that_is_new_begins_beside_records_of_others(cluster: Cluster, copy: Copy) -> None:
    name, stream = declare(cluster)
    send(cluster, stream.source, *(event(f"job-{n}", 1) for n in range(20)))
    send(cluster, stream.target, *((b"other", None) for _ in range(600)), partition=0)
    _ended(copy(name, stream, once=True))
    assert len(log(cluster, stream.target)) == 620


def _publish_others(cluster: Cluster, stream: Any) -> None:
    """Publish many records of another program behind those of the stream."""
    for partition in range(2):
        send(cluster, stream.target, *((b"other", None) for _ in range(600)), partition=partition)


def _delete_positions(cluster: Cluster, name: str) -> None:
    topics.delete(cluster, position_topic.of_stream(name, 0).topic)


def _reset(cluster: Cluster, name: str, stream: Any, place: str, partitions: list[int]) -> None:
    planned = reset.plan(cluster, name, stream, place, partitions)
    reset.execute(cluster, name, stream, planned)


def test_the_position_of_a_stream_between_other_topics_stops_it(
    cluster: Cluster, copy: Copy
) -> None:
    name, stream = _published_once(cluster, copy)
    _, other = declare(cluster)
    with pytest.raises(errors.PositionForeign, match="and the settings say"):
        _ended(copy(name, msgspec.structs.replace(stream, target=other.target), once=True))


def test_an_output_topic_that_grew_was_replaced_or_is_gone_stops_the_stream(
    cluster: Cluster, copy: Copy
) -> None:
    name, stream = _published_once(cluster, copy)
    topics.grow(cluster, stream.target, 4)
    with pytest.raises(errors.OutputTopicChanged, match="has 4 partitions, and had 2"):
        _ended(copy(name, stream, once=True))
    topics.delete(cluster, stream.target)
    with pytest.raises(errors.OutputTopicChanged, match="no longer exists"):
        _ended(copy(name, stream, once=True))
    topics.create(cluster, stream.target, 2)
    with pytest.raises(errors.OutputTopicChanged, match="deleted and created again"):
        _ended(copy(name, stream, once=True))


def test_an_output_topic_that_grows_stops_a_running_stream_before_its_next_commit(
    cluster: Cluster, copy: Copy
) -> None:
    name, stream = declare(cluster)
    send(cluster, stream.source, event("job-1", 1))
    run = copy(name, stream)
    wait_same(cluster, stream)
    topics.grow(cluster, stream.target, 4)
    send(cluster, stream.source, *(event(f"job-{n}", 1) for n in range(20)))
    wait_until(lambda: run.state is RunnerState.ENDED, "the stream to stop")
    assert isinstance(run.error, errors.OutputTopicChanged)
    assert len(log(cluster, stream.target)) == 1


def test_a_source_topic_that_was_replaced_stops_the_stream(cluster: Cluster, copy: Copy) -> None:
    name, stream = _published_once(cluster, copy)
    topics.delete(cluster, stream.source)
    topics.create(cluster, stream.source, 3)
    with pytest.raises(errors.TopicReplaced, match="deleted and created again"):
        _ended(copy(name, stream, once=True))


def test_records_that_expired_unpublished_stop_the_stream(cluster: Cluster, copy: Copy) -> None:
    name, stream = _published_once(cluster, copy)
    send(cluster, stream.source, event("job-1", 2), event("job-1", 3), partition=0)
    end = offsets.latest(cluster, stream.source, [0])
    topics.trim(cluster, stream.source, end)
    with pytest.raises(errors.OffsetsExpired, match="has not published") as stopped:
        _ended(copy(name, stream, once=True))
    assert f"instep stream reset {name} --to start --partition 0" in stopped.value.remedy


# --- what cannot be published ---------------------------------------------------------------------


def test_a_record_without_a_key_stops_the_stream(cluster: Cluster, copy: Copy) -> None:
    name, stream = declare(cluster, partitions=(1, 1))
    send(cluster, stream.source, event("job-1", 1), (None, b"{}"))
    with pytest.raises(errors.OutputKeyMissing, match=f"record {stream.source}:0:1 cannot"):
        _ended(copy(name, stream, once=True))
    assert log(cluster, stream.target) == []


def test_dead_letters_have_a_topic_of_their_own_in_the_same_transaction(
    cluster: Cluster, copy: Copy
) -> None:
    name, stream = declare(cluster, partitions=(1, 1))
    dead = f"{name}-dead"
    topics.create(cluster, dead, 1)
    configs.alter_topic(cluster, stream.source, {"max.message.bytes": "3000000"})
    stream = msgspec.structs.replace(stream, dead_letters=dead)
    too_large = (b"job-2", b"x" * 2_000_000)
    send(cluster, stream.source, event("job-1", 1), (None, b"{}"), too_large, event("job-3", 1))
    run = _ended(copy(name, stream, once=True))
    assert by_key(log(cluster, stream.target)).keys() == {b"job-1", b"job-3"}
    without_key, large = log(cluster, dead)
    assert (without_key.key, without_key.value) == (None, b"{}")
    assert (large.key, large.value) == (b"job-2", None)
    assert dict(without_key.headers)[output.REASON] == b"KEY_MISSING"
    assert dict(large.headers)[output.REASON] == b"TOO_LARGE"
    detail = dict(large.headers)[output.DETAIL]
    assert f"record {stream.source}:0:2 cannot be published".encode() in (detail or b"")
    assert run.progress.totals["dead"] == 2
    assert run.warning() is not None
