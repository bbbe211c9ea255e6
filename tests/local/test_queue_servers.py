"""Test Redis, RabbitMQ and ActiveMQ: killed, restarted, on loopback only, and cleaned up."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from instep import errors
from instep.local import activemq, artifacts, ports, processes, rabbitmq, redis, server
from instep_bench import meters
from tests.support.local_servers import LOOPBACK, answers, listening_addresses
from tests.support.queue_servers import needs_rabbitmq
from tests.support.waiting import wait_until


@pytest.fixture(
    params=[redis.Redis, pytest.param(rabbitmq.RabbitMQ, marks=needs_rabbitmq), activemq.ActiveMQ],
    ids=lambda kind: kind.name,
)
def one(request: pytest.FixtureRequest) -> Iterator[server.Server]:
    with request.param() as started:
        yield started


def test_a_queue_server_listens_on_loopback_restarts_on_its_port_and_leaves_nothing(
    one: server.Server,
) -> None:
    tree = [one.pid, *processes.descendants(one.pid)]
    found = listening_addresses(tree)
    assert found
    assert found <= LOOPBACK
    address, root = one.address, one.root
    one.kill()
    assert not one.alive
    assert not any(processes.alive(pid) for pid in tree)
    one.start()
    wait_until(lambda: answers(one), "answers")
    assert one.address == address
    tree = [one.pid, *processes.descendants(one.pid)]
    one.close()
    assert not any(processes.alive(pid) for pid in tree)
    assert not root.exists()


@needs_rabbitmq
def test_epmd_ends_with_its_node_even_after_a_kill_from_outside() -> None:
    with rabbitmq.RabbitMQ() as one:
        below = {pid: meters.command(pid) for pid in processes.descendants(one.pid)}
        assert "epmd" in below.values()
        os.kill(one.pid, signal.SIGKILL)
        wait_until(
            lambda: not any(processes.alive(pid) for pid in below),
            "everything below the node to be gone",
        )


def test_a_missing_rabbitmq_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(errors.MissingPart) as caught:
        rabbitmq.RabbitMQ().start()
    assert caught.value.remedy == "install it: apt-get install rabbitmq-server"


def test_redis_is_fetched_if_it_is_not_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shutil.which
    monkeypatch.setattr(
        shutil,
        "which",
        lambda name, path=None: None if name == "redis-server" else found(name, path=path),
    )
    with redis.Redis() as one:
        program = Path(psutil.Process(one.pid).exe())
        assert program.is_relative_to(artifacts.unpacked("redis"))


def test_a_port_in_use_is_named() -> None:
    with redis.Redis() as holder:
        refused = pytest.raises(
            errors.SettingsError, match=f"port {holder.port}, requested for activemq, is taken"
        )
        with refused, activemq.ActiveMQ(port=holder.port):
            pass
    assert not ports.taken(holder.port)
