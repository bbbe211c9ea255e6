"""Test that a relay stops with a name before it publishes something wrong, and how to go on."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from instep import errors, sources
from instep.kafka import offsets, position_topic, reading, record_writer, topics
from instep.kafka.connection import Cluster
from instep.kafka.record_writer import RecordWriter
from instep.relay import reset
from instep.relay.session import LeaseKeeper
from instep.sinks import target
from instep.sources import id_reader
from instep.sources.connection import SourceConnection
from instep.sources.id_reader import IdReader
from instep.sources.lease import Lease
from instep.sources.outbox_reader import OutboxReader
from tests.support.backups import Backup
from tests.support.databases import run_sql
from tests.support.print_shop import PrintShop, difference, published
from tests.support.relays import declare, run_once
from tests.support.restored_servers import (
    SERVERS,
    RecoveringPostgres,
    copy_data,
    restore_data,
)
from tests.support.runs import send
from tests.support.waiting import wait_until


@contextmanager
def stopped_by(
    error: type[errors.InstepError], shop: PrintShop, cluster: Cluster
) -> Iterator[None]:
    """Run a relay that has published; what the block does must stop it with the given error."""
    shop.work(2)
    raised: list[BaseException] = []
    stop = threading.Event()

    def run() -> None:
        try:
            run_once(shop.name, shop.relay, cluster, once=False, stop=stop)
        except error as failure:
            raised.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: not difference(shop, cluster, shop.relay.topic), "the first rows")
        yield
        thread.join(60)
        assert not thread.is_alive()
        assert raised
    finally:
        stop.set()
        thread.join(60)


def test_a_source_restored_from_a_backup_stops_the_relay(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    shop = open_shop("sqlite")
    name, relay, url = shop.name, shop.relay, shop.relay.source
    shop.work(5)
    rows = run_once(name, relay, cluster)[0].rows
    file = Path(str(target.database_url(url).database))
    run_sql(url, "PRAGMA wal_checkpoint(TRUNCATE)")
    backup = file.with_suffix(".backup")
    shutil.copy(file, backup)
    shop.work(5, seed=1)
    run_once(name, relay, cluster)
    before = published(cluster, relay.topic)
    shutil.copy(backup, file)
    for beside in ("-wal", "-shm"):
        file.with_name(file.name + beside).unlink(missing_ok=True)
    shop.work(5, seed=2)
    with pytest.raises(errors.SourceRestored, match="is not what it was"):
        run_once(name, relay, cluster)
    assert published(cluster, relay.topic) == before
    # a person decides: what the outbox has now is published
    plan = reset.plan(name, relay, "start")
    assert plan.consequence.startswith("every row")
    assert plan.published_rows >= rows > 0  # those of the backup, or all
    reset.execute(name, relay, cluster, "start")
    assert run_once(name, relay, cluster)[0].rows > 0


def newest(cluster: Cluster, topic: str) -> dict[str, int]:
    """Return the version of each document in the event with the highest number."""
    partitions = topics.describe(cluster, topic).partitions
    ends = offsets.latest(cluster, topic, partitions)
    found: dict[str, tuple[int, int]] = {}
    for record in reading.read(cluster, topic, {part: (0, end) for part, end in ends.items()}):
        body = json.loads(record.value or b"")
        key = (record.key or b"").decode()
        found[key] = max(found.get(key, (0, 0)), (body["number"], body["version"]))
    return {key: version for key, (_, version) in found.items()}


@pytest.mark.parametrize(
    "kind", ["postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.long), "sqlite"]
)
@pytest.mark.parametrize("is_late", [False, True])
def test_versions_that_are_ids_go_on_above_those_that_were_published(
    kind: str, is_late: bool, open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Restore a source whose events are numbered by the outbox: the highest number is the state.

    Rows are added after the restore, before and after the reset.
    """
    shop = open_shop(kind, version="number")
    name, relay, url = shop.name, shop.relay, shop.relay.source
    shop.work(3)
    run_once(name, relay, cluster)
    backup = Backup(url)
    shop.work(60, seed=1)
    run_once(name, relay, cluster)
    backup.restore()
    backup.remove()
    if is_late:
        shop.work(10, seed=2)
    with pytest.raises(errors.SourceRestored):
        run_once(name, relay, cluster)
    reset.execute(name, relay, cluster, "start")
    if is_late:  # what was changed after the restore has arrived, not what it undid
        changed = shop.counts()
        run_once(name, relay, cluster)
        found = newest(cluster, relay.topic)
        waiting = {document for document in changed if found[document] == changed[document]}
        assert len(waiting) >= 10
    # every document is changed, and so has a state that the topic must know
    documents = sorted(newest(cluster, relay.topic))
    with SourceConnection(url) as opened:
        for document in documents:
            with opened.transaction():
                shop.change(opened, document)
    run_once(name, relay, cluster)
    assert newest(cluster, relay.topic) == shop.counts()


@pytest.mark.parametrize("kind", ["postgres", pytest.param("mariadb", marks=pytest.mark.long)])
def test_a_server_with_the_data_of_a_backup_stops_the_relay_for_good(
    kind: str, cluster: Cluster
) -> None:
    """Start the relay again and again: each start renews the lease, so its counter catches up."""
    with SERVERS[kind]() as server:
        name, relay = declare(server.address, cluster)
        shop = PrintShop(relay, name)
        shop.work(5)
        run_once(name, relay, cluster)
        copy = copy_data(server)
        shop.work(20, seed=1)
        for seed in range(2, 4):
            shop.work(2, seed=seed)
            run_once(name, relay, cluster)
        before = published(cluster, relay.topic)
        restore_data(server, copy)
        server.start()
        with pytest.raises(errors.SourceRestored, match="its lease was renewed"):
            run_once(name, relay, cluster)
        shop.work(20, seed=4)
        for _ in range(4):
            with pytest.raises(errors.SourceRestored, match="stopped before because it is older"):
                run_once(name, relay, cluster)
        assert published(cluster, relay.topic) == before
        reset.execute(name, relay, cluster, "start")
        assert run_once(name, relay, cluster)[0].rows > 0


def test_starts_without_a_look_at_the_position_do_not_hide_a_restored_source(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Let processes end between their claim and their look at the position, as without Kafka."""
    shop = open_shop("postgres")
    name, relay = shop.name, shop.relay
    shop.work(2)
    run_once(name, relay, cluster)
    run_sql(relay.source, "UPDATE instep_relays SET beat = -1")
    for _ in range(5):
        lease = Lease(relay, name)
        assert lease.claim()
        keeper = LeaseKeeper(name, lease)
        keeper.start()
        keeper.stop()
    with pytest.raises(errors.SourceRestored, match="its lease was renewed"):
        run_once(name, relay, cluster)


@pytest.mark.parametrize("change", ["beat = beat - 100", "source_id = 'another'"])
def test_a_source_that_is_restored_under_a_session_stops_it(
    change: str, open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Let connections survive, as when a dump is loaded into the running server."""
    shop = open_shop("postgres")
    with stopped_by(errors.SourceRestored, shop, cluster):
        run_sql(shop.relay.source, f"UPDATE instep_relays SET {change}")
    with pytest.raises(errors.SourceRestored):
        run_once(shop.name, shop.relay, cluster)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_promoted_postgres_stops_the_relay_only_if_it_lost_what_was_read(
    is_lost: bool, cluster: Cluster
) -> None:
    """Promote the complete data, or a copy without the transactions that were published last."""
    with RecoveringPostgres() as server:
        name, relay = declare(server.url, cluster)
        shop = PrintShop(relay, name)
        shop.work(5)
        run_once(name, relay, cluster)
        copy = copy_data(server) if is_lost else None
        shop.work(5, seed=1)
        run_once(name, relay, cluster)
        before = published(cluster, relay.topic)
        if copy is None:
            server.stop()
        else:
            restore_data(server, copy)
            server.start()
            # The lease is renewed once a second: it may be one that the copy has, too.
            run_sql(server.url, "UPDATE instep_relays SET beat = beat + 1000")
            with pytest.raises(errors.SourceRestored, match=r"its log ends before \w+/\w+"):
                run_once(name, relay, cluster)
            restore_data(server, copy)
        server.promote()
        run_sql(server.url, "UPDATE instep_relays SET beat = beat + 1000")
        with pytest.raises(errors.SourceRestored, match=r"parted .*pg_read_file\(text\)"):
            run_once(name, relay, cluster)
        server.stop()
        server.run_as_superuser("GRANT EXECUTE ON FUNCTION pg_read_file(text) TO instep")
        server.start()
        shop.work(20, seed=2)
        if is_lost:
            with pytest.raises(errors.SourceRestored, match="timeline 2 begins at"):
                run_once(name, relay, cluster)
            assert published(cluster, relay.topic) == before
        else:
            assert run_once(name, relay, cluster)[0].rows > 0
            assert not difference(shop, cluster, relay.topic)


def test_a_complete_source_on_another_server_can_be_continued(cluster: Cluster) -> None:
    """Promote complete data, without the right to see it, and give it another identity."""
    with RecoveringPostgres() as server:
        name, relay = declare(server.url, cluster)
        shop = PrintShop(relay, name)
        shop.work(5)
        run_once(name, relay, cluster)
        server.stop()
        server.promote()
        run_sql(server.url, "UPDATE instep_relays SET beat = 0, source_id = 'upgraded'")
        shop.work(20, seed=1)
        with pytest.raises(errors.SourceRestored):
            run_once(name, relay, cluster)
        with pytest.raises(errors.SettingsError, match="use --to current"):
            reset.plan(name, relay, "end", nothing_lost=True)
        assert (
            reset.NOTHING_LOST in reset.plan(name, relay, "current", nothing_lost=True).consequence
        )
        reset.execute(name, relay, cluster, "current", nothing_lost=True)
        run_once(name, relay, cluster)
        assert not difference(shop, cluster, relay.topic)


def test_a_source_without_the_transactions_that_were_read_is_not_complete(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    shop = open_shop("postgres")
    shop.work(2)
    run_once(shop.name, shop.relay, cluster)
    reader = sources.open_reader(shop.relay, shop.name)
    with pytest.raises(errors.SettingsError, match="loaded from a dump"):
        reader.accept({"seen": "9999999999:9999999999:"})
    reader.close()


@pytest.mark.parametrize("kind", ["mariadb", "sqlite"])
def test_ids_that_were_used_twice_stop_the_relay(
    kind: str, open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Put a row into the range of ids that was published last."""
    shop = open_shop(kind)
    name, relay, url = shop.name, shop.relay, shop.relay.source
    shop.work(3)
    run_once(name, relay, cluster)
    run_sql(url, "INSERT INTO instep_outbox (id, document, value) VALUES (2, 'job-1', '{}')")
    with pytest.raises(errors.SourceRestored, match="row 2 has an id that was published"):
        run_once(name, relay, cluster)


@pytest.mark.parametrize("kind", ["mariadb", "sqlite"])
def test_the_last_batch_is_deleted_by_the_next_session_only_if_it_is_the_same(
    kind: str,
    open_shop: Callable[..., PrintShop],
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """End a session between the commit in Kafka and the deletion in the source."""
    shop = open_shop(kind)
    name, relay, url = shop.name, shop.relay, shop.relay.source
    shop.work(3)
    reader = type(sources.open_reader(relay, name))

    def fail(*_: Any) -> None:
        raise errors.SessionEnded("killed before the deletion")

    with monkeypatch.context() as patch:
        patch.setattr(reader, "done", fail)
        with pytest.raises(errors.SessionEnded):
            run_once(name, relay, cluster)
    assert run_sql(url, "SELECT count(*) FROM instep_outbox") != [(0,)]
    run_sql(url, "UPDATE instep_outbox SET value = '{}' WHERE id = 1")
    with pytest.raises(errors.SourceRestored, match="missing or have changed"):
        run_once(name, relay, cluster)
    # skip what the outbox has, and continue with what comes later
    reset.execute(name, relay, cluster, "end")
    shop.work(2, seed=5)
    run_once(name, relay, cluster)
    assert run_sql(url, "SELECT count(*) FROM instep_outbox") == [(0,)]
    assert not difference(shop, cluster, relay.topic)


@pytest.mark.parametrize("kind", ["mariadb", "sqlite"])
def test_a_process_that_still_deletes_its_last_batch_does_not_stop_the_next_one(
    kind: str,
    open_shop: Callable[..., PrintShop],
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let it delete when the next process has looked at its lease, and not at the rows."""
    shop = open_shop(kind)
    name, relay, url = shop.name, shop.relay, shop.relay.source
    shop.work(3)
    earlier = sources.open_reader(relay, name)

    def fail(*_: Any) -> None:
        raise errors.SessionEnded("fenced before the deletion")

    with monkeypatch.context() as patch:
        patch.setattr(type(earlier), "done", fail)
        with pytest.raises(errors.SessionEnded):
            run_once(name, relay, cluster)
    assert earlier.next(1_000) is not None
    opens = sources.open_reader

    def open_late(*arguments: Any) -> OutboxReader:
        monkeypatch.setattr(sources, "open_reader", opens)
        earlier.done(1)
        return opens(*arguments)

    monkeypatch.setattr(sources, "open_reader", open_late)
    shop.work(3, seed=1)
    run_once(name, relay, cluster)
    earlier.close()
    assert not difference(shop, cluster, relay.topic)
    assert run_sql(url, "SELECT count(*) FROM instep_outbox") == [(0,)]


@pytest.mark.parametrize("kind", ["mariadb", "sqlite"])
def test_a_newer_session_that_has_published_is_no_other_source(
    kind: str,
    open_shop: Callable[..., PrintShop],
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let another process publish when this one has read its position, and not the source."""
    shop = open_shop(kind)
    name, relay, url = shop.name, shop.relay, shop.relay.source
    shop.work(3)
    run_once(name, relay, cluster)
    shop.work(2, seed=5)
    opens = sources.open_reader

    def open_late(*arguments: Any) -> OutboxReader:
        monkeypatch.setattr(sources, "open_reader", opens)
        run_sql(url, "UPDATE instep_relays SET holder = NULL")
        run_once(name, relay, cluster)
        return opens(*arguments)

    monkeypatch.setattr(sources, "open_reader", open_late)
    with pytest.raises(errors.SessionEnded, match="fenced by a newer instance"):
        run_once(name, relay, cluster)
    assert not difference(shop, cluster, relay.topic)


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "sqlite"])
def test_rows_are_skipped_in_portions_and_only_those_of_now(
    kind: str,
    open_shop: Callable[..., PrintShop],
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Add a row while the others are being skipped: it is published."""
    monkeypatch.setattr(id_reader, "SKIPPED_AT_ONCE", 10)
    shop = open_shop(kind)
    name, relay, url = shop.name, shop.relay, shop.relay.source
    shop.work(40)
    expected = 1
    if kind != "postgres":
        monkeypatch.setattr(IdReader, "_collect", _adding(IdReader._collect, shop, "job-1"))
        expected = shop.counts().get("job-1", 0) + 1
    reset.execute(name, relay, cluster, "end")
    if kind == "postgres":
        with SourceConnection(url) as opened, opened.transaction():
            shop.change(opened, "job-1")
        expected = shop.counts()["job-1"]
    run_once(name, relay, cluster)
    assert published(cluster, relay.topic) == {"job-1": [expected]}
    if kind != "postgres":
        assert run_sql(url, "SELECT count(*) FROM instep_outbox") == [(0,)]


def _adding(call: Callable[..., Any], shop: PrintShop, document: str) -> Callable[..., Any]:
    """Return the call, before which an event is added once."""
    is_added = False

    def called(*arguments: Any, **options: Any) -> Any:
        nonlocal is_added
        if not is_added:
            is_added = True
            with SourceConnection(shop.relay.source) as opened, opened.transaction():
                shop.change(opened, document)
        return call(*arguments, **options)

    return called


def test_rows_of_another_postgres_cluster_stop_the_relay(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    shop = open_shop("postgres")
    name, relay, url = shop.name, shop.relay, shop.relay.source
    run_sql(
        url,
        "INSERT INTO instep_outbox (document, value, xid) VALUES ('job-1', '{}', '99999999999')",
    )
    with pytest.raises(errors.ForeignTransactions, match="has not given out yet"):
        run_once(name, relay, cluster)
    assert published(cluster, relay.topic) == {}
    reset.execute(name, relay, cluster, "start")
    shop.work(2)
    assert run_once(name, relay, cluster)[0].rows > 1


def test_a_position_that_was_lost_stops_the_relay(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    shop = open_shop("sqlite")
    name, relay = shop.name, shop.relay
    shop.work(2)
    run_once(name, relay, cluster)
    topic = position_topic.of_relay(name).topic
    topics.delete(cluster, topic)
    position_topic.create(cluster, position_topic.of_relay(name).topic)
    with pytest.raises(errors.PositionMissing, match="has published before"):
        run_once(name, relay, cluster)


def test_a_deleted_topic_of_the_position_stops_the_relay(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Let a relay miss it that has published, and one that has not."""
    shop = open_shop("sqlite")
    shop.work(2)
    run_once(shop.name, shop.relay, cluster)
    topics.delete(cluster, position_topic.of_relay(shop.name).topic)
    with pytest.raises(errors.PositionMissing, match="does not exist"):
        run_once(shop.name, shop.relay, cluster)
    run_sql(shop.relay.source, "UPDATE instep_relays SET started = 0")
    with pytest.raises(errors.TopicMissing, match=f"instep relay init {shop.name}"):
        run_once(shop.name, shop.relay, cluster)


def test_a_topic_whose_records_expire_cannot_keep_a_position(cluster: Cluster) -> None:
    topic = position_topic.of_relay(f"expiring-{random.random()}").topic
    topics.create(cluster, topic, 1)
    with pytest.raises(errors.SettingsError, match=r"cleanup.policy=compact --execute"):
        position_topic.create(cluster, topic)


def test_a_topic_that_grew_or_was_replaced_stops_the_relay(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    shop = open_shop("sqlite")
    name, relay = shop.name, shop.relay
    shop.work(2)
    run_once(name, relay, cluster)
    topics.grow(cluster, relay.topic, 5)
    with pytest.raises(errors.OutputTopicChanged, match="has 5 partitions, and had 3"):
        run_once(name, relay, cluster)
    reset.execute(name, relay, cluster, "current")
    shop.work(2, seed=1)
    run_once(name, relay, cluster)
    topics.delete(cluster, relay.topic)
    topics.create(cluster, relay.topic, 5)
    with pytest.raises(errors.OutputTopicChanged, match="deleted and created again"):
        run_once(name, relay, cluster)


def test_a_topic_that_grows_under_a_session_stops_it_before_the_next_commit(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    shop = open_shop("sqlite")
    topic = shop.relay.topic
    with stopped_by(errors.OutputTopicChanged, shop, cluster):
        before = published(cluster, topic)
        topics.grow(cluster, topic, 4)
        shop.work(2, seed=1)
    assert published(cluster, topic) == before


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "sqlite"])
def test_a_record_that_is_too_large_is_kept_and_the_others_are_published(
    kind: str, open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    shop = open_shop(kind)
    name, relay, url = shop.name, shop.relay, shop.relay.source
    shop.work(2)
    with SourceConnection(relay.source) as opened, opened.transaction():
        shop.change(opened, "job-1", size=2_000_000)
    shop.work(2, seed=3)
    stopping = msgspec.structs.replace(relay, too_large="stop")
    with pytest.raises(errors.OutboxRowTooLarge, match="'job-1' has 2,000,0"):
        run_once(name, stopping, cluster)
    assert published(cluster, relay.topic) == {}
    progress, said = run_once(name, relay, cluster)
    assert progress.dead == 1
    assert "kept in instep_outbox_dead" in said[0]
    assert run_sql(url, "SELECT document FROM instep_outbox_dead") == [("job-1",)]
    assert sum(shop.counts().values()) - 1 == progress.rows
    assert run_once(name, relay, cluster)[0].rows == 0


LONG = "x" * 256
INVALID = {  # of a kind of database: values of document and headers
    "postgres": ["'', NULL", f"'{LONG}', NULL", "'a', '[1]'"],
    "mariadb": ["'', NULL", f"'{LONG}', NULL", "'a', '[1]'", r"'a\0', NULL"],
    "sqlite": [
        "'', NULL",
        f"'{LONG}', NULL",
        "'a', '[1]'",
        "'a' || char(0), NULL",
        "CAST(x'61ff' AS TEXT), NULL",
        "x'61ff', NULL",
        "'a', CAST(x'7bff7d' AS TEXT)",
    ],
}


@pytest.mark.parametrize("kind", INVALID)
def test_rows_of_which_no_record_can_be_made_are_kept_and_the_others_are_published(
    kind: str, open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    shop = open_shop(kind)
    name, relay, url = shop.name, shop.relay, shop.relay.source
    rows = INVALID[kind]
    for row in ["'before', NULL", *rows, "'after', NULL"]:
        run_sql(url, f"INSERT INTO instep_outbox (document, headers, value) VALUES ({row}, '{{}}')")
    stopping = msgspec.structs.replace(relay, invalid="stop")
    with pytest.raises(errors.OutboxRowInvalid, match=r"row 2 of document '': .*be empty"):
        run_once(name, stopping, cluster)
    progress, said = run_once(name, relay, cluster)
    assert (progress.rows, progress.dead) == (2, len(rows))
    assert "must not be empty; kept in instep_outbox_dead" in said[0]
    kept = run_sql(url, "SELECT document FROM instep_outbox_dead ORDER BY id")
    assert kept[:3] == [("",), (LONG,), ("a",)]
    assert len(kept) == len(rows)


def test_a_dead_row_is_kept_if_its_id_was_used_before(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Let the outbox be emptied, and its ids begin again, as after TRUNCATE on MariaDB."""
    shop = open_shop("mariadb")
    name, relay, url = shop.name, shop.relay, shop.relay.source
    for headers in ("[1]", "[2]"):
        insert = f"INSERT INTO instep_outbox (id, document, headers) VALUES (7, 'a', '{headers}')"
        run_sql(url, insert)
        reset.execute(name, relay, cluster, "start")
        assert run_once(name, relay, cluster)[0].dead == 1
    kept = run_sql(
        url, "SELECT id, occurrence, headers FROM instep_outbox_dead ORDER BY occurrence"
    )
    assert kept == [(7, 0, "[1]"), (7, 1, "[2]")]


def test_a_record_just_below_the_limit_of_the_topic_does_not_end_the_session(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Use values that cannot be compressed: the topic limits a batch, with its own bytes."""
    shop = open_shop("sqlite")
    name, relay = shop.name, shop.relay
    limit = record_writer.record_bytes_max(cluster, relay.topic) + record_writer.BATCH_BYTES
    sizes = [(size, 40) for size in range(limit - 400, limit + 50, 50)]
    sizes += [(limit - size, size) for size in range(100, 1_000, 100)]
    sizes += [(limit // 3, limit // 3), (limit // 2, limit // 2)]
    with SourceConnection(relay.source) as opened:
        for number, (size, headers_size) in enumerate(sizes):
            noise = random.Random(number)
            headers = {"trace": noise.randbytes(headers_size // 2).hex()}
            opened.execute(
                "INSERT INTO instep_outbox (document, value, headers) VALUES (?, ?, ?)",
                (f"job-{number}", noise.randbytes(size), json.dumps(headers)),
            )
    progress, _ = run_once(name, relay, cluster)
    assert progress.rows + progress.dead == len(sizes)
    assert progress.rows > 1
    assert progress.dead > 1
    [(kept,)] = run_sql(relay.source, "SELECT count(*) FROM instep_outbox_dead")
    assert kept == progress.dead


def _writer(
    shop: PrintShop, cluster: Cluster, kind: type[RecordWriter] = RecordWriter
) -> RecordWriter:
    return kind(
        cluster,
        position_topic.of_relay(shop.name),
        shop.relay.topic,
        guarantee="exactly-once",
        record_bytes_max=1_000_000,
        is_stopped=lambda: False,
    )


def _publish(writer: RecordWriter, document: str, version: int) -> None:
    writer.begin()
    writer.add(document.encode(), b'{"version": %d}' % version, [])
    writer.commit(b"%d" % version)


def test_the_last_position_of_a_committed_transaction_counts(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Add a position before the records, as a session does, and another one with the commit."""
    shop = open_shop("sqlite")
    place, writer = position_topic.of_relay(shop.name), _writer(shop, cluster)
    writer.start()
    for _ in range(3):
        writer.begin(b"1")
        writer.commit(b"1")
    assert position_topic.read(cluster, place) == b"1"
    writer.begin(b"2")
    writer.add(b"job-1", b"{}", [])
    writer.commit(b"2, without a row that was refused")
    writer.complete()
    assert position_topic.read(cluster, place) == b"2, without a row that was refused"
    writer.begin(b"3")
    writer.settle()
    writer.abort()
    assert position_topic.read(cluster, place) == b"2, without a row that was refused"
    writer.close()


def test_the_position_counts_only_once_the_mark_is_read(
    open_shop: Callable[..., PrintShop], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold back what committed readers see, as a broker does that does not know the end."""
    shop = open_shop("sqlite")
    place, writer = position_topic.of_relay(shop.name), _writer(shop, cluster)
    writer.start()
    _publish(writer, "job-1", 1)
    other = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": shop.name})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(place.topic, b"", b"another key", place.partition)
    assert other.flush(30) == 0
    _publish(writer, "job-1", 2)
    heir = _writer(shop, cluster)
    heir.start()
    mark = heir.mark()
    assert position_topic.read(cluster, place) == b"1"
    with monkeypatch.context() as patched:
        patched.setattr(position_topic, "MARK_WAIT_MAX_S", 0.1)
        with pytest.raises(errors.SessionEnded, match="has not appeared"):
            position_topic.read(cluster, place, lambda: mark)
    other.abort_transaction(30)
    assert position_topic.read(cluster, place, lambda: mark) == b"2"
    with pytest.raises(errors.SessionEnded, match="fenced"):
        writer.mark()
    heir.close()


def test_an_abort_that_fails_leaves_no_other_transaction_open(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Fence the second of two clients, each of which has an open transaction."""
    shop = open_shop("sqlite")
    writer = _writer(shop, cluster)
    writer.start()
    begun = []
    for version in range(2):
        begun.append(writer._producer)
        _publish(writer, "job-1", version)
    for producer in begun:
        writer._producer = producer
        writer.begin()
        writer.add(b"job-2", b'{"version": 1}', [])
        writer.settle()
    _, second = position_topic.of_relay(shop.name).transactional_ids
    heir = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": second})
    heir.init_transactions(30)
    with pytest.raises(errors.SessionEnded):
        writer.abort()
    send(cluster, shop.relay.topic, (b"job-3", {"version": 1}))
    # less than the transaction's time-out, after which the broker would abort it
    patience_s = 20
    wait_until(
        lambda: published(cluster, shop.relay.topic) == {"job-1": [0, 1], "job-3": [1]},
        "the records",
        patience_s=patience_s,
    )
    writer.close()


@pytest.mark.parametrize("commits", [0, 1])
def test_a_process_that_ignores_the_lease_is_fenced(
    commits: int, open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Fence it in a transaction of its first transactional id, and of its second one."""
    shop = open_shop("sqlite")
    zombie = _writer(shop, cluster)
    zombie.start()
    for number in range(commits):
        _publish(zombie, "job-1", number)
    zombie.begin()
    zombie.add(b"job-1", b'{"version": 9}', [])
    heir = _writer(shop, cluster)
    heir.start()
    with pytest.raises(errors.SessionEnded):
        zombie.commit(b"9")
    for number in range(3):
        _publish(heir, "job-2", number)
    expected = {"job-1": list(range(commits)), "job-2": [0, 1, 2]}
    found = published(cluster, shop.relay.topic)
    assert found == {name: versions for name, versions in expected.items() if versions}
    assert position_topic.read(cluster, position_topic.of_relay(shop.name)) == b"2"
    heir.close()


def test_a_fenced_process_ends_its_session_while_it_waits_for_the_broker(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Let the client tell it where no transaction is begun or committed."""
    shop = open_shop("sqlite")
    zombie, heir = _writer(shop, cluster), _writer(shop, cluster)
    zombie.start()
    zombie.begin()
    heir.start()
    zombie.add(b"job-1", b'{"version": 1}', [])
    with pytest.raises(errors.SessionEnded, match="fenced by a newer instance"):
        zombie.settle()
    zombie.close()
    heir.close()
    assert published(cluster, shop.relay.topic) == {}


def test_of_two_processes_that_start_at_the_same_time_one_publishes(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Let one take over both ids while the other is between its first and its second."""
    shop = open_shop("sqlite")
    within = _writer(shop, cluster)

    class Interrupted(RecordWriter):
        is_interrupted = False

        def _retry(self, call: Callable[[float], None]) -> None:
            super()._retry(call)
            if not self.is_interrupted:
                self.is_interrupted = True
                within.start()

    interrupted = _writer(shop, cluster, Interrupted)
    interrupted.start()
    _publish(within, "job-1", 1)
    with pytest.raises(errors.SessionEnded):
        _publish(interrupted, "job-1", 2)
    with pytest.raises(errors.SessionEnded):  # its second id belongs to the other one
        _publish(within, "job-1", 3)
    assert published(cluster, shop.relay.topic) == {"job-1": [1]}
    assert position_topic.read(cluster, position_topic.of_relay(shop.name)) == b"1"


def test_a_record_that_is_too_large_is_kept_while_more_rows_follow(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Meet it in the middle of a tick, which is a read-only transaction."""
    shop = open_shop("postgres", batch_rows_max=2)
    with SourceConnection(shop.relay.source) as opened, opened.transaction():
        for number in range(5):
            shop.change(opened, f"job-{number}", size=2_000_000 if number == 1 else 20)
    progress, _ = run_once(shop.name, shop.relay, cluster)
    assert (progress.rows, progress.dead) == (4, 1)
    assert published(cluster, shop.relay.topic).keys() == {"job-0", "job-2", "job-3", "job-4"}


def test_a_writer_that_is_closed_leaves_no_transaction_open_that_holds_up_readers(
    open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    shop = open_shop("sqlite")
    writer = _writer(shop, cluster)
    writer.start()
    writer.begin()
    for number in range(10):
        writer.add(f"job-{number}".encode(), b"{}", [])
    writer.settle()
    writer.close()
    others = [(f"other-{number}".encode(), {"version": 1}) for number in range(10)]
    send(cluster, shop.relay.topic, *others)
    # less than the transaction's time-out, after which the broker would abort it
    wait_until(lambda: bool(published(cluster, shop.relay.topic)), "the records", patience_s=20)
    assert published(cluster, shop.relay.topic) == {key.decode(): [1] for key, _ in others}
