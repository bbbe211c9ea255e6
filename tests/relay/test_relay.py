"""Test the relay on real databases and a real broker: exactly once, and in order per document."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from instep import errors, settings
from instep.kafka import offsets
from instep.kafka.connection import Cluster
from instep.local import ports
from instep.local.broker import LocalCluster, ProxiedListener
from instep.local.proxy import NetworkFault, Proxy
from instep.relay import backlog, session
from instep.relay import relay as relays
from instep.relay.metrics import RelayMetrics
from instep.relay.records import RecordBuilder, RowInvalid
from instep.relay.session import RelayProgress
from instep.sources import tables
from instep.sources.connection import SourceConnection
from instep.sources.lease import Lease
from instep.sources.outbox_reader import OutboxRow
from instep.sources.snapshot_reader import SnapshotReader
from tests.support.databases import run_sql
from tests.support.print_shop import PrintShop, agrees, difference, published
from tests.support.relays import RelayProcess, declare, run_once
from tests.support.waiting import wait_until


def test_every_committed_row_is_published_once_and_in_order(
    database_url: str, cluster: Cluster, tmp_path: Path
) -> None:
    """Kill the relay in the middle, let a standby take over, and end that one by SIGTERM."""
    name, relay = declare(database_url, cluster)
    shop = PrintShop(relay, name)
    first = RelayProcess(tmp_path, name, relay, cluster.bootstrap)
    try:
        shop.start(2, 120)
        wait_until(lambda: bool(published(cluster, relay.topic)), "the first records")
        standby = RelayProcess(tmp_path, name, relay, cluster.bootstrap)
        try:
            wait_until(lambda: standby.said("standing by"), "the standby")
            first.end(signal.SIGKILL)
            shop.join()
            wait_until(agrees(shop, cluster, relay.topic), "all records")
            assert standby.end() == 0
            assert standby.said("stopped; this process published")
        finally:
            standby.process.kill()
    finally:
        shop.stop()
        first.process.kill()
    assert not difference(shop, cluster, relay.topic)
    assert run_once(name, relay, cluster)[0].rows == 0


def test_a_standby_takes_over_from_a_process_that_was_killed(
    new_database: Callable[[str], str], cluster: Cluster, tmp_path: Path
) -> None:
    """Print how long it took: the time depends on the machine, so it is not asserted."""
    name, relay = declare(new_database("sqlite"), cluster)
    shop = PrintShop(relay, name)
    first = RelayProcess(tmp_path, name, relay, cluster.bootstrap)
    standby = None
    try:
        shop.work(2)
        wait_until(agrees(shop, cluster, relay.topic), "the first records")
        standby = RelayProcess(tmp_path, name, relay, cluster.bootstrap)
        wait_until(lambda: standby.said("standing by"), "the standby")
        first.end(signal.SIGKILL)
        killed_at = time.monotonic()
        shop.work(2, seed=1)
        wait_until(agrees(shop, cluster, relay.topic), "the standby's records")
        print(f"take-over: {time.monotonic() - killed_at:.1f} s after kill -9")  # noqa: T201
        assert standby.end() == 0
    finally:
        for process in filter(None, (first, standby)):
            process.process.kill()
            process.process.wait()


@pytest.mark.parametrize("method", ["renew", "read", "mark_started"])
def test_a_session_waits_for_a_source_that_is_away_while_it_starts(
    method: str,
    new_database: Callable[[str], str],
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hide the database's file just before a call, and bring it back when the relay says so."""
    url = new_database("sqlite")
    name, relay = declare(url, cluster)
    shop = PrintShop(relay, name)
    shop.work(2)
    run_sql(url, "PRAGMA wal_checkpoint(TRUNCATE)")
    file = Path(url.removeprefix("sqlite:///"))
    hidden = file.with_suffix(".hidden")
    call = getattr(Lease, method)

    def call_late(lease: Lease, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(Lease, method, call)
        file.rename(hidden)
        return call(lease, *arguments, **options)

    said: list[str] = []

    def say(message: str) -> None:
        said.append(message)
        if hidden.exists():
            hidden.rename(file)

    monkeypatch.setattr(Lease, method, call_late)
    relays.run(
        name,
        relay,
        cluster,
        once=True,
        stop=threading.Event(),
        say=say,
        progress=RelayProgress(),
    )
    assert "trying again" in said[0]
    assert not difference(shop, cluster, relay.topic)


def test_a_process_that_is_cut_off_from_kafka_gives_up_its_lease(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off the active process alone: the other one must publish what it cannot."""
    monkeypatch.setattr(session, "KAFKA_SILENCE_MAX_S", 2.0)
    raised: list[BaseException] = []
    ended = threading.Event()
    port, proxied_port = ports.free(2)
    brokers = LocalCluster(short_lived=True)
    brokers.nodes[0].proxied = ProxiedListener(port, proxied_port)
    with brokers, Proxy(port, proxied_port) as proxy:
        bootstrap = f"{ports.HOST}:{proxied_port}"
        with (
            Cluster(settings.Kafka(), brokers.bootstrap) as cluster,
            Cluster(settings.Kafka(), bootstrap) as cut_off,
        ):
            name, relay = declare(new_database("sqlite"), cluster)
            shop = PrintShop(relay, name)
            progress = RelayProgress()

            def run(where: Cluster, progress: RelayProgress, *, once: bool) -> None:
                try:
                    relays.run(
                        name,
                        relay,
                        where,
                        once=once,
                        stop=ended,
                        say=lambda _: None,
                        progress=progress,
                    )
                except errors.SessionEnded as end:
                    raised.append(end)

            active = threading.Thread(target=run, args=(cut_off, progress), kwargs={"once": False})
            active.start()
            wait_until(lambda: progress.state == "idle", "the active process")
            proxy.inject(NetworkFault(refuses=True))
            proxy.cut()
            shop.work(5)
            standby = threading.Thread(
                target=run, args=(cluster, RelayProgress()), kwargs={"once": True}
            )
            standby.start()
            standby.join(60)
            is_stuck = standby.is_alive()
            ended.set()
            standby.join()
            active.join()
            assert not is_stuck
            assert "has not answered for 2 seconds" in str(raised)
            assert not difference(shop, cluster, relay.topic)


def test_a_run_until_the_outbox_is_empty_ends_when_readers_see_its_records(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    """A broker answers a commit before it has written the markers of the transaction."""
    name, relay = declare(new_database("sqlite"), cluster, batch_rows_max=5)
    shop = PrintShop(relay, name)
    for seed in range(5):
        shop.work(20, seed)
        run_once(name, relay, cluster)
        committed, end = (
            offsets.latest(cluster, relay.topic, range(3), committed) for committed in (True, False)
        )
        assert committed == end
        assert not difference(shop, cluster, relay.topic)


def test_at_least_once_needs_no_transactions(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    name, relay = declare(new_database("sqlite"), cluster, guarantee="at-least-once")
    shop = PrintShop(relay, name)
    for seed in range(2):
        shop.work(20, seed)
        run_once(name, relay, cluster)
        assert not difference(shop, cluster, relay.topic)


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "sqlite"])
def test_rows_that_wait_are_counted(
    kind: str, open_shop: Callable[..., PrintShop], cluster: Cluster
) -> None:
    """Count by the position in Kafka, and by that of a running relay."""
    shop = open_shop(kind)

    def add(rows: int) -> None:
        with SourceConnection(shop.relay.source) as opened, opened.transaction():
            for number in range(rows):
                shop.change(opened, f"job-{number}")

    def waiting() -> int:
        position = backlog.published(shop.name, cluster)
        return backlog.waiting(shop.name, shop.relay, position)

    add(3)
    assert waiting() == 3
    progress, _ = run_once(shop.name, shop.relay, cluster)
    assert waiting() == 0
    add(2)
    assert waiting() == 2
    families = RelayMetrics(shop.name, shop.relay, progress).collect()
    values = {family.name: family.samples[0].value for family in families}
    assert (values["instep_relay_rows"], values["instep_relay_waiting_rows"]) == (3, 2)
    assert values["instep_relay_behind_seconds"] >= 0


def test_many_rows_are_published_in_batches_that_grow(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    """Fill the outbox beyond one partition of PostgreSQL's ring, and see the ring emptied."""
    url = new_database("postgres")
    name, relay = declare(url, cluster)
    PrintShop(relay, name)
    border, rows = 1 << tables.PARTITION_BITS, 60_000
    first = border - rows // 2
    run_sql(url, f"SELECT setval(pg_get_serial_sequence('instep_outbox', 'id'), {first - 1})")
    for part in range(3):
        run_sql(
            url,
            "INSERT INTO instep_outbox (document, value)"
            f" SELECT 'd' || (n % 50), convert_to('{{\"version\":' || n || '}}', 'UTF8')"
            f" FROM generate_series({part * 20_000 + 1}, {(part + 1) * 20_000}) n",
        )
    progress, _ = run_once(name, relay, cluster)
    assert progress.rows == rows
    assert progress.transactions < 20
    found = published(cluster, relay.topic)
    assert all(versions == sorted(set(versions)) for versions in found.values())
    assert sum(map(len, found.values())) == rows
    reader = SnapshotReader(relay, name)
    try:
        snapshot = next(iter(reader.skip()))["seen"]
        reader.clean_up_now(snapshot, first + rows - 1)
    finally:
        reader.close()
    left = run_sql(url, "SELECT min(id), count(*) FROM instep_outbox")
    assert left == [(border, rows // 2)]


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_an_outbox_with_other_names_can_be_relayed(
    kind: str, new_database: Callable[[str], str], cluster: Cluster
) -> None:
    url = new_database(kind)
    columns = {"id": "seq", "document": "aggregate_id", "value": "payload", "headers": None}
    name, relay = declare(url, cluster, outbox="events", columns=columns)
    if kind == "postgres":
        run_sql(
            url,
            "CREATE TABLE events (seq bigserial PRIMARY KEY, aggregate_id text, payload jsonb,"
            " xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
        )
    else:
        run_sql(
            url,
            "CREATE TABLE events (seq bigint AUTO_INCREMENT PRIMARY KEY,"
            " aggregate_id varchar(20), payload json)",
        )
    tables.prepare(relay, name)
    run_sql(url, "INSERT INTO events (aggregate_id, payload) VALUES ('d', '{\"version\": 1}')")
    run_once(name, relay, cluster)
    assert published(cluster, relay.topic) == {"d": [1]}
    if kind == "postgres":
        reader = SnapshotReader(relay, name)
        reader.clean_up_now(next(iter(reader.skip()))["seen"], 1)
        reader.close()
    assert run_sql(url, "SELECT count(*) FROM events") == [(0,)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"a": 1}', b'{"a": 1,"version":7}'),
        (b"{}", b'{"version":7}'),
        (b' {"a": {"version": 2}} ', b' {"a": {"version": 2},"version":7}'),
        (b'{"version": 3}', b'{"version": 3}'),
        (b'{"version": null}', b'{"version": null}'),
        (b"[1]", b"[1]"),
        (b'{"version": broken', b'{"version": broken'),
        (b'{"version": "\xff"}', b'{"version": "\xff"}'),
        (b'{"version":' + b"[" * 100_000, b'{"version":' + b"[" * 100_000),
        (b"", b""),
        (None, None),
    ],
)
def test_a_version_is_added_to_objects_that_have_none(
    value: bytes | None, expected: bytes | None
) -> None:
    builder = RecordBuilder("r", "s", "version")
    assert builder.value(OutboxRow(7, "d", value, None)) == expected
    assert RecordBuilder("r", "s", None).value(OutboxRow(7, "d", value, None)) == value


def test_headers_of_a_row_replace_ours_and_the_row_id_is_always_there() -> None:
    builder = RecordBuilder("r", "s", None)
    ours = dict(builder.headers(OutboxRow(7, "d", b"{}", None)))
    assert (ours["ce_id"], ours["ce_type"], ours["instep_outbox_id"]) == (
        b"s-7",
        b"instep.status",
        b"7",
    )
    own = builder.headers(OutboxRow(8, "d", None, '{"trace": "x", "instep_outbox_id": "1"}'))
    assert own == [("trace", b"x"), ("instep_outbox_id", b"8")]
    for headers in ("[1]", '{"a": 1}', '{"a": "\udcff"}', '{"a":' + "[" * 100_000):
        with pytest.raises(RowInvalid, match="its headers are not"):
            builder.headers(OutboxRow(9, "d", None, headers))
