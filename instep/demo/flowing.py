"""`instep demo --console`: a pipeline with events that keep flowing, to be watched in a browser.

Most events are good. Some records cannot be understood, and some statuses do not fit, so that there
is quarantine to act on.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from instep.demo.contract_system import Contracts
from instep.demo.story import MALFORMED
from instep.emit import Publisher
from instep.local import broker, class_archives

EVENTS_PER_S = 40
MALFORMED_EVERY = 400  # events
UNFIT_EVERY = 250
STATUSES = ("CREATED", "QUEUED", "PRINTING", "PRINTED")
UNFIT_STATUS = "PRINTED " * 40  # longer than a status may be
SEED = 1


@contextlib.contextmanager
def flowing(documents: int, folder: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Start a broker, a pipeline and a source, and yield the settings file. Stop all at the end."""
    class_archives.prepare(class_archives.SPARK, say)
    with contextlib.ExitStack() as stack:
        say("starting a Kafka broker on this machine")
        kafka = stack.enter_context(broker.LocalCluster())
        url = f"sqlite:///{folder / 'contracts.db'}"
        system = Contracts(folder, kafka.bootstrap, url, documents, prefix="", name="contracts")
        system.prepare()
        running = system.process()
        stack.callback(running.close)
        say("starting the pipeline")
        running.start()
        sink = stack.enter_context(system.sink())
        system.wait(running, lambda: system.started(sink), "starting")
        publisher = stack.enter_context(system.publisher())
        stop = threading.Event()
        source = threading.Thread(target=_publish, args=(system, publisher, stop), daemon=True)
        source.start()
        stack.callback(source.join)
        stack.callback(stop.set)
        yield system.config


def _publish(system: Contracts, publisher: Publisher, stop: threading.Event) -> None:
    """Publish changes of documents, chosen at random, at an even rate."""
    dice = random.Random(SEED)  # noqa: S311 - which document changes is no secret
    versions = dict.fromkeys(system.documents, 0)
    number = 0
    while not stop.wait(1 / EVENTS_PER_S):
        number += 1
        document = dice.choice(system.documents)
        if number % MALFORMED_EVERY == 0:
            publisher.send_raw(document.encode(), dice.choice(MALFORMED))
            continue
        version = versions[document] = versions[document] + 1
        status = STATUSES[(version - 1) % len(STATUSES)]
        unfit = number % UNFIT_EVERY == 0
        system.publish(publisher, document, UNFIT_STATUS if unfit else status, version)
