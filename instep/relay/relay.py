"""Run a relay: wait for the lease, then work in sessions until asked to stop."""

from __future__ import annotations

import threading

from instep import errors, settings
from instep.kafka import connection
from instep.relay.session import LeaseKeeper, RelayProgress, RelaySession, Say
from instep.sources.lease import Lease

STANDBY_S = 0.5


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
    lease = Lease(relay, name)
    keeper = LeaseKeeper(name, lease)
    try:
        if not _claimed(lease, keeper, name, stop=stop, say=say, progress=progress):
            return
        own = Lease(relay, name)
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
            ).run(own, once=once)
        finally:
            own.close()
    finally:
        keeper.stop()


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
