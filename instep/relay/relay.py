"""Run a relay: wait for the lease, then work in sessions until asked to stop."""

from __future__ import annotations

import threading

from instep import errors, settings
from instep.kafka import connection
from instep.relay.session import LeaseKeeper, RelayProgress, RelaySession, Say
from instep.sources.connection import OpenConnections
from instep.sources.lease import Lease

STANDBY_S = 0.5
STOP_S = 5.0  # for a source that does not answer


def run(
    name: str,
    relay: settings.Relay,
    cluster: connection.Cluster,
    *,
    once: bool,
    stop: threading.Event,
    say: Say,
    progress: RelayProgress,
) -> None:
    """Publish until asked to stop.

    Raise SessionEnded if a new process must continue: the Kafka client must not be used
    again after its transactions were fenced.
    """
    connections, ended = OpenConnections(), threading.Event()
    threading.Thread(
        target=_end_waits, args=(connections, stop, ended), name="instep-relay-stop", daemon=True
    ).start()
    lease = Lease(relay, name, connections)
    keeper = LeaseKeeper(name, lease)
    try:
        if not _claimed(lease, keeper, name, stop=stop, say=say, progress=progress):
            return
        own = Lease(relay, name, connections)
        own.holder = lease.holder
        try:
            RelaySession(
                name,
                relay,
                cluster,
                keeper,
                stop=stop,
                say=say,
                progress=progress,
                connections=connections,
            ).run(own, once=once)
        finally:
            own.close()
    finally:
        keeper.stop()
        ended.set()


def _end_waits(connections: OpenConnections, stop: threading.Event, ended: threading.Event) -> None:
    """After a stop, wait no longer for a source that does not answer."""
    while not stop.wait(STANDBY_S):
        if ended.is_set():
            return
    while not ended.wait(STOP_S):
        connections.cut()


def _claimed(
    lease: Lease,
    keeper: LeaseKeeper,
    name: str,
    *,
    stop: threading.Event,
    say: Say,
    progress: RelayProgress,
) -> bool:
    """Wait for the lease, and keep it; return False if asked to stop meanwhile."""
    said: str | None = None
    while not stop.is_set():
        try:
            if lease.claim():
                keeper.start()
                return True
            holder = lease.read().holder
            progress.state = "standing by"
            message = f"{name}: standing by; {holder} is active"
        except (errors.Unreachable, errors.Transient) as error:
            progress.state = "waiting for the source"
            message = f"{name}: {error.what}; trying again"
        if message != said:
            said = message
            say(message)
        stop.wait(STANDBY_S)
    return False
