"""Test a local cluster whose servers are killed, paused and resumed, and what its topics show."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from instep import errors, settings
from instep.kafka import connection, topics
from instep.local import local_servers, registry
from tests.support import commands
from tests.support.waiting import wait_until

Cli = Callable[..., str]


@pytest.fixture
def cli(home: Path) -> Cli:
    """Return a function that runs a command and returns its output.

    It uses a separate home, checks the exit status, and returns stdout and stderr.
    """

    def run(*arguments: str, status: int = 0) -> str:
        done = commands.run(arguments, cwd=home, env=os.environ)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    return run


def partition(cluster: connection.Cluster, topic: str) -> tuple[int, set[int]]:
    """Return the leader and the in-sync replicas of the topic's only partition.

    Return -1 and no replicas while the cluster does not answer.
    """
    try:
        partitions = cluster.admin.list_topics(topic, timeout=5).topics[topic].partitions
    except KafkaException:
        return -1, set()
    # Brokers that have just elected a controller may answer without partitions.
    found = partitions.get(0)
    return (found.leader, set(found.isrs)) if found else (-1, set())


def refused(operation: Callable[[str], registry.LocalServer], name: str) -> str:
    with pytest.raises(errors.SettingsError) as caught:
        operation(name)
    return str(caught.value)


def test_faults_can_be_injected_into_local_brokers_and_a_database(cli: Cli) -> None:
    assert "none was started" in refused(local_servers.kill, "1")
    assert "no local server has been started" in cli("up", "status")
    try:
        local_servers.up(brokers=3, databases=["postgres"])
        with connection.Cluster(settings.Kafka(), local_servers.broker_on_demand(print)) as cluster:
            topics.create(cluster, "moved", 1)
            wait_until(lambda: partition(cluster, "moved")[1] == {1, 2, 3}, "all three in sync")
            _kill_and_start(cli, cluster, _leader(cluster))
            _pause_and_resume(cli, _leader(cluster))
        _database()
        for name in ("4", "0", "mariadb", "kafka-9", ""):
            assert "there are: 1 (kafka-1), 2 (kafka-2), 3 (kafka-3), postgres" in refused(
                local_servers.resume, name
            )
        assert "there is no local server '7'" in cli("up", "kill", "7", status=2)
        assert "do not apply to `up kill`" in cli("up", "--brokers", "3", "kill", "1", status=2)
        # a paused server is ended like any other
        local_servers.pause("postgres")
        local_servers.pause("3")
        assert "4 stopped" in cli("down", "--purge", "--execute")
    finally:
        local_servers.down(purge=True)


def _kill_and_start(cli: Cli, cluster: connection.Cluster, leader: int) -> None:
    assert f"kafka-{leader} is dead" in cli("up", "kill", str(leader))
    wait_until(lambda: _led_by_another(cluster, leader), "another leader")
    local_servers.broker_on_demand(print)  # commands that need the cluster leave the dead node dead
    servers = json.loads(cli("up", "status", "--json"))["servers"]
    listed = {one["name"]: one["state"] for one in servers}
    assert listed[f"kafka-{leader}"] == "dead"
    assert list(listed.values()).count("running") == 3
    assert f"kafka-{leader} is already dead" in refused(local_servers.kill, str(leader))
    assert f"kafka-{leader} is dead" in refused(local_servers.pause, str(leader))
    before = next(one for one in registry.known() if one.node == leader)
    assert f"kafka-{leader} is running" in cli("up", "start", str(leader))
    after = next(one for one in registry.known() if one.node == leader)
    assert (after.address, after.state, after.killed) == (before.address, "running", False)
    wait_until(lambda: leader in partition(cluster, "moved")[1], "the node to be in sync again")


def _leader(cluster: connection.Cluster) -> int:
    """Return the leader, once the cluster answers."""
    found: list[int] = []

    def answered() -> bool:
        found.append(partition(cluster, "moved")[0])
        return found[-1] != -1

    wait_until(answered, "a leader")
    return found[-1]


def _led_by_another(cluster: connection.Cluster, leader: int) -> bool:
    return partition(cluster, "moved")[0] not in (-1, leader)


def _pause_and_resume(cli: Cli, leader: int) -> None:
    assert f"kafka-{leader} is paused" in cli("up", "pause", str(leader))
    assert [row.split()[0] for row in cli("up", "status").splitlines() if "paused" in row] == [
        f"kafka-{leader}"
    ]
    assert f"kafka-{leader} is paused" in refused(local_servers.pause, str(leader))
    assert f"kafka-{leader} is paused" in refused(local_servers.start, str(leader))
    others = ",".join(one.address for one in registry.known() if one.node and one.node != leader)
    with connection.Cluster(settings.Kafka(), others) as cluster:
        wait_until(lambda: _led_by_another(cluster, leader), "another leader")
        assert f"kafka-{leader} is running" in cli("up", "resume", str(leader))
        wait_until(lambda: leader in partition(cluster, "moved")[1], "the node to be in sync again")
    assert f"kafka-{leader} is running, not paused" in refused(local_servers.resume, str(leader))


def _database() -> None:
    (before,) = [one for one in registry.known() if one.name == "postgres"]
    local_servers.kill("postgres")
    after = local_servers.start("postgres")
    assert (after.port, after.state) == (before.port, "running")
    assert "postgres is running" in refused(local_servers.start, "postgres")
    assert local_servers.pause("postgres").state == "paused"
    assert local_servers.resume("postgres").state == "running"


def test_a_killed_single_broker_is_not_started_by_accident(home: Path) -> None:
    try:
        address = local_servers.broker_on_demand(print)
        local_servers.kill("1")
        assert local_servers.broker_on_demand(print) == address
        assert [one.state for one in registry.known()] == ["dead"]
        assert [one.state for one in local_servers.up()] == ["running"]
    finally:
        local_servers.down(purge=True)
