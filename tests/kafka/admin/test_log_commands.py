"""Test `instep offsets` and `instep peek` as users run them, and against Kafka's own tool."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from instep import errors
from instep.document import partition
from instep.kafka import connection, groups, places
from instep.kafka.admin import consumer_groups, filters, rendering, tail
from instep.local.broker import LocalCluster
from tests.support import kafka_tools as tools
from tests.support.cli import instep, refused, refused_in_process, reported
from tests.support.open_transaction import wait_until_ended
from tests.support.producing import IN_ORDER, fill
from tests.support.waiting import wait_until

AT_MS = 1_790_000_000_000


@pytest.fixture
def place(tmp_path: Path, broker: LocalCluster) -> Path:
    (tmp_path / "instep.toml").write_text(
        f'[kafka]\nbootstrap = "{broker.bootstrap}"\n', encoding="utf-8"
    )
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "instep", *arguments]


def send(cluster: connection.Cluster, topic: str, *records: dict[str, Any]) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "partitioner": "murmur2", **IN_ORDER}
    )
    for number, record in enumerate(records):
        producer.produce(topic, **{"timestamp": AT_MS + number, **record})
    assert producer.flush(30) == 0


def tail_record(**given: Any) -> tail.TailRecord:
    return tail.TailRecord(
        **{
            "topic": "t",
            "partition": 1,
            "offset": 7,
            "timestamp_ms": AT_MS,
            "timestamp_kind": "create",
            "key": b"C-1",
            "value": b"{}",
            "headers": [],
            **given,
        }
    )


def test_offsets_equal_those_of_kafkas_own_tool(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3, retention_ms="-1")
    fill(cluster, topic, 5, 0, 3, timestamp_ms=AT_MS)
    at = AT_MS + 2
    found = reported(place, "offsets", topic, "--at", f"@{at}")["partitions"]

    def theirs(when: str) -> dict[int, int]:
        lines = tools.run(
            tools.OFFSETS, cluster.bootstrap, "--topic", topic, "--time", when
        ).split()
        return {
            int(line.split(":")[1]): int(line.split(":")[2]) for line in lines if line.split(":")[2]
        }

    assert {one["partition"]: one["end"] for one in found} == theirs("latest")
    timed = theirs(str(at))
    # where no record is that late, Kafka's tool prints nothing, and we print the end
    assert {one["partition"]: one["at"] for one in found} == {0: 2, 1: 0, 2: 2}
    assert {number: offset for number, offset in timed.items() if offset >= 0} == {0: 2, 2: 2}
    assert [(one["first"], one["records_estimated"], one["after"]) for one in found] == [
        (0, 5, 3),
        (0, 0, 0),
        (0, 3, 1),
    ]
    shown = instep(place, "offsets", topic, "-p", "0,2").stdout.splitlines()
    assert [line.split() for line in shown[1:]] == [
        [topic, "0", "0", "5", "5"],
        [topic, "2", "0", "3", "3"],
        [topic, "all", "8"],
    ]
    assert "has no partition 9" in refused(place, "offsets", topic, "-p", "9")
    assert "'x' is not a partition number" in refused(place, "offsets", topic, "-p", "x")
    assert "not a place in a log" in refused(place, "offsets", topic, "--at", "@yesterday-ish")
    assert "does not exist" in refused(place, "offsets", topic, f"{topic}x")


def test_topics_equal_those_of_kafkas_own_tool(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2, retention_ms="-1")
    printed = tools.run(tools.TOPICS, cluster.bootstrap, "--describe", "--topic", topic)
    (found,) = reported(place, "topics", "describe", topic)["topics"]
    head, *parts = (
        [tuple(field.split(": ", 1)) for field in line.strip().split("\t")]
        for line in printed.strip().splitlines()
    )
    theirs = dict(field for field in head if len(field) == 2)
    assert (theirs["TopicId"].strip(), int(theirs["PartitionCount"])) == (
        found["id"],
        len(found["partitions"]),
    )
    ours = [setting for setting in found["settings"] if setting["source"] == "topic"]
    assert "retention.ms=-1" in theirs["Configs"]
    assert [f"{setting['name']}={setting['value']}" for setting in ours] == ["retention.ms=-1"]
    for line, part in zip(parts, found["partitions"], strict=True):
        fields = {field[0].strip(): field[1].strip() for field in line if len(field) == 2}
        assert (int(fields["Partition"]), int(fields["Leader"])) == (
            part["partition"],
            part["leader"],
        )
        assert (fields["Replicas"], fields["Isr"]) == tuple(
            ",".join(map(str, part[key])) for key in ("replicas", "in_sync")
        )


def test_an_open_transaction_is_reported_and_hides_records(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    fill(cluster, topic, 2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(30) == 0
    (found,) = reported(place, "offsets", topic)["partitions"]
    assert (found["end"], found["committed_end"]) == (3, 2)
    assert "stop at 2" in found["note"]
    assert instep(place, "peek", topic, "-f", r"%s\n").stdout == "0\n1\n"
    assert instep(place, "peek", topic, "--uncommitted", "-f", r"%s\n").stdout == "0\n1\nopen\n"
    producer.abort_transaction(30)
    wait_until_ended(cluster, topic, [0])
    assert instep(place, "peek", topic, "-f", r"%s\n").stdout == "0\n1\n"


def test_records_are_shown_in_the_order_of_their_times(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3, retention_ms="-1")
    send(
        cluster,
        topic,
        *({"value": f"{number}".encode(), "partition": number % 3} for number in range(30)),
    )

    def values(*arguments: str) -> list[int]:
        return [
            int(value)
            for value in instep(place, "peek", topic, "-f", r"%v\n", *arguments).stdout.split()
        ]

    assert values() == list(range(20, 30))
    assert values("-n", "4") == [26, 27, 28, 29]
    assert values("-o", "-2") == list(range(24, 30))
    assert values("-o", "-5", "-n", "2") == [28, 29]
    assert values("-o", "start", "-n", "5") == [0, 1, 2, 3, 4]
    assert values("-o", "+1:+3", "-p", "2") == [5, 8]
    assert values("-o", f"@{AT_MS + 27}") == [27, 28, 29]
    assert values("-o", "2:4", "-p", "0,1") == [6, 7, 9, 10]
    assert values("-o", "end") == []


def test_newest_returns_the_requested_number_despite_markers(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.commit_transaction(30)
    wait_until_ended(cluster, topic, [0])
    assert [one.value for one in tail.newest(cluster, topic, 5)[1]] == [
        b"1",
        b"2",
        b"3",
        b"4",
        b"5",
    ]
    assert len(tail.newest(cluster, topic, 50)[1]) == 6
    assert tail.newest(cluster, new_topic(2), 5)[1] == []


def test_records_that_do_not_fit_in_memory_are_not_sorted(
    cluster: connection.Cluster, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(8):
        producer.produce(topic, b"%03d" % number, partition=number % 2)
    assert producer.flush(30) == 0
    monkeypatch.setattr(tail, "SORTED_BYTES_MAX", 3 * 6)
    assert len(tail.newest(cluster, topic, 3)[1]) == 3
    with pytest.raises(errors.SettingsError, match="larger than 0 MB"):
        tail.newest(cluster, topic, 4)
    all_of_it = places.PlaceRange(places.FromStart(), places.FromEnd())
    wanted = tail.resolve_range(cluster, topic, all_of_it)
    found = [one.value for one in tail.records(cluster, wanted, None, None)]
    assert set(found) == {b"%03d" % number for number in range(8)}


def test_only_the_partition_of_the_key_is_read(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(6, retention_ms="-1")
    send(
        cluster, topic, *({"key": f"C-{number % 5}", "value": f"{number}"} for number in range(50))
    )
    home = partition.partition_of(b"C-3", 6)
    done = instep(place, "peek", topic, "--key", "C-3", "-f", r"%p:%v\n")
    assert done.stdout.split() == [f"{home}:{number}" for number in range(3, 50, 5)]
    assert f"of {topic}, partition {home}\n" in done.stderr
    send(cluster, topic, {"key": "C-3", "value": "stray", "partition": (home + 1) % 6})
    assert "stray" not in instep(place, "peek", topic, "--key", "C-3").stdout
    assert "stray" in instep(place, "peek", topic, "--filter", "key=C-3").stdout
    assert "--filter key=nowhere" in instep(place, "peek", topic, "--key", "nowhere").stderr


def test_peeking_leaves_no_group_behind(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    fill(cluster, topic, 3)
    assert instep(place, "peek", topic).stdout.count("\n") == 4
    assert groups.all_positions(cluster, connection.READER_GROUP) == {}
    assert not consumer_groups.exists(cluster, connection.READER_GROUP)


def test_json_lines_have_kcats_keys(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1, retention_ms="-1")
    send(
        cluster,
        topic,
        {"key": "k", "value": "v\x1b[2J", "headers": [("a", b"1"), ("a", None)]},
        {"key": None, "value": b"\xff\x00"},
    )
    first, second = instep(place, "peek", topic, "-J").stdout.splitlines()
    assert json.loads(first) == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "tstype": "create",
        "ts": AT_MS,
        "headers": ["a", "1", "a", None],
        "key": "k",
        "payload": "v\x1b[2J",
    }
    assert "\x1b" not in first
    assert (json.loads(second)["key"], json.loads(second)["payload"]) == (None, {"base64": "/wA="})
    shown = instep(place, "peek", topic).stdout
    assert "\x1b" not in shown
    assert "2026-09-21T14:13:20.000Z" in shown


def test_following_continues_until_stopped(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    fill(cluster, topic, 2, 2)
    surroundings = {**os.environ, "PYTHONUNBUFFERED": "1"}
    arguments = command("peek", topic, "--follow", "-o", "start", "-f", r"%p:%o\n")
    process = subprocess.Popen(
        arguments,
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=surroundings,
    )
    assert process.stdout is not None
    assert sorted(process.stdout.readline() for _ in range(4)) == [
        "0:0\n",
        "0:1\n",
        "1:0\n",
        "1:1\n",
    ]
    fill(cluster, topic, 0, 1)
    assert process.stdout.readline() == "1:2\n"
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=90)
    assert (process.returncode, output) == (130, ("", ""))
    done = instep(place, "peek", topic, "--follow", "-o", "start", "-n", "3", "-f", r"%p:%o\n")
    assert (done.returncode, done.stdout.count("\n")) == (0, 3)


def test_a_closed_pipe_ends_peek_quietly(
    place: Path, cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(2_000):
        producer.produce(topic, b"x" * 1_000)
    assert producer.flush(30) == 0
    process = subprocess.Popen(
        command("peek", topic, "-o", "start", "-f", r"%s\n"),
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    wait_until(lambda: process.poll() is not None, "the end of peek")
    assert (process.returncode, process.stderr.read()) == (0, b"")
    process.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "@yesterday-ish"], "'@yesterday-ish' is not a range of places"),
        (["-o", "9:3"], "ends before it begins"),
        (["-p", "9"], "has no partition 9"),
        (["-f", "%z"], "the format contains '%z', which has no meaning"),
        (["-f", "%s", "-J"], "cannot be used together"),
        (["--filter", "status"], "'status' is not a condition"),
        (["--filter", "key~("], "is not a regular expression"),
    ],
)
def test_peek_explains_why_it_cannot_read(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_topic: Callable[..., str],
    arguments: list[str],
    says: str,
) -> None:
    assert says in refused_in_process(place, monkeypatch, "peek", new_topic(1), *arguments)


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        ("status=FAILED", True),
        ("status!=FAILED", False),
        ("status = FAILED", True),
        (".status~^FA", True),
        ("status!~^FA", False),
        ("version>9", True),
        ("version>=10", True),
        ("version<10", False),
        ("version=10", True),
        ("version=10.0", True),
        ("price>1.5", True),
        ("address.city=Bern", True),
        ("lines.1=b", True),
        ("lines.7=b", False),
        ("open=true", True),
        ("open=1", False),
        ("gone=null", True),
        ("nowhere=null", False),
        ("nowhere!=x", True),
        ("nowhere>1", False),
        ("nowhere!~x", True),
        ("key=C-1", True),
        ("@key~^C-", True),
        (".key=inner", True),
        ("header.ce_type=x=y", True),
        ("header.other=x", False),
        ("partition=1", True),
        ("offset<=7", True),
        ("timestamp>=2026-09-21T14:13:20", True),
        ("timestamp>2026-09-21T14:13:20", False),
        ("value~FAILED", True),
        ("at<2026-11-02", True),
    ],
)
def test_conditions_select_records(condition: str, met: bool) -> None:
    value = {
        "status": "FAILED",
        "version": 10,
        "price": 1.75,
        "address": {"city": "Bern"},
        "lines": ["a", "b"],
        "open": True,
        "gone": None,
        "key": "inner",
        "at": "2026-11-01T08:00:00Z",
    }
    record = tail_record(value=json.dumps(value).encode(), headers=[("ce_type", b"x=y")])
    assert filters.parse([condition])(record) is met
    assert filters.parse([condition, "status=other"])(record) is False


@pytest.mark.parametrize("value", [None, b"", b"no json", b"\xff", b"[" * 100_000, b"3", b'"text"'])
def test_a_value_that_is_not_an_object_has_no_fields(value: bytes | None) -> None:
    assert filters.parse(["status=x"])(tail_record(value=value)) is False
    assert filters.parse(["status!=x"])(tail_record(value=value)) is True


@pytest.mark.parametrize(
    ("text", "record", "rendered"),
    [
        (r"%t\t%p\t%o\n", tail_record(), b"t\t1\t7\n"),
        ("%s|%v|%S|%k|%K", tail_record(), b"{}|{}|2|C-1|3"),
        ("%s|%S|%k|%K|%R", tail_record(key=None, value=None), b"|-1||-1|\xff\xff\xff\xff"),
        (
            r"%T %h %%\x41\\",
            tail_record(headers=[("a", b"1"), ("b", None)]),
            rb"1790000000000 a=1,b= %A" + b"\\",
        ),
        ("%s", tail_record(value=b"\x1b[2J\xff"), b"\x1b[2J\xff"),
    ],
)
def test_formats_are_those_of_kcat(text: str, record: tail.TailRecord, rendered: bytes) -> None:
    assert rendering.parse(text, safe=False)(record) == rendered


def test_a_terminal_is_shown_no_escapes() -> None:
    assert (
        rendering.parse(r"%s\n", safe=True)(tail_record(value=b"\x1b[2J\xff"))
        == rb"\x1b[2J\xff" + b"\n"
    )


@pytest.mark.parametrize("text", ["%", "%z", "\\", r"\q", r"\x4"])
def test_an_unknown_format_letter_is_refused(text: str) -> None:
    with pytest.raises(errors.SettingsError, match="has no meaning"):
        rendering.parse(text, safe=False)
