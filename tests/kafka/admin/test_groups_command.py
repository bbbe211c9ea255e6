"""Test `instep groups` as users run it, and against Kafka's own tool."""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from instep import errors
from instep.cli import output
from instep.kafka import connection, groups, offsets, places
from instep.kafka.admin import consumer_groups, resets
from instep.local.broker import LocalCluster
from tests.support import kafka_tools as tools
from tests.support.cli import instep, refused, refused_in_process, reported, settings_text
from tests.support.open_transaction import wait_until_ended
from tests.support.producing import fill
from tests.support.waiting import wait_until


@pytest.fixture
def place(tmp_path: Path, broker: LocalCluster) -> Path:
    """Make a folder with settings. The pipeline's topic does not exist, which is fine here."""
    text = settings_text(bootstrap=broker.bootstrap, topic="unseen")
    (tmp_path / "instep.toml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def member(
    cluster: connection.Cluster, group: str, topic: str, partitions: int
) -> Iterator[Consumer]:
    """Yield a member with that many assigned partitions. It reads and commits nothing by itself."""
    config = {
        "group.id": group,
        "client.id": "reader-7",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, **config})
    consumer.subscribe([topic])
    try:
        wait_until(
            lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == partitions,
            "the assignment",
        )
        yield consumer
    finally:
        consumer.close()


def _dashed(*values: int | None) -> list[str]:
    return ["-" if value is None else str(value) for value in values]


def _member_columns(part: dict[str, Any]) -> list[str]:
    shown_member = part["member"]
    if not shown_member:
        return ["-", "-", "-"]
    return [shown_member["id"], f"/{shown_member['host']}", shown_member["client_id"]]


def test_lag_and_members_equal_those_of_kafkas_own_tool(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str], group: str
) -> None:
    topic, other = new_topic(2), new_topic(2)
    fill(cluster, other, 0, 5)
    groups.commit(cluster, group, {(topic, 0): 3, (other, 0): 0})
    hour_ago = int(time.time() * 1000) - 3_600_000
    with member(cluster, group, topic, 2) as consumer:
        fill(cluster, topic, 10, 4, timestamp_ms=hour_ago)
        (found,) = reported(place, "groups", "describe", group)["groups"]
        printed = tools.run(tools.GROUPS, cluster.bootstrap, "--describe", "--group", group)
        reset = refused(
            place, "groups", "reset", group, "--topic", topic, "--to-latest", "--execute"
        )
        deleted = refused(place, "groups", "delete", group, "--execute", "--yes")
        assert len(consumer.assignment()) == 2
    theirs = [line.split() for line in printed.splitlines() if line.startswith(group)]
    behind, never, *others = sorted(
        found["standings"], key=lambda part: (part["topic"] != topic, part["partition"])
    )
    ours = [
        [
            group,
            part["topic"],
            str(part["partition"]),
            *_dashed(part["current"], part["end"], lag),
            *_member_columns(part),
        ]
        for part, lag in ((behind, 7), (never, None), (others[0], 0))
    ]
    assert sorted(ours) == sorted(line[:9] for line in theirs)
    assert (behind["lag_records"], 3_500 < behind["lag_seconds"] < 5_000) == (7, True)
    # Kafka's own tool excludes these from its sums, and does not list the second at all
    assert (never["current"], never["lag_records"], never["note"]) == (
        None,
        4,
        consumer_groups.NEVER_COMMITTED,
    )
    assert (others[1]["current"], others[1]["lag_records"], others[1]["note"]) == (
        None,
        5,
        consumer_groups.NEVER_COMMITTED,
    )
    assert {name: total["lag_records"] for name, total in found["topics"].items()} == {
        topic: 11,
        other: 5,
    }
    assert (found["lag_records"], 3_500 < found["lag_seconds"] < 5_000) == (16, True)
    assert (found["state"], found["assignor"], found["members"][0]["client_id"]) == (
        "Stable",
        "range",
        "reader-7",
    )
    for said in (reset, deleted):
        assert "has 1 member: reader-7 at 127.0.0.1" in said
    assert groups.all_positions(cluster, group) == {(topic, 0): 3, (other, 0): 0}


def test_markers_are_not_lag_and_an_open_transaction_is_reported(
    cluster: connection.Cluster, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"1")
    producer.commit_transaction(30)
    groups.commit(cluster, group, {(topic, 0): 1})

    def standing() -> tuple[int | None, int | None, float | None, str]:
        (found,) = consumer_groups.describe(cluster, group).positions
        return found.end, found.lag_records, found.lag_seconds, found.note

    wait_until_ended(cluster, topic, [0])
    assert standing() == (2, 0, 0.0, consumer_groups.MARKERS_ONLY)
    producer.begin_transaction()
    producer.produce(topic, b"2")
    assert producer.flush(30) == 0
    end, lag, seconds, note = standing()
    assert (end, lag, seconds) == (3, 1, None)
    assert re.fullmatch(
        r"behind an open transaction since 20.+Z, producer id \d+, transactional id '.+',"
        r" partition 0",
        note,
    )
    producer.abort_transaction(30)
    wait_until_ended(cluster, topic, [0])
    assert standing() == (4, 0, 0.0, consumer_groups.MARKERS_ONLY)


@pytest.mark.parametrize(
    ("span", "current", "lag"),
    [
        (offsets.Span(5, 9, 9, None), 2, (7, None, "records below 5 have expired")),
        (offsets.Span(0, 9, 9, None), 12, (None, None, consumer_groups.BEYOND)),
        (offsets.Span(0, 9, 9, None), 9, (0, 0.0, "")),
    ],
)
def test_lag_is_defined_at_the_ends_of_the_log(
    span: offsets.Span, current: int, lag: tuple[int | None, float | None, str]
) -> None:
    assert consumer_groups._lag(span, current, None, 0.0) == lag


def test_the_list_names_mirrors(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(1)
    for name in (group, "instep-contracts"):
        groups.commit(cluster, name, {(topic, 0): 0})
    listed = {one["group"]: one for one in reported(place, "groups", "list")["groups"]}
    assert listed[group] == {
        "group": group,
        "state": "Empty",
        "protocol": "classic",
        "mirrors_pipeline": False,
    }
    assert listed["instep-contracts"]["mirrors_pipeline"]
    assert (
        "mirror of pipeline contracts"
        in instep(place, "groups", "list", "instep-contract*", "--state", "empty").stdout
    )
    assert instep(place, "groups", "list", group, "--state", "Stable").stdout == ""
    reset = instep(place, "groups", "reset", "instep-contracts", "--topic", topic, "--to-earliest")
    assert "resetting it does not move the pipeline" in reset.stderr
    assert f"did you mean '{group}'" in refused(place, "groups", "describe", group[:-1])


def test_describe_needs_groups_or_all(
    place: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    for arguments in ([], [group, "--all"]):
        assert "which groups to describe" in refused_in_process(
            place, monkeypatch, "groups", "describe", *arguments
        )


def test_a_reset_is_planned_executed_and_read_back(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(2, retention_ms="-1")
    fill(cluster, topic, 10, 4, timestamp_ms=1_790_000_000_000)
    groups.commit(cluster, group, {(topic, 0): 3})
    planned = instep(place, "groups", "reset", group, "--topic", topic, "--to-offset", "7")
    assert [line.split(maxsplit=4) for line in planned.stdout.splitlines()] == [
        ["GROUP", "TOPIC", "PARTITION", "CURRENT", "NEW               DELTA"],
        [group, topic, "0", "3", "7                 +4"],
        [group, topic, "1", "none", "4 (requested: 7)"],
    ]
    assert groups.all_positions(cluster, group) == {(topic, 0): 3}
    for arguments, where in (
        (["--topic", topic, "--to-latest"], (10, 4)),
        (["--all-topics", "--shift-by", "-3"], (7, 1)),
        (["--topic", f"{topic}:0", "--to-earliest"], (0, 1)),
        (["--all-topics", "--to", "-1"], (9, 3)),
        (["--all-topics", "--to-datetime", "2026-09-21T14:13:20.002"], (2, 2)),
        (["--all-topics", "--by-duration", "PT1M"], (10, 4)),
    ):
        done = reported(place, "groups", "reset", group, *arguments, "--execute")
        assert done["executed"]
        assert tuple(groups.positions(cluster, group, topic).values()) == where, arguments


def test_an_exported_plan_equals_that_of_kafkas_own_tool_and_can_be_imported(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(2)
    fill(cluster, topic, 5, 2)
    groups.commit(cluster, group, {(topic, 0): 3, (topic, 1): 1})
    ours = instep(
        place, "groups", "reset", group, "--all-topics", "--shift-by", "1", "--export"
    ).stdout
    arguments = (
        "--reset-offsets",
        "--group",
        group,
        "--all-topics",
        "--shift-by",
        "1",
        "--export",
        "--dry-run",
    )
    theirs = tools.run(tools.GROUPS, cluster.bootstrap, *arguments)
    for plan in (ours, theirs):
        assert resets.parse_csv(plan, group, "plan") == {(topic, 0): 4, (topic, 1): 2}
    (place / "plan.csv").write_text(theirs, encoding="utf-8")
    assert (
        instep(place, "groups", "reset", group, "--from-file", "plan.csv", "--execute").returncode
        == 0
    )
    assert groups.positions(cluster, group, topic) == {0: 4, 1: 2}
    assert (
        instep(
            place,
            "groups",
            "reset",
            group,
            "--from-file",
            "-",
            "--execute",
            given=f"{group},{topic},0,1\n",
        ).returncode
        == 0
    )
    assert groups.positions(cluster, group, topic) == {0: 1, 1: 2}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no offsets"),
        ("\n\n", "has no offsets"),
        ("a,0,1\na,1\n", "line 2 has 2 fields"),
        ("a,0,x\n", "line 1 has no valid topic, partition and offset"),
        ("TOPIC,PARTITION,OFFSET\n", "line 1 has no valid topic"),
        ("a,0,-1\n", "line 1 has no valid topic"),
        (",0,1\n", "line 1 has no valid topic"),
        ("other,a,0,1\n", "line 1 names group 'other'"),
        ("a,0,1\na,0,2\n", "line 2 repeats a 0"),
        ("a,0," + "9" * 30, "line 1 has no valid topic"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(errors.SettingsError, match=says):
        resets.parse_csv(text, "mine", "plan.csv")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--all-topics"], "no destination is given"),
        (["--all-topics", "--to-earliest", "--to-latest"], "more than one destination"),
        (["--to-earliest"], "it is not clear what to reset"),
        (["--all-topics", "--to", "@yesterday-ish"], "'@yesterday-ish' is not a place in a log"),
        (["--all-topics", "--by-duration", "P1W"], "'P1W' is not a duration"),
        (["--all-topics", "--to-datetime", "noon"], "'noon' is not a time"),
        (["--from-file", "nowhere.csv"], "nowhere.csv cannot be read"),
        (["--all-topics", "--to-earliest"], "does not exist"),
        (["--topic", "nowhere", "--to-earliest"], "topic 'nowhere' does not exist"),
    ],
)
def test_an_impossible_reset_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, group: str, arguments: list[str], says: str
) -> None:
    assert says in refused_in_process(place, monkeypatch, "groups", "reset", group, *arguments)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400),
        ("1h", 3600),
        ("P1DT2H", 93_600),
        ("PT1H30M", 5400),
        ("PT2.5S", 2),
        ("P7D", 604_800),
    ],
)
def test_durations_are_parsed(text: str, seconds: int) -> None:
    assert places.parse_duration(text) == places.Ago(seconds)


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1", "h", "-1h", "1w", "P1W", "P99999999999D", "PT1H1D"]
)
def test_invalid_durations(text: str) -> None:
    with pytest.raises(errors.SettingsError, match="not a duration"):
        places.parse_duration(text)


def test_a_partition_that_is_refused_is_reported_beside_those_that_moved(
    cluster: connection.Cluster, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(1)
    moved = resets.execute(
        cluster, group, [resets.GroupMove(topic, 0, None, 0), resets.GroupMove(topic, 9, None, 0)]
    )
    assert (moved[0].now, moved[0].error) == (0, None)
    assert (moved[1].now, isinstance(moved[1].error, errors.TopicMissing)) == (None, True)


def test_each_group_that_is_deleted_is_reported(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str], group: str
) -> None:
    groups.commit(cluster, group, {(new_topic(1), 0): 0})
    planned = instep(place, "groups", "delete", group)
    assert "would be deleted with 1 offset" in planned.stderr
    assert planned.stderr.endswith(f"{output.DRY_RUN}\n")
    assert "was not confirmed" in refused(place, "groups", "delete", group, "--execute")
    assert consumer_groups.exists(cluster, group)
    confirmed = ("--execute", "--yes", "--json")
    done = instep(place, "groups", "delete", group, "nowhere", *confirmed)
    assert done.returncode == 2
    assert [
        (one["name"], one["done"], one["error"] is None)
        for one in json.loads(done.stdout)["results"]
    ] == [
        (group, "deleted", True),
        ("nowhere", None, False),
    ]
    assert not consumer_groups.exists(cluster, group)
