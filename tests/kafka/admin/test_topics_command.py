"""Test `instep topics` as users run it."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from instep import settings
from instep.cli import output
from instep.kafka import configs, connection, layout, topics
from instep.kafka.admin import topic_admin, topic_details
from instep.local.broker import LocalCluster
from tests.support.cli import instep, refused, refused_in_process, reported, settings_text
from tests.support.producing import IN_ORDER


@pytest.fixture
def place(tmp_path: Path, broker: LocalCluster, new_topic: Callable[..., str]) -> Path:
    """Make a folder with a settings file whose pipeline reads a topic of three partitions."""
    text = settings_text(bootstrap=broker.bootstrap, topic=new_topic(3))
    (tmp_path / "instep.toml").write_text(text, encoding="utf-8")
    return tmp_path


def followed(place: Path) -> str:
    return settings.load(place / "instep.toml").pipelines["contracts"].topic


def test_the_list_hides_internal_topics(place: Path, cluster: connection.Cluster) -> None:
    topic = followed(place)
    with_offsets = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    with_offsets.init_transactions(30)
    listed = reported(place, "topics", "list")
    found = {one["name"]: one for one in listed["topics"]}
    assert found[topic] == {
        "name": topic,
        "partitions": 3,
        "replicas": 1,
        "under_replicated": 0,
        "unavailable": 0,
        "internal": False,
    }
    assert listed["internal_hidden"] > 0
    assert not any(name.startswith("__") for name in found)
    assert "__transaction_state" in {
        one["name"] for one in reported(place, "topics", "list", "--internal")["topics"]
    }
    shown = instep(place, "topics", "list", f"{topic[:-2]}??")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["NAME", "PARTITIONS", "REPLICAS", "IN-SYNC"],
        [topic, "3", "1", "all"],
    ]
    assert [
        one["name"] for one in reported(place, "topics", "list", f"^{topic}$", "--regex")["topics"]
    ] == [topic]
    assert "is not a regular expression" in refused(place, "topics", "list", "(", "--regex")


def test_partitions_that_accept_no_writes_are_found(
    place: Path, new_topic: Callable[..., str]
) -> None:
    short = new_topic(2, min_insync_replicas="2")
    found = reported(
        place, "topics", "list", "--under-min-isr", "--under-replicated", "--unavailable"
    )["partitions"]
    assert [one for one in found if one["topic"] == short] == [
        {
            "topic": short,
            "partition": number,
            "leader": 1,
            "replicas": [1],
            "in_sync": [1],
            "min_in_sync": 2,
        }
        for number in (0, 1)
    ]
    assert not [one for one in found if one["topic"] == followed(place)]


def test_a_topic_is_described(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2, retention_ms="-1")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    for number in range(5):
        producer.produce(topic, b"v" * 100, partition=1, timestamp=1_790_000_000_000 + number)
    assert producer.flush(30) == 0
    (found,) = reported(place, "topics", "describe", topic)["topics"]
    assert {"name": "retention.ms", "value": "-1", "source": "topic"} in found["settings"]
    empty, full = found["partitions"]
    assert (empty["first"], empty["end"], empty["size_bytes"], empty["last_record_ms"]) == (
        0,
        0,
        0,
        None,
    )
    assert (full["first"], full["end"], full["records_estimated"], full["last_record_ms"]) == (
        0,
        5,
        5,
        1_790_000_000_004,
    )
    assert full["size_bytes"] > 500
    assert (full["leader"], full["replicas"], full["in_sync"], full["offline"]) == (1, [1], [1], [])
    shown = instep(place, "topics", "describe", topic).stdout
    assert "2026-09-21T14:13:20Z" in shown
    assert f"did you mean '{topic}'" in refused(place, "topics", "describe", topic[:-1])


def test_a_partition_without_a_leader_is_shown_but_not_read() -> None:
    part = layout.Partition(0, None, (1, 2), ())
    assert part.is_under_replicated
    assert layout.Layout("t", (part, layout.Partition(1, 1, (1, 2), (1, 2)))).with_leader == (1,)
    shown = topic_details._detail(part, (1,), None, None, (2,))
    assert (
        shown.offline,
        shown.eligible,
        shown.end,
        shown.records_estimated,
        shown.size_bytes,
    ) == ((2,), (2,), None, None, None)


def test_each_topic_that_is_created_is_reported(place: Path, cluster: connection.Cluster) -> None:
    good, bad = f"made-{uuid.uuid4().hex[:8]}", "no/name"
    done = instep(
        place,
        "topics",
        "create",
        good,
        bad,
        followed(place),
        "-p",
        "2",
        "-c",
        "retention.ms=1000",
        "--if-not-exists",
        "--execute",
    )
    assert done.returncode == 2
    remedy = done.stderr.splitlines()[2]
    assert "letters, digits" in remedy
    assert [line.split(": ")[:2] for line in done.stderr.splitlines() if line != remedy] == [
        [f"topic {good}", "has 2 partitions"],
        ["instep", f"topic {bad}"],
        [f"topic {followed(place)}", "already exists, with 3 partitions (requested"],
    ]
    assert configs.of_topics(cluster, [good])[good]["retention.ms"].value == "1000"
    assert len(topics.describe(cluster, good).partitions) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-r", "9"], "cannot have 9 replicas: the cluster has 1 broker\n"),
        (
            ["-c", "retentin.ms=1"],
            "topics have no setting 'retentin.ms'; did you mean 'retention.ms'?",
        ),
        (["-c", "retention.ms"], "'retention.ms' is not NAME=VALUE"),
        (["-c", "retention.ms=long"], "Not a number of type LONG"),
    ],
)
def test_a_topic_that_cannot_be_created_has_a_remedy(
    place: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    assert says in refused_in_process(
        place, monkeypatch, "topics", "create", f"never-{uuid.uuid4().hex[:8]}", *arguments
    )


def test_topics_are_created_only_with_execute(place: Path, cluster: connection.Cluster) -> None:
    name = f"dry-{uuid.uuid4().hex[:8]}"
    planned = instep(place, "topics", "create", name)
    assert "would have 6 partitions" in planned.stderr
    assert planned.stderr.endswith(f"{output.DRY_RUN}\n")
    assert name not in topics.names(cluster)
    created = instep(place, "topics", "create", name, "--execute")
    assert created.stderr == f"topic {name}: has 6 partitions\n"
    assert name in topics.names(cluster)


def test_settings_change_one_by_one(
    cluster: connection.Cluster, new_topic: Callable[..., str], place: Path
) -> None:
    topic = new_topic(1, retention_ms="60000", cleanup_policy="compact", segment_bytes="2000000")
    change = ("-c", "retention.ms=90000", "--unset", "cleanup.policy")
    changes = reported(place, "topics", "alter", topic, *change, "--execute")["changes"]
    assert [
        (one["before"]["value"], one["after"]["value"], one["after"]["source"]) for one in changes
    ] == [
        ("60000", "90000", "topic"),
        ("compact", "delete", "default"),
    ]
    planned = instep(place, "topics", "alter", topic, "-c", "retention.ms=1")
    assert planned.stderr.endswith(f"{output.DRY_RUN}\n")
    found = configs.of_topics(cluster, [topic])[topic]
    assert (found["retention.ms"].value, found["segment.bytes"].value) == ("90000", "2000000")
    assert "did you mean 'retention.ms'" in refused(
        place, "topics", "alter", topic, "-c", "retentio.ms=1"
    )
    assert "no change is given" in refused(place, "topics", "alter", topic)
    assert "both set and unset" in refused(
        place, "topics", "alter", topic, "-c", "a=1", "--unset", "a"
    )
    assert "does not exist" in refused(
        place, "topics", "alter", f"{topic}x", "-c", "retention.ms=1"
    )


def test_growing_shows_which_keys_move(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(4)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "partitioner": "murmur2"})
    for number in range(60):
        producer.produce(topic, b"{}", key=f"doc-{number % 30}".encode())
    producer.produce(topic, b"{}")
    assert producer.flush(30) == 0
    plan = topic_admin.plan_growth(cluster, topic, 8)
    assert (plan.now, plan.new, plan.moved_share, plan.sampled_keys, plan.sampled_elsewhere) == (
        4,
        8,
        0.5,
        30,
        0,
    )
    assert 0 < plan.sampled_moved < 30


def test_growing_requires_a_guard(place: Path, cluster: connection.Cluster) -> None:
    topic, file = followed(place), place / "instep.toml"
    assert "cannot be reduced" in refused(place, "topics", "grow", topic, "-p", "2")
    assert "already has 3 partitions" in refused(place, "topics", "grow", topic, "-p", "3")
    planned = instep(place, "topics", "grow", topic, "-p", "6")
    assert "guarded by version" in planned.stderr
    assert "50%" in planned.stdout
    guarded = file.read_text(encoding="utf-8")
    file.write_text(guarded.replace('order = "version"\n', ""), encoding="utf-8")
    assert "without a guard" in refused(place, "topics", "grow", topic, "-p", "6", "--execute")
    assert len(topics.describe(cluster, topic).partitions) == 3
    file.write_text(guarded, encoding="utf-8")
    assert instep(place, "topics", "grow", topic, "-p", "6", "--execute").returncode == 0
    assert len(topics.describe(cluster, topic).partitions) == 6


def test_a_topic_is_deleted_with_execute_and_a_confirmation(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    other = new_topic(1)
    assert "pipeline 'contracts' reads" in refused(
        place, "topics", "delete", followed(place), "--execute", "--yes"
    )
    planned = instep(place, "topics", "delete", other)
    assert (planned.returncode, planned.stderr) == (0, f"{output.DRY_RUN}\n")
    assert "was not confirmed" in refused(place, "topics", "delete", other, "--execute")
    assert other in topics.names(cluster)
    assert instep(place, "topics", "delete", other, "--execute", "--yes").returncode == 0
    assert other not in topics.names(cluster)
    assert "does not exist" in refused(place, "topics", "delete", other, "--execute", "--yes")


def test_a_quick_command_imports_nothing_heavy(place: Path) -> None:
    program = (
        "import sys, contextlib\nfrom instep import cli\n"
        "with contextlib.suppress(SystemExit):\n"
        "    sys.argv = ['instep', 'topics', 'list', '--json']\n    cli.main()\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert followed(place) in done.stdout
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert "confluent_kafka" in loaded
    assert not loaded & {
        "kafka",
        "pyspark",
        "sqlalchemy",
        "pyarrow",
        "py4j",
        "prometheus_client",
        "rich",
    }
