"""A client as a process: `python -m instep_lab.clients PLAN HISTORY`.

The connection settings are in the environment.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from instep_lab.clients.consuming import Consuming, consume
from instep_lab.clients.java_client import CONNECTION
from instep_lab.clients.publishing import Publishing, publish
from instep_lab.history import HistoryWriter


def main(plan_file: str, history_file: str) -> None:
    plan = msgspec.json.decode(Path(plan_file).read_bytes(), type=Publishing | Consuming)
    connection = msgspec.json.decode(os.environ[CONNECTION])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with HistoryWriter(Path(history_file), sampled=plan.sampled) as history_writer:
        if isinstance(plan, Publishing):
            publish(plan, connection, history_writer, stop)
        else:
            consume(plan, connection, history_writer, stop)


if __name__ == "__main__":
    main(*sys.argv[1:3])
