"""Test real servers: killed and restarted on their data, paused, on used ports, and cleaned up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil
import psycopg
import pymysql
import pytest
from confluent_kafka import admin
from confluent_kafka.cimpl import NewTopic

from instep import errors
from instep.local import broker, libraries, mariadb, paths, ports, postgres, processes, server
from instep.waiting import retrying
from tests.support.local_servers import LOOPBACK, answers, listening_addresses
from tests.support.waiting import wait_until

KINDS: tuple[type[server.Server], ...] = (broker.Broker, mariadb.MariaDB, postgres.Postgres)
PATIENCE_S = 60  # of a client with a running server
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[type[server.Server]], server.Server]]:
    """Start one server of each kind for the whole module."""
    started: dict[type[server.Server], server.Server] = {}

    def get(kind: type[server.Server]) -> server.Server:
        one = started.setdefault(kind, kind())
        one.start()
        return one

    yield get
    for one in started.values():
        one.close()


def mysql(one: server.Server, statement: str, timeout_s: int = PATIENCE_S) -> Any:
    login: dict[str, Any] = {
        "host": ports.HOST,
        "port": one.port,
        "user": "root",
        "database": "instep",
    }
    with (
        pymysql.connect(**login, read_timeout=timeout_s, connect_timeout=timeout_s) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
        connection.commit()
        return cursor.fetchall()


def make_topic(bootstrap: str, name: str, copies: int) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([NewTopic(name, 1, copies)])[name].result(60)


def topics(bootstrap: str, timeout_s: float = PATIENCE_S) -> set[str]:
    client = admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return set(client.list_topics(timeout=timeout_s).topics)


def write(one: server.Server, mark: str) -> None:
    if isinstance(one, broker.Broker):
        make_topic(one.bootstrap, mark, 1)
    elif isinstance(one, postgres.Postgres):
        with psycopg.connect(one.url) as connection:
            connection.execute(f"CREATE TABLE {mark} (id int)")
    else:
        mysql(one, f"CREATE TABLE {mark} (id int)")


def read(one: server.Server, timeout_s: int = PATIENCE_S) -> set[str]:
    if isinstance(one, broker.Broker):
        return topics(one.bootstrap, timeout_s)
    statement = "SELECT table_name FROM information_schema.tables"
    if isinstance(one, postgres.Postgres):
        with psycopg.connect(one.url, connect_timeout=timeout_s) as connection:
            return {row[0] for row in connection.execute(statement)}
    return {row[0] for row in mysql(one, statement, timeout_s)}


@each_kind
def test_a_killed_server_keeps_its_data_and_port(kind: type[server.Server], servers: Any) -> None:
    one = servers(kind)
    write(one, "kept")
    address, killed = one.address, one.pid
    tree = [killed, *processes.descendants(killed)]
    one.kill()
    assert not one.alive
    assert not any(processes.alive(pid) for pid in tree)
    one.start()
    assert one.alive
    assert one.pid != killed
    assert one.address == address
    assert "kept" in read(one)


@pytest.mark.parametrize("kind", [mariadb.MariaDB, postgres.Postgres], ids=lambda kind: kind.name)
def test_a_server_killed_from_outside_can_be_started_again(
    kind: type[server.Server], servers: Any
) -> None:
    one = servers(kind)
    os.kill(one.pid, signal.SIGKILL)
    wait_until(lambda: not one.alive)
    one.kill()
    one.start()
    wait_until(lambda: answers(one), "answers")


@each_kind
def test_a_stopped_server_ends_cleanly_and_starts_again(
    kind: type[server.Server], servers: Any
) -> None:
    one = servers(kind)
    one.stop()
    assert not one.alive
    with pytest.raises(ConnectionRefusedError), socket.create_connection((ports.HOST, one.port)):
        pass
    one.start()
    wait_until(lambda: answers(one), "answers")


@each_kind
def test_a_paused_server_is_frozen_until_it_is_resumed(
    kind: type[server.Server], servers: Any
) -> None:
    one = servers(kind)
    one.pause()
    with pytest.raises(
        (confluent_kafka.KafkaException, psycopg.OperationalError, pymysql.err.OperationalError)
    ):
        read(one, timeout_s=2)
    assert one.alive
    one.resume()
    wait_until(lambda: answers(one), "answers")


def test_a_paused_database_also_freezes_open_connections(servers: Any) -> None:
    one = servers(postgres.Postgres)
    with psycopg.connect(one.url) as session:
        one.pause()
        try:
            pid = session.info.backend_pid
            assert processes.paused(pid)
        finally:
            one.resume()
        assert session.execute("SELECT 1").fetchone() == (1,)


@each_kind
def test_a_port_in_use_is_named(kind: type[server.Server]) -> None:
    with socket.socket() as holder:
        holder.bind((ports.HOST, 0))
        holder.listen()
        port = holder.getsockname()[1]
        one = kind(port=port)
        with (
            pytest.raises(
                errors.SettingsError, match=f"port {port}, requested for {kind.name}, is taken"
            ),
            one,
        ):
            pass


def test_a_port_lost_while_starting_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind((ports.HOST, 0))
        holder.listen()
        found = [[holder.getsockname()[1]], ports.free()]
        monkeypatch.setattr(ports, "free", lambda: found.pop(0))
        with postgres.Postgres() as one:
            assert one.port != holder.getsockname()[1]


@each_kind
def test_every_server_listens_on_the_loopback_only(kind: type[server.Server], servers: Any) -> None:
    found = listening_addresses([servers(kind).pid])
    assert found
    assert found <= LOOPBACK


def test_a_node_is_formatted_from_the_cache(
    servers: Callable[[type[server.Server]], server.Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start without Kafka's tool: the first broker has left in the cache what a node needs.

    A node whose properties change what the tool writes does not use it.
    """
    assert servers(broker.Broker).alive

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a program was run")

    monkeypatch.setattr(broker.Broker, "run_step", refuse)
    with broker.Broker() as first:
        written = (first.root / "data" / "meta.properties").read_text(encoding="latin-1")
        assert f"cluster.id={first.cluster_id}\n" in written
        make_topic(first.bootstrap, "formatted", 1)
        first.stop()
        first.start()
        assert topics(first.bootstrap) == {"formatted"}
    for name in ("unstable.feature.versions.enable", "metadata.log.dir"):
        other = broker.Broker(properties={name: "false"})
        with pytest.raises(AssertionError, match="a program was run"):
            other.start()
        other.close()


def test_a_server_that_dies_at_its_start_shows_its_log(tmp_path: Path) -> None:
    one = broker.Broker(root=tmp_path, properties={"log.retention.ms": "never"})
    with (
        pytest.raises(
            errors.InstepError,
            match=r"the last lines of its log:\n(?s:.)*Invalid value never (?s:.)*the complete log:"
            r" .*kafka.log",
        ),
        one,
    ):
        pass


def test_the_broker_creates_no_topics_by_itself(servers: Any) -> None:
    one = servers(broker.Broker)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": one.bootstrap, "message.timeout.ms": 1000}
    )
    failures: list[confluent_kafka.KafkaError | None] = []
    producer.produce("nowhere", b"x", on_delivery=lambda error, _: failures.append(error))
    producer.flush(60)
    assert failures[0] is not None
    assert "nowhere" not in topics(one.bootstrap)


def test_the_user_of_postgres_can_run_no_programs(servers: Any) -> None:
    one = servers(postgres.Postgres)
    with (
        psycopg.connect(one.url) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("COPY (SELECT 1) TO PROGRAM 'true'")
    with pytest.raises(psycopg.OperationalError, match="rejects"):
        psycopg.connect(one.url.replace("instep@", "superuser@"))


def test_a_database_does_not_run_as_root(servers: Any) -> None:
    for kind in (postgres.Postgres, mariadb.MariaDB):
        one = servers(kind)
        user = psutil.Process(one.pid).uids().effective
        assert user != 0
        assert one.root.stat().st_uid == user


def test_a_stale_postgres_lock_file_does_not_affect_another_process(servers: Any) -> None:
    one = servers(postgres.Postgres)
    one.kill()
    lock = one.root / "data" / "postmaster.pid"
    user = paths.database_user()
    with subprocess.Popen(["sleep", "600"], user=user.uid if user else None) as stranger:
        lines = lock.read_text().splitlines()
        lock.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        try:
            one.start()
            assert stranger.poll() is None
        finally:
            stranger.kill()


# --- three brokers ---


@pytest.mark.long
def test_three_brokers_form_a_cluster_and_one_may_die() -> None:
    with broker.LocalCluster(3) as cluster:
        make_topic(cluster.bootstrap, "three", 3)
        client = admin.AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

        def replicas() -> list[int]:
            # of any broker: each learns of a new topic by itself
            known = client.list_topics(timeout=PATIENCE_S).topics
            return sorted(known["three"].partitions[0].replicas) if "three" in known else []

        wait_until(lambda: set(client.list_topics(timeout=PATIENCE_S).brokers) == {1, 2, 3})
        wait_until(lambda: replicas() == [1, 2, 3])
        cluster.nodes[2].kill()
        assert [node.alive for node in cluster.nodes] == [True, True, False]
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0}
        )
        failures: list[confluent_kafka.KafkaError | None] = []
        producer.produce("three", b"x", on_delivery=lambda error, _: failures.append(error))
        producer.flush(60)
        assert failures == [None]
        cluster.start()
        assert cluster.alive
        wait_until(lambda: set(client.list_topics(timeout=PATIENCE_S).brokers) == {1, 2, 3})


@pytest.mark.parametrize("count", [0, 2, 4])
def test_other_numbers_of_brokers_are_refused(count: int) -> None:
    with pytest.raises(errors.SettingsError, match="choose 1 or 3"):
        broker.LocalCluster(count)


# --- nothing outlives its owner ---

OWNER = """
import sys, time
from concurrent import futures
from instep.local import broker, mariadb, postgres
servers = [broker.Broker(), mariadb.MariaDB(), postgres.Postgres()]
for one in servers:
    one.start()
for one in servers:
    print(one.pid, one._keeper.pid, one.root, flush=True)
time.sleep(600)
"""


@contextmanager
def owning(code: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process that owns servers, and end it whatever the test finds."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as owner:
        try:
            yield owner
        finally:
            owner.kill()


@pytest.mark.parametrize("end", ["kill -9", "Ctrl-C", "keepers killed"])
def test_servers_and_their_temporary_data_end_with_their_owner(end: str) -> None:
    code = OWNER if end == "kill -9" else OWNER.replace("broker.Broker(), mariadb.MariaDB(), ", "")
    with owning(code) as owner:
        assert owner.stdout
        lines = [owner.stdout.readline().split() for _ in range(3 if end == "kill -9" else 1)]
        pids = [int(pid) for line in lines for pid in line[:2]]
        roots = [Path(line[2]) for line in lines]
        assert all(processes.alive(pid) for pid in pids)
        pids += [below for pid in pids for below in processes.descendants(pid)]
        assert all(root.exists() for root in roots)
        if end == "kill -9":
            owner.kill()
        elif end == "Ctrl-C":
            os.killpg(owner.pid, signal.SIGINT)
        else:
            for line in lines:
                os.kill(int(line[1]), signal.SIGKILL)
        wait_until(lambda: not any(processes.alive(pid) for pid in pids))
        if end == "keepers killed":
            owner.kill()
            for root in roots:
                subprocess.run(["rm", "-r", root], check=True)
    wait_until(lambda: not any(root.exists() for root in roots))


def test_ctrl_c_does_not_reach_the_server_before_its_owner_is_done() -> None:
    code = OWNER.replace("broker.Broker(), mariadb.MariaDB(), ", "").replace(
        "time.sleep(600)",
        "\ntry:\n    print('waiting', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print(one.alive and one.answers(), flush=True)",
    )
    with owning(code) as owner:
        assert owner.stdout
        owner.stdout.readline()
        assert owner.stdout.readline() == "waiting\n"
        os.killpg(owner.pid, signal.SIGINT)
        assert owner.stdout.readline() == "True\n"


def test_a_fork_of_the_owner_does_not_keep_its_servers() -> None:
    code = OWNER.replace("broker.Broker(), mariadb.MariaDB(), ", "").replace(
        "time.sleep(600)", "import os; os.fork(); time.sleep(600)"
    )
    with owning(code) as owner:
        assert owner.stdout
        pid = int(owner.stdout.readline().split()[0])
        wait_until(lambda: bool(processes.descendants(owner.pid)))
        owner.kill()
        wait_until(lambda: not processes.alive(pid))
        os.killpg(owner.pid, signal.SIGKILL)


def test_a_server_whose_keeper_was_killed_starts_again() -> None:
    with postgres.Postgres() as one:
        write(one, "kept")
        assert one._keeper
        os.kill(one._keeper.pid, signal.SIGKILL)
        wait_until(lambda: not processes.alive(one.pid))
        retrying(one.start, lambda error: isinstance(error, errors.InstepError), timeout_s=90)
        assert "kept" in read(one)


# --- libraries ---


def test_missing_libraries_are_named_with_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = (
        "\tlibaio.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n"
        "\tlibodd.so.9 => not found\n"
    )
    assert libraries.parse_missing(reported) == ["libaio.so.1", "libodd.so.9"]
    monkeypatch.setattr(
        "subprocess.run", lambda *_, **__: subprocess.CompletedProcess([], 0, reported, "")
    )
    with pytest.raises(
        errors.MissingPart,
        match=r"libaio.so.1, libodd.so.9 missing\n.*apt install libaio1 .*libodd.so.9",
    ):
        libraries.check(Path("mariadbd"))
