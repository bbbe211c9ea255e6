"""Process events in two stages: mrp-web-etl to mrp-web-analyze, and from there into a table.

    python examples/two_stage/run.py

It starts Kafka on this machine if none is declared, publishes the status changes of a few
documents, runs both stages to the end of the log, and prints the table.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import instep

TOPICS = {"mrp-web-etl": 3, "mrp-web-analyze": 3, "mrp-web-dead": 1}
STATUSES = ("CREATED", "QUEUED", "PRINTING", "PRINTED")
DOCUMENTS = 5
SETTINGS = Path(__file__).with_name("instep.toml")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--folder", type=Path, default=Path.cwd(), help="for the table")
    folder = arguments.parse_args().folder
    settings = instep.load_settings(SETTINGS)
    os.chdir(folder)
    bootstrap = settings.kafka.bootstrap or local_broker()
    for topic, partitions in TOPICS.items():
        create(topic, partitions)
    with instep.Publisher(bootstrap, "mrp-web-etl") as publisher:
        for version, status in enumerate(STATUSES, start=1):
            for number in range(DOCUMENTS):
                publisher.send(
                    instep.StatusEvent(document=f"C-{number}", status=status, version=version)
                )
    instep.init(settings)
    # With `once`, a stage ends at the end of its topic, as that is when the stage starts: so the
    # second one starts when the first one has ended. Without it, one run has both.
    for stage in ("print-etl", "contracts"):
        instep.run(settings, pipelines=[stage], once=True)
    with sqlite3.connect("two_stage.db") as database:
        for row in database.execute("SELECT * FROM contract_document ORDER BY doc_no"):
            print(*row)


def local_broker() -> str:
    """Start a broker that stays until `instep down`; return its address."""
    started = subprocess.run(
        [sys.executable, "-m", "instep", "up", "--json"], check=True, capture_output=True, text=True
    )
    servers = {one["name"]: one["address"] for one in json.loads(started.stdout)["servers"]}
    return str(servers["kafka"])


def create(topic: str, partitions: int) -> None:
    """Create a topic, unless it exists."""
    command = ("topics", "create", topic, "-p", str(partitions), "--if-not-exists", "--execute")
    arguments = [sys.executable, "-m", "instep", "--config", str(SETTINGS), *command]
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
