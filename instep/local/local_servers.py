"""Local servers: `instep up` starts them, `instep down` stops them.

They run on without the process that started them, and keep their data between down and up. Only one
`up` or `down` runs at a time.

For experiments, a single server can be killed, started, paused and resumed. A server that was
killed on purpose stays down until it is started, or until `instep up`: commands that need a broker
do not start it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from instep import errors
from instep.local import broker, mariadb, paths, ports, postgres, processes, registry, server
from instep.local.registry import LocalServer, State

DATABASES: Mapping[str, type[server.Server]] = {
    "postgres": postgres.Postgres,
    "mariadb": mariadb.MariaDB,
}
DEFAULT_PORTS: Mapping[str, int] = {"kafka": 9092, "postgres": 5432, "mariadb": 3306}
STOP_TIMEOUT_S = 30.0


def up(
    *,
    brokers: int | None = None,
    databases: Sequence[str] = (),
    given_ports: Mapping[str, int] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[LocalServer]:
    """Start what is not running yet, and return all running servers.

    The default number of brokers is that of the kept data, else one. A given port must be free.
    Without one, a server takes its default port if that is free, else any free port. Three brokers
    take three consecutive ports, beginning with the given one.
    """
    given_ports = given_ports or {}
    _check_names("database", databases, DATABASES)
    _check_names("server", given_ports, DEFAULT_PORTS)
    with paths.locked(paths.state() / "up.lock"):
        count = _broker_count(brokers)
        _check_ports(given_ports)
        if len(_nodes()) < count:
            say(f"starting kafka with {_brokers(count)}")
            _start_brokers(count, given_ports.get("kafka"))
        for name in databases:
            if name not in {one.name for one in registry.running()}:
                say(f"starting {name}")
                _start_database(name, given_ports.get(name))
        return registry.running()


def down(*, purge: bool = False) -> list[LocalServer]:
    """Stop the running servers and return them; with `purge`, also remove their data."""
    with paths.locked(paths.state() / "up.lock"):
        stopped = registry.running()
        if stopped:
            with futures.ThreadPoolExecutor(len(stopped)) as pool:
                list(pool.map(_end, stopped))
        registry.write([])
        if purge:
            for folder in data_folders():
                shutil.rmtree(folder, ignore_errors=True)
        return stopped


def data_folders() -> list[Path]:
    """Return the folders with the data of local servers, which `down(purge=True)` removes."""
    folders = [*_kept_clusters(), *(paths.open_state() / name for name in DATABASES)]
    return [folder for folder in folders if folder.exists()]


def broker_on_demand(say: Callable[[str], None]) -> str:
    """Return the bootstrap servers of the local Kafka; start it unless it runs or was killed."""
    return registry.bootstrap() or ",".join(one.address for one in up(say=say) if one.node)


# --- experiments ----------------------------------------------------------------------------------


def kill(name: str) -> LocalServer:
    """Kill one server and all its processes with SIGKILL; its data stays."""
    with paths.locked(paths.state() / "up.lock"):
        one = _named(name)
        _expect(one, ("running", "paused"), "is already dead")
        processes.kill_tree(one.pid)
        return _note(replace(one, killed=True))


def start(name: str) -> LocalServer:
    """Start one dead server again, on its port and its data."""
    with paths.locked(paths.state() / "up.lock"):
        one = _named(name)
        _expect(one, ("dead",), f"is {one.state}")
        if one.node:
            _start_missing_brokers(only=one.node)
        else:
            _start_database(one.name, one.port)
        return _named(name)


def pause(name: str) -> LocalServer:
    """Freeze one server, and wait until it has stopped: nothing answers any more."""
    with paths.locked(paths.state() / "up.lock"):
        one = _named(name)
        _expect(one, ("running",), f"is {one.state}")
        if not processes.freeze_tree(one.pid):
            processes.thaw_tree(one.pid)
            raise server.not_paused(one.name)
        return one


def resume(name: str) -> LocalServer:
    """Continue a paused server."""
    with paths.locked(paths.state() / "up.lock"):
        one = _named(name)
        _expect(one, ("paused",), f"is {one.state}, not paused")
        processes.thaw_tree(one.pid)
        return one


def _named(name: str) -> LocalServer:
    """Return the server with this name. A broker may also be named by its node number."""
    found = [one for one in registry.known() if name in (one.name, str(one.node or one.name))]
    if found:
        return found[0]
    if not registry.known():
        raise errors.SettingsError(
            f"there is no local server {name!r}: none was started", "instep up --brokers 3"
        )
    names = [f"{one.node} ({one.name})" if one.node else one.name for one in registry.known()]
    raise errors.SettingsError(
        f"there is no local server {name!r}", f"there are: {', '.join(names)}"
    )


def _expect(one: LocalServer, states: Sequence[State], instead: str) -> None:
    if one.state not in states:
        raise errors.SettingsError(
            f"{one.name} {instead}", "instep up status shows the state of each server"
        )


def _note(changed: LocalServer) -> LocalServer:
    registry.write([changed if one.name == changed.name else one for one in registry.known()])
    return changed


# --- starting -------------------------------------------------------------------------------------


def _check_names(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise errors.SettingsError(
                f"there is no local {kind} {name!r}", f"known: {', '.join(known)}"
            )


def _check_ports(given_ports: Mapping[str, int]) -> None:
    for name, port in given_ports.items():
        for one in registry.running():
            if one.name in (name, f"{name}-1") and one.port != port:
                raise errors.SettingsError(
                    f"{one.name} is running on port {one.port}, not on the requested port {port}",
                    "run `instep down` first, or leave out the port",
                )


def _broker_count(wanted: int | None) -> int:
    kept = [int(folder.name.rpartition("-")[2]) for folder in _kept_clusters()]
    if wanted is None:
        return next(iter(kept), 1)
    if wanted in kept or not kept:
        return wanted
    if _nodes():
        raise errors.SettingsError(
            f"the local Kafka is running with {_brokers(kept[0])}, not {wanted}",
            "leave out --brokers; or run `instep down --purge --execute` first,"
            " which removes its topics",
        )
    raise errors.SettingsError(
        f"the local Kafka was created with {_brokers(kept[0])}, not {wanted}",
        f"use --brokers {kept[0]}; or run `instep down --purge --execute` first,"
        " which removes its topics",
    )


def _brokers(count: int) -> str:
    if count == 1:
        return "1 broker"
    return f"{count} brokers"


def _start_brokers(count: int, given_port: int | None) -> None:
    if _nodes():
        _start_missing_brokers()
        return
    first = given_port or DEFAULT_PORTS["kafka"]
    _start_on_port(
        given_port,
        [first + index for index in range(count)],
        lambda chosen: _start_cluster(count, chosen),
    )


def _start_cluster(count: int, given_ports: Sequence[int] | None) -> None:
    root = paths.state() / f"kafka-of-{count}"
    with broker.LocalCluster(count, given_ports=given_ports, root=root, tied=False) as cluster:
        _hand_over(cluster.nodes)


def _start_on_port(
    given_port: int | None,
    wanted: Sequence[int],
    start_on: Callable[[Sequence[int] | None], None],
) -> None:
    """Start a server on the wanted ports; if none was given and one is taken, on free ports."""
    if given_port is not None:
        start_on(wanted)
        return
    if not any(ports.taken(port) for port in wanted):
        # Another program may still take a default port before the server does.
        with suppress(errors.PortTaken):
            start_on(wanted)
            return
    start_on(None)


def _start_missing_brokers(only: int | None = None) -> None:
    """Start the dead nodes, or one of them, on the ports by which the others know them.

    Without a quorum they cannot become ready, so they are not waited for.
    """
    nodes = [one for one in registry.known() if one.node]
    root = paths.state() / f"kafka-of-{len(nodes)}"
    peers = tuple(broker.Peer(one.node, one.controller_port) for one in nodes)
    with ExitStack() as started:
        missing = []
        for one in nodes:
            if not one.alive and only in (None, one.node):
                node = broker.Broker(
                    port=one.port, root=root / f"kafka-{one.node}", node=one.node, tied=False
                )
                node.join(one.port, peers, node.cluster_id)
                started.callback(node.close)
                node.launch()
                missing.append(node)
        running = sum(one.state == "running" for one in nodes) + len(missing)
        if running > len(nodes) // 2:
            for node in missing:
                node.wait_ready()
        _hand_over(missing)


def _start_database(name: str, given_port: int | None) -> None:
    _start_on_port(
        given_port,
        [given_port or DEFAULT_PORTS[name]],
        lambda chosen: _start_one_database(name, chosen),
    )


def _start_one_database(name: str, given_ports: Sequence[int] | None) -> None:
    port = given_ports[0] if given_ports else None
    with DATABASES[name](port=port, root=paths.open_state() / name, tied=False) as database:
        _hand_over([database])


def _hand_over(servers: Sequence[server.Server]) -> None:
    """Register the servers, then release them. If this process dies in between, they end."""
    recorded = {one.name: one for one in registry.known()}
    for one in servers:
        described = _describe(one)
        recorded[described.name] = described
    registry.write(list(recorded.values()))
    for one in servers:
        one.release()


def _describe(one: server.Server) -> LocalServer:
    mark = processes.start_mark(one.pid)
    if mark is None:
        raise errors.InstepError(f"{one.name} ended right after its start", f"see {one.log}")
    node, controller_port, name = 0, 0, one.name
    if isinstance(one, broker.Broker):
        node, controller_port = one.node, one.controller_port
        name = one.name if len(one.peers) == 1 else f"{one.name}-{node}"
    return LocalServer(
        name,
        one.address,
        str(one.log),
        one.pid,
        mark,
        one.port,
        int(one.stop_signal),
        node,
        controller_port,
    )


# --- state ----------------------------------------------------------------------------------------


def _nodes() -> list[LocalServer]:
    return [one for one in registry.running() if one.node]


def _kept_clusters() -> list[Path]:
    return sorted(paths.state().glob("kafka-of-*"))


def _end(one: LocalServer) -> None:
    server.end(one.pid, one.mark, one.stop_signal, STOP_TIMEOUT_S)
