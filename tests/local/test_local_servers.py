from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from instep import errors
from instep.local import broker, local_servers, paths, ports, processes, registry
from tests.support.waiting import wait_until


@pytest.fixture
def state(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the state folder of a separate home.

    Free ports replace the default ones, which this machine may use.
    """
    chosen = ports.free(3)
    monkeypatch.setattr(
        local_servers,
        "DEFAULT_PORTS",
        dict(zip(("kafka", "postgres", "mariadb"), chosen, strict=True)),
    )
    yield paths.state()
    local_servers.down(purge=True)


def test_servers_start_stop_and_start_again(state: Path) -> None:
    messages: list[str] = []
    first = local_servers.up(databases=("postgres",), say=messages.append)
    assert [one.name for one in first] == ["kafka", "postgres"]
    assert messages == ["starting kafka with 1 broker", "starting postgres"]
    assert [one.port for one in first] == [
        local_servers.DEFAULT_PORTS["kafka"],
        local_servers.DEFAULT_PORTS["postgres"],
    ]
    assert all(Path(one.log).stat().st_size for one in first)
    assert all(one.alive for one in first)

    # Up again starts nothing; what is missing is added; other numbers and ports are refused.
    assert local_servers.up(databases=("postgres",)) == first
    assert local_servers.broker_on_demand(messages.append) == first[0].address
    with pytest.raises(errors.SettingsError, match="is running with 1 broker, not 3"):
        local_servers.up(brokers=3)
    with pytest.raises(
        errors.SettingsError,
        match=f"kafka is running on port {first[0].port}, not on the requested port 1",
    ):
        local_servers.up(given_ports={"kafka": 1})
    more = local_servers.up(databases=("mariadb",))
    assert more[:2] == first
    assert more[2].name == "mariadb"

    assert local_servers.down() == more
    assert registry.running() == []
    assert not any(processes.alive(one.pid) for one in more)
    with pytest.raises(
        errors.SettingsError, match="the local Kafka was created with 1 broker, not 3"
    ):
        local_servers.up(brokers=3)

    # The data is kept, and a default port that is now in use is replaced by a free one.
    cluster_id = (state / "kafka-of-1" / "kafka-1" / "data" / "meta.properties").read_text()
    holder = subprocess.Popen(
        [sys.executable, "-m", "http.server", "-b", "127.0.0.1", str(first[0].port)],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: ports.taken(first[0].port))
        with pytest.raises(
            errors.SettingsError, match=f"port {first[0].port}, requested for kafka, is taken"
        ):
            local_servers.up(given_ports={"kafka": first[0].port})
        assert local_servers.broker_on_demand(messages.append) != first[0].address
    finally:
        holder.kill()
        holder.wait()
    assert messages[-1] == "starting kafka with 1 broker"
    assert (state / "kafka-of-1" / "kafka-1" / "data" / "meta.properties").read_text() == cluster_id
    local_servers.down(purge=True)
    assert not list(state.glob("kafka*"))


def test_default_ports_that_are_taken_during_the_start_are_replaced(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_taken = ports.taken
    checked: set[int] = set()

    def free_at_the_first_check(port: int) -> bool:
        if port in checked:
            return really_taken(port)
        checked.add(port)
        return False

    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        lost = {"kafka": one.getsockname()[1], "mariadb": other.getsockname()[1]}
        monkeypatch.setattr(local_servers, "DEFAULT_PORTS", lost)
        monkeypatch.setattr(ports, "taken", free_at_the_first_check)
        started = {server.name: server.port for server in local_servers.up(databases=("mariadb",))}
    assert started.keys() == lost.keys()
    assert all(started[name] != port for name, port in lost.items())
    assert checked >= set(lost.values())


def test_the_pid_of_another_process_is_never_killed(state: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            mark = processes.start_mark(stranger.pid)
            assert mark
            record = {
                "name": "postgres",
                "address": "",
                "log": "",
                "pid": stranger.pid,
                "port": 1,
                "stop_signal": 15,
            }
            for stale in (f"{mark}0", mark.replace(mark[:8], "00000000")):
                (state / "up.json").write_text(json.dumps([record | {"mark": stale}]))
                assert registry.running() == []
                assert local_servers.down() == []
                assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_state_that_cannot_be_read_is_reported(state: Path) -> None:
    (state / "up.json").write_text("{")
    with pytest.raises(
        errors.InstepError, match=r"up.json, which lists the local servers, is damaged"
    ):
        registry.running()
    (state / "up.json").unlink()


def test_unknown_names_are_refused(state: Path) -> None:
    with pytest.raises(
        errors.SettingsError, match="no local database 'oracle'\nknown: postgres, mariadb"
    ):
        local_servers.up(databases=("oracle",))
    with pytest.raises(errors.SettingsError, match="no local server 'x'"):
        local_servers.up(given_ports={"x": 1})
    with pytest.raises(errors.SettingsError, match="choose 1 or 3"):
        local_servers.up(brokers=2)


def test_two_simultaneous_ups_start_one_broker(state: Path) -> None:
    code = "from instep.local import local_servers; print(local_servers.broker_on_demand(print))"
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in "ab"
    ]
    reported = [process.communicate()[0].splitlines() for process in both]
    assert reported[0][-1] == reported[1][-1]
    assert sorted(len(lines) for lines in reported) == [1, 2]
    assert len(registry.running()) == 1


def test_an_up_that_is_killed_half_way_leaves_no_server(state: Path) -> None:
    code = "from instep.local import local_servers; local_servers.up(say=print)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as killed:
        wait_until(lambda: bool(java_below(killed.pid)))
        below = java_below(killed.pid)
        killed.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(processes.alive(pid) for pid in below))
    assert registry.running() == []


def java_below(pid: int) -> list[int]:
    return [one for one in processes.descendants(pid) if program(one) == "java"]


def program(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.NoSuchProcess:  # it has just ended
        return ""


@pytest.mark.long
def test_of_three_brokers_a_dead_one_is_started_again(state: Path) -> None:
    first = local_servers.up(brokers=3)
    assert [one.name for one in first] == ["kafka-1", "kafka-2", "kafka-3"]
    os.kill(first[1].pid, signal.SIGKILL)
    wait_until(lambda: not first[1].alive)
    again = local_servers.up(databases=())
    assert [one.address for one in again] == [one.address for one in first]
    assert [one.pid == before.pid for one, before in zip(again, first, strict=True)] == [
        True,
        False,
        True,
    ]
    wait_until(lambda: broker.ask_membership(again[0].port).nodes == {1, 2, 3})
    for one in again:
        os.kill(one.pid, signal.SIGKILL)
