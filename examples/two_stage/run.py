"""Process events in two stages: mrp-web-etl to mrp-web-analyze, and from there into a table.

    python examples/two_stage/run.py

It starts Kafka on this machine if none is declared, publishes the status changes of a few
documents, runs both stages to the end of the log, and prints the table.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
from pathlib import Path

import instep
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.local import local_servers

TOPICS = {"mrp-web-etl": 3, "mrp-web-analyze": 3, "mrp-web-dead": 1}
STATUSES = ("CREATED", "QUEUED", "PRINTING", "PRINTED")
DOCUMENTS = 5


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--folder", type=Path, default=Path.cwd(), help="for the table")
    folder = arguments.parse_args().folder
    settings = instep.load_settings(Path(__file__).with_name("instep.toml"))
    os.chdir(folder)
    bootstrap = settings.kafka.bootstrap or local_servers.broker_on_demand(print)
    with Cluster(settings.kafka, bootstrap) as cluster:
        for topic in TOPICS.keys() - set(topics.names(cluster)):
            topics.create(cluster, topic, TOPICS[topic])
    with instep.Publisher(bootstrap, "mrp-web-etl") as publisher:
        for version, status in enumerate(STATUSES, start=1):
            for number in range(DOCUMENTS):
                publisher.send(
                    instep.StatusEvent(document=f"C-{number}", status=status, version=version)
                )
    instep.init(settings)
    # One run of both stages: each ends at the end of its topic, as it is when the stage starts.
    for stage in ("print-etl", "contracts"):
        instep.run(settings, pipelines=[stage], once=True)
    with sqlite3.connect("two_stage.db") as database:
        for row in database.execute("SELECT * FROM contract_document ORDER BY doc_no"):
            print(*row)


if __name__ == "__main__":
    main()
