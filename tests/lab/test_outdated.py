"""Test the list of outdated statements: sources, the page, and what its commands show."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from pathlib import Path

import confluent_kafka
import pytest

from instep.kafka import topics
from instep_lab import claims, outdated, sources
from instep_lab.cluster_pool import ClusterPool, LabCluster
from instep_lab.outdated import OutdatedStatement
from tests.support import commands

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "outdated.md"
RECORDS = 10


@pytest.fixture(scope="module")
def cluster(pool: ClusterPool) -> LabCluster:
    """Return a broker with the topic and the group that the page names."""
    cluster = pool.of(1)
    assert cluster is not None
    topics.create(cluster.kafka, "orders", 2)
    producer = confluent_kafka.Producer(cluster.connection)
    for number in range(RECORDS):
        producer.produce("orders", key="k1", value=str(number))
    producer.flush()
    consumer = confluent_kafka.Consumer(
        {**cluster.connection, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    read, began = 0, time.monotonic()
    while read < RECORDS and time.monotonic() - began < 60:
        read += len(consumer.consume(RECORDS, 0.5))
    assert read == RECORDS
    consumer.commit(asynchronous=False)
    consumer.close()
    return cluster


def run(cluster: LabCluster, command: str, folder: Path) -> str:
    words = shlex.split(command.replace(outdated.BOOTSTRAP, cluster.bootstrap))
    environment = {**os.environ, "INSTEP__KAFKA__BOOTSTRAP": cluster.bootstrap}
    done = commands.run(words[1:], cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "one", [one for one in outdated.ALL.values() if one.shows], ids=lambda one: one.id
)
def test_the_command_shows_what_is_true_today(
    cluster: LabCluster, tmp_path: Path, one: OutdatedStatement
) -> None:
    assert re.search(one.shows, run(cluster, one.shown_by, tmp_path))


def test_librdkafka_still_takes_the_old_words_for_a_reset() -> None:
    config = {"group.id": "g", "auto.offset.reset": "smallest"}
    confluent_kafka.Consumer(config).close()


def test_every_statement_is_complete() -> None:
    assert len(outdated.ALL) == len(outdated._KNOWN), "an id is used twice"
    for one in outdated.ALL.values():
        assert set(one.sources) <= sources.ALL.keys(), one.id
        assert one.sources, one.id
        assert re.fullmatch(r"Kafka \d+\.\d+", one.since), one.id
        assert one.today.endswith("."), one.id
        assert not one.statement.endswith("."), one.id
        assert bool(one.shows) != (one.claim in claims.ALL), one.id


def test_the_page_is_generated_from_the_list() -> None:
    """Write it with: python -m instep_lab.outdated > docs/lab/outdated.md."""
    assert PAGE.read_text(encoding="utf-8") == outdated.page()


def test_the_list_is_a_command(tmp_path: Path) -> None:
    def lab(*arguments: str) -> tuple[int, str]:
        done = commands.run(["lab", "outdated", *arguments], cwd=tmp_path, env=os.environ)
        return done.returncode, done.stdout or done.stderr

    status, listed = lab()
    assert status == 0
    for id_ in outdated.ALL:
        assert f"{id_}: outdated since Kafka " in listed
    status, shown = lab("acks-default", "--json")
    [found] = json.loads(shown)["statements"]
    assert (status, found["id"], found["since"]) == (0, "acks-default", "Kafka 3.0")
    status, refusal = lab("acks-defaults")
    assert status == 2
    assert "did you mean 'acks-default'" in refusal
