"""Test every queueing system on its real server: the same messages, and what survives a kill."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from instep import errors
from instep_lab import checkers
from instep_lab.claim import Tier
from instep_lab.claims import queue
from instep_lab.cluster_pool import ClusterPool
from instep_lab.queues import activemq, measuring
from instep_lab.queues.systems import KINDS, Servers
from instep_lab.trial import Trial
from instep_lab.verdict import ClaimVerdict, Judgement, judge
from tests.support.queue_servers import needs_rabbitmq

# its server takes seconds to start and to end
SLOW = ("activemq",)


def marks_of(name: str) -> Sequence[pytest.MarkDecorator]:
    if name in SLOW:
        return [pytest.mark.long]
    return [needs_rabbitmq] if name.startswith("rabbitmq") else []


WAYS = [
    pytest.param(kind.name, durable, marks=marks_of(kind.name), id=f"{kind.name}-{durable}")
    for kind in KINDS
    for durable in kind.durable
]
SHARING = [
    pytest.param(("kafka",), marks=pytest.mark.long),
    ("redis-list", "redis-stream"),
    pytest.param(("rabbitmq-classic", "rabbitmq-quorum"), marks=needs_rabbitmq),
    ("zeromq",),
    pytest.param(("activemq",), marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def servers(pool: ClusterPool) -> Iterator[Servers]:
    cluster = pool.of(1)
    assert cluster
    with Servers(cluster.node(1)) as shared:
        yield shared
    cluster.recover()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer than the lab does, since a server on a busy machine may be slow to answer."""
    monkeypatch.setattr("instep_lab.queues.system.PATIENCE_S", 30.0)


@pytest.mark.parametrize(("name", "durable"), WAYS)
def test_messages_of_every_size_arrive_once_in_order_and_complete(
    servers: Servers, name: str, durable: bool
) -> None:
    with closing(servers.system(name, durable=durable).open(f"whole-{name}-{durable}")) as one:
        for size, count in ((100, 700), (1_000_000, 3)):  # more than one batch, and the largest
            sent = measuring.messages(count, size)
            one.enqueue(sent)
            assert one.dequeue(count) == sent


@pytest.mark.parametrize("names", SHARING)
def test_a_kill_loses_all_messages_that_are_not_durable_and_no_others(
    servers: Servers, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # lost messages never arrive, so do not wait long for them; nobody delivers those of ZeroMQ
    patience_s = 1.0 if names == ("zeromq",) else 5.0
    monkeypatch.setattr("instep_lab.queues.system.PATIENCE_S", patience_s)
    ways = [
        servers.system(kind.name, durable=durable)
        for kind in KINDS
        if kind.name in names
        for durable in kind.durable
    ]
    for found in measuring.losses(ways, 1_000, 50):
        assert not found.repeated
        if found.durable:
            assert found.lost.count == 0
        elif found.system != "kafka":  # what acks=0 loses depends on timing
            assert found.lost.count == 50


def test_a_zeromq_sender_that_stays_alive_delivers_everything(servers: Servers) -> None:
    [found] = measuring.losses([servers.system("zeromq", durable=False)], 1_000, 50, killed=False)
    assert not found.lost


@pytest.mark.parametrize(("name", "durable"), [way for way in WAYS if way.values[1]])
def test_acknowledged_messages_are_not_delivered_again(
    servers: Servers, name: str, durable: bool
) -> None:
    system = servers.system(name, durable=durable)
    sent = measuring.messages(5, 100)
    with closing(system.open(f"again-{name}")) as one:
        one.enqueue(sent)
        assert one.dequeue(2) == sent[:2]
    with closing(system.open(f"again-{name}")) as one:
        assert one.dequeue(3) == sent[2:]


def test_the_systems_are_measured_in_turn_and_summarised(servers: Servers) -> None:
    ways = [servers.system(name, durable=False) for name in ("redis-list", "zeromq")]
    speeds = measuring.compare(ways, {100: 50, 1_000: 20}, repetitions=3, seconds=0.0, seed=1)
    assert [one.system for one in speeds if one.size == 100] != ["redis-list", "zeromq"] * 3
    cells = measuring.summarise(speeds)
    assert {(one.system, one.size, one.count, one.repetitions) for one in cells} == {
        (name, size, count, 3)
        for name in ("redis-list", "zeromq")
        for size, count in ((100, 50), (1_000, 20))
    }
    for cell in cells:
        assert cell.lost == cell.repeated == 0
        assert cell.enqueue.lowest <= cell.enqueue.median <= cell.enqueue.highest
        assert cell.through.median < min(cell.enqueue.highest, cell.dequeue.highest)


def test_the_number_of_messages_follows_from_the_time_wanted() -> None:
    none = checkers.Anomalies("lost", 0, 0)
    first = measuring.Speed("any", True, 1_000, 100, 0.001, 0.001, none, none)
    assert measuring.enough_for(first, 0.1) == 5_000
    assert measuring.enough_for(first, 0.0001) == 100
    assert measuring.enough_for(first, 1_000) == measuring.LARGEST_BYTES // 1_000


@pytest.mark.parametrize(("name", "durable"), WAYS)
def test_every_system_tells_the_releases_of_its_server_and_its_client(
    servers: Servers, name: str, durable: bool
) -> None:
    with closing(servers.system(name, durable=durable).open(f"release-{name}-{durable}")) as one:
        assert re.fullmatch(r"\S+ [\d.]+, \S+ [\d.]+( \(librdkafka [\d.]+\))?", one.release())


def test_a_loss_a_repetition_and_a_modification_are_found() -> None:
    sent = measuring.messages(4, 100)
    assert [found.count for found in measuring.judge(sent, sent)] == [0, 0]
    assert [found.count for found in measuring.judge(sent, sent[1:])] == [1, 0]
    assert [found.count for found in measuring.judge(sent, [*sent, sent[2], sent[2]])] == [0, 2]
    assert [found.count for found in measuring.judge(sent, [*sent[:3], sent[3][:-1]])] == [1, 0]


def test_without_the_client_the_system_is_missing(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "instep_lab.queues.zeromq", raising=False)
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(
        errors.MissingPart, match=r"Python client of zeromq is not installed"
    ) as caught:
        servers.system("zeromq", durable=False)
    assert "'pika" in caught.value.remedy


@pytest.fixture
def _measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge made-up measurements as they are."""
    monkeypatch.setattr(queue, "ATTEMPTS_MAX", 0)


def settled(
    run: Path,
    claim: Callable[[Trial], None],
    seconds: Mapping[str, float],
    missing: Mapping[str, str],
    varied: float = 1.0,
) -> Judgement:
    """Judge a claim on made-up measurements.

    `seconds` has the time that a system took for the same messages, by name; the others took 4. The
    second round took `varied` times as long as the first.
    """
    none = checkers.Anomalies("lost", 0, 100)
    speeds = [
        measuring.Speed(kind.name, durable, size, 100, took, took, none, none)
        for times in (1.0, varied)
        for kind in KINDS
        for took in [seconds.get(kind.name, 4.0) * times]
        if kind.name not in missing
        for durable in kind.durable
        for size in measuring.COUNTS
    ]
    (run / queue.MEASURED_FILE).write_bytes(
        msgspec.json.encode(queue.QueueMeasurements(speeds, dict(missing)))
    )
    trial = Trial("queue", run=run, tier=Tier.QUICK, seed=1, cluster=None)
    claim(trial)
    trial.close()
    return judge(trial.parts)


@pytest.mark.usefixtures("_measured_once")
@pytest.mark.parametrize(
    ("redis", "rabbitmq", "first", "second"),
    [
        # three times as fast at every size, and never slow
        (1.0, 3.5, ClaimVerdict.DEPENDS_ON_SETTING, ClaimVerdict.RIGHT),
        # faster at every size, but not three times
        (1.0, 2.5, ClaimVerdict.DEPENDS_ON_SETTING, ClaimVerdict.DEPENDS_ON_SETTING),
        # faster, but the lead may be chance
        (1.0, 1.05, ClaimVerdict.INCONCLUSIVE, ClaimVerdict.WRONG),
        (1.0, 1.2, ClaimVerdict.INCONCLUSIVE, ClaimVerdict.INCONCLUSIVE),
        # nearly three times as fast
        (1.0, 2.9, ClaimVerdict.DEPENDS_ON_SETTING, ClaimVerdict.INCONCLUSIVE),
        (2.0, 1.9, ClaimVerdict.WRONG, ClaimVerdict.WRONG),
        (4.1, 2.0, ClaimVerdict.WRONG, ClaimVerdict.WRONG),  # slow at every size, but bearable
        (20.1, 2.0, ClaimVerdict.DEPENDS_ON_SETTING, ClaimVerdict.WRONG),  # less than a tenth
    ],
)
def test_the_claims_about_redis_and_rabbitmq_follow_the_measurement(
    tmp_path: Path, redis: float, rabbitmq: float, first: ClaimVerdict, second: ClaimVerdict
) -> None:
    seconds = {"redis-list": redis, "rabbitmq-classic": rabbitmq}
    assert settled(tmp_path, queue.redis_enqueue_rate, seconds, {}).verdict is first
    assert settled(tmp_path, queue.redis_dequeue_rate, seconds, {}).verdict is second


def test_measurements_on_a_busy_machine_are_inconclusive(tmp_path: Path) -> None:
    seconds = {"redis-list": 1.0, "rabbitmq-classic": 3.5}
    assert (
        settled(tmp_path, queue.redis_dequeue_rate, seconds, {}, varied=1.9).verdict
        is ClaimVerdict.RIGHT
    )
    found = settled(tmp_path, queue.redis_dequeue_rate, seconds, {}, varied=2.1)
    assert found.verdict is ClaimVerdict.INCONCLUSIVE
    assert "quiet enough" in found.because


@pytest.mark.parametrize(
    ("seconds", "undecided"),
    [
        # of RabbitMQ for as many messages as Redis takes one second for
        ({}, []),  # 2 at every size: faster, and far from three times
        ({1_000_000: 1.2}, [1_000_000]),  # a lead that may be chance
        ({1_000_000: 1.0}, []),
        (dict.fromkeys(measuring.COUNTS, 3.1), [100]),  # decides whether all are three times
        ({1_000: 3.1}, []),  # does not: other sizes are clearly below
    ],
)
def test_only_sizes_at_which_chance_may_decide_are_measured_again(
    seconds: Mapping[int, float], undecided: Sequence[int]
) -> None:
    none = checkers.Anomalies("lost", 0, 0)
    speeds = [
        measuring.Speed(name, durable, size, 100, 1.0, took, none, none)
        for size in measuring.COUNTS
        for durable in queue.MODES
        for name, took in ((queue.LIST, 1.0), (queue.CLASSIC, seconds.get(size, 2.0)))
    ]
    assert queue._undecided_dequeue(queue.QueueMeasurements(speeds, {}).cells) == undecided


@pytest.mark.usefixtures("_measured_once")
@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        (4.0, ClaimVerdict.RIGHT),
        # near the bound of 1.25 on either side
        (1.3, ClaimVerdict.INCONCLUSIVE),
        (1.2, ClaimVerdict.INCONCLUSIVE),
        (1.0, ClaimVerdict.WRONG),
    ],
)
def test_kafka_handles_more_messages_than_activemq_only_with_a_clear_lead(
    tmp_path: Path, seconds: float, verdict: ClaimVerdict
) -> None:
    took = {"kafka": 1.0, "activemq": seconds}
    assert settled(tmp_path, queue.activemq_rate, took, {}).verdict is verdict


def test_without_activemq_the_claim_about_it_is_inconclusive(tmp_path: Path) -> None:
    found = settled(tmp_path, queue.activemq_rate, {}, {"activemq": "no network; connect it"})
    assert found.verdict is ClaimVerdict.INCONCLUSIVE
    assert "no network; connect it" in found.because


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_frames_of_stomp_are_found_however_they_are_cut(step: int) -> None:
    body = b"a\0b\n\n\nc"
    sent = (
        b"\n"
        + activemq.frame("RECEIPT", {"receipt-id": "1"})
        + b"\n"
        + activemq.frame("MESSAGE", {"ack": "2", "content-length": str(len(body))}, body)
        + b"\n\n"
        + activemq.frame("ERROR", {"message": "no"}, b"because")
    )
    parser = activemq.FrameParser()
    found = [
        one
        for start in range(0, len(sent), step)
        for one in parser.feed(sent[start : start + step])
    ]
    assert found == [
        ("RECEIPT", {"receipt-id": "1"}, b""),
        ("MESSAGE", {"ack": "2", "content-length": str(len(body))}, body),
        ("ERROR", {"message": "no"}, b"because"),
    ]


@pytest.mark.long
def test_an_error_of_activemq_is_raised(servers: Servers) -> None:
    connected = servers.system("activemq", durable=False).open("refused")
    assert isinstance(connected, activemq.ActiveQueue)
    with closing(connected), pytest.raises(errors.Unreachable, match="ActiveMQ: "):
        connected._request("COMMIT", {"transaction": "unknown"})


@pytest.mark.parametrize(
    ("size", "seconds", "fastest"),
    [
        (100, 0.7, True),
        (100, 0.9, None),
        (100, 1.1, False),
        (1_000, 0.9, True),
        (1_000, 1.2, True),
        (1_000, 1.3, None),
        (1_000, 1.5, False),
    ],
)
def test_zeromq_is_the_fastest_only_with_a_clear_lead(
    size: int, seconds: float, fastest: bool | None
) -> None:
    none = checkers.Anomalies("lost", 0, 0)
    speeds = [
        measuring.Speed(name, False, size, 100, took, took, none, none)
        for name, took in ((queue.ZERO, seconds), ("kafka", 1.0), ("kafka", 5.0))
    ]
    cells = queue.QueueMeasurements(speeds, {}).cells
    found, evidence = queue._compare_fastest(cells, size)
    assert found is fastest
    assert evidence.endswith("times the best other, kafka, not durable")


def test_without_redis_the_claims_about_it_are_inconclusive(tmp_path: Path) -> None:
    for claim in (queue.redis_enqueue_rate, queue.redis_dequeue_rate):
        found = settled(tmp_path, claim, {}, {"redis-list": "no redis; install it"})
        assert found.verdict is ClaimVerdict.INCONCLUSIVE
        assert "no redis; install it" in found.because


def test_a_missing_server_makes_its_claims_inconclusive_and_reports_the_others(
    pool: ClusterPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = shutil.which
    absent = ("rabbitmq-server", "epmd")
    monkeypatch.setattr(
        shutil, "which", lambda name, path=None: None if name in absent else found(name, path=path)
    )
    monkeypatch.setattr(measuring, "COUNTS", {100: 3})
    monkeypatch.setattr(measuring, "LARGEST_BYTES", 0)
    kinds = [kind for kind in KINDS if kind.name not in SLOW]
    monkeypatch.setattr(queue, "KINDS", kinds)
    trial = Trial("queue-1", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))
    queue.redis_enqueue_rate(trial)
    trial.close()
    judgement = judge(trial.parts)
    assert judgement.verdict is ClaimVerdict.INCONCLUSIVE
    assert "apt-get install rabbitmq-server" in judgement.because
    systems_table, rates_table = trial.tables
    described = {row[0]: str(row[1]) for row in systems_table.rows}
    assert described["zeromq"].startswith("libzmq ")
    assert "apt-get install rabbitmq-server" in described["rabbitmq-classic"]
    rows = {(row[0], row[1]): row[2:] for row in rates_table.rows}
    assert all(rows["redis-list", "durable"])
    assert [name for name, _ in rows if str(name).startswith("rabbitmq")] == [
        "rabbitmq-classic",
        "rabbitmq-quorum",
    ]
    assert {one.name for one in trial.plots[0].series} == {
        kind.name for kind in kinds if True in kind.durable and not kind.name.startswith("rabbitmq")
    }
