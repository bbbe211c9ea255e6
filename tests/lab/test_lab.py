"""Test the lab: interrupted, killed, resumed, on a user's cluster, with failing experiments."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import psutil
import pytest

from instep import errors, settings
from instep.kafka import connection, offsets, topics
from instep.kafka.admin import consumer_groups
from instep.local import broker, processes
from instep.local.broker import LocalCluster
from instep_lab import claims, lab, members, store
from instep_lab.claim import Claim, ClaimTexts, Tier
from instep_lab.clients import kafka_python
from instep_lab.clients.consuming import Consuming
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import Publishing
from instep_lab.cluster_pool import ClusterPool
from instep_lab.history import ClientOperation, OperationKind, OperationStatus
from instep_lab.trial import Trial
from instep_lab.verdict import ClaimVerdict
from tests.support import commands
from tests.support.waiting import wait_until


def claim(id_: str, experiment: object, *, brokers: int = 0, harmless: bool = True) -> Claim:
    texts = ClaimTexts(statement="statement", method="method", advice="advice")
    return Claim(id_, texts, brokers, harmless, None, experiment)  # type: ignore[arg-type]


def settled(trial: Trial) -> None:
    trial.statement("it is so", True, "seen")


def broken(trial: Trial) -> None:
    trial.statement("it is so", True, "seen")
    raise ZeroDivisionError("of the experiment's own") from KeyError("another")


def test_an_experiment_that_fails_is_inconclusive_and_the_others_continue(tmp_path: Path) -> None:
    known = {one.id: one for one in (claim("a-1", broken), claim("a-2", settled))}
    run = lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path)
    results = lab.Lab(run, known, say=lambda _: None).run()
    assert [one.verdict for one in results.values()] == [
        ClaimVerdict.INCONCLUSIVE,
        ClaimVerdict.RIGHT,
    ]
    described = "ZeroDivisionError: of the experiment's own, caused by KeyError: 'another'"
    assert described in results["a-1"].judgement.because


def test_a_run_continues_with_the_interrupted_claim(tmp_path: Path) -> None:
    tested: list[str] = []

    def interrupted(trial: Trial) -> None:
        tested.append(trial.claim)
        if tested.count("a-2") == 1 and trial.claim == "a-2":
            raise SystemExit(130)
        settled(trial)

    known = {id_: claim(id_, interrupted) for id_ in ("a-1", "a-2", "a-3")}
    run = lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path)
    with pytest.raises(SystemExit):
        lab.Lab(run, known, say=lambda _: None).run()
    halfway = store.read_results(run)
    assert [(id_, one.verdict, one.ended) for id_, one in halfway.items()] == [
        ("a-1", ClaimVerdict.RIGHT, True),
        ("a-2", ClaimVerdict.INCONCLUSIVE, False),
    ]
    results = lab.Lab(run, known, say=lambda _: None).run()
    assert tested == ["a-1", "a-2", "a-2", "a-3"]
    assert {one.verdict for one in results.values()} == {ClaimVerdict.RIGHT}


def test_an_interruption_that_becomes_another_error_is_not_a_result(tmp_path: Path) -> None:
    """Let the experiment do what a client's C code does with the exception of a signal."""

    def interrupted(trial: Trial) -> None:
        settled(trial)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except SystemExit:
            raise TypeError("expected header key to be unicode string") from None

    def exit_on_signal(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    known = {"a-1": claim("a-1", interrupted), "a-2": claim("a-2", settled)}
    run = lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path)
    before = signal.signal(signal.SIGTERM, exit_on_signal)
    try:
        with pytest.raises(SystemExit) as raised:
            lab.Lab(run, known, say=lambda _: None).run()
        assert signal.getsignal(signal.SIGTERM) is exit_on_signal
    finally:
        signal.signal(signal.SIGTERM, before)
    assert raised.value.code == 128 + signal.SIGTERM
    assert [(id_, one.ended) for id_, one in store.read_results(run).items()] == [("a-1", False)]


def test_a_resumed_claim_has_the_commit_that_it_ran_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {id_: claim(id_, settled) for id_ in ("a-1", "a-2")}
    monkeypatch.setattr(lab, "_commit", lambda: "first")
    run = lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path)
    lab.Lab(run, known, say=lambda _: None).run()
    shutil.rmtree(run / "a-2")
    monkeypatch.setattr(lab, "_commit", lambda: "second")
    results = lab.Lab(run, known, say=lambda _: None).run()
    assert store.read_run(run).commit == "first"
    assert [one.commit for one in results.values()] == ["first", "second"]


def test_a_run_names_the_releases_of_clients_and_servers(tmp_path: Path) -> None:
    known = {"a-1": claim("a-1", settled)}
    run = lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path)
    found = store.read_run(run).releases
    for name in ("kafka", "kafka-clients (Java)", "librdkafka", "kafka-python", "activemq"):
        assert found[name][0].isdigit(), name


def test_two_runs_of_one_second_have_two_folders(tmp_path: Path) -> None:
    known = {"a-1": claim("a-1", settled)}
    folders = {lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path) for _ in range(3)}
    assert len(folders) == 3


def test_resuming_a_run_with_an_unknown_claim_is_an_error(tmp_path: Path) -> None:
    known = {"a-1": claim("a-1", settled)}
    run = lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path)
    with pytest.raises(errors.SettingsError, match="unknown claim 'a-1'"):
        lab.Lab(run, {}, say=lambda _: None).run()


@pytest.mark.parametrize("lacking", ["disk", "memory"])
def test_too_little_disk_or_memory_is_reported_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    known = {"a-1": claim("a-1", settled, brokers=3)}
    run = lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path)
    if lacking == "disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    else:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1_000_000))
    with pytest.raises(errors.InstepError, match=r"the lab needs \d"):
        lab.Lab(run, known, say=lambda _: None).run()
    assert store.read_results(run) == {}


def test_faults_are_injected_only_into_the_labs_own_brokers(
    broker: LocalCluster, tmp_path: Path
) -> None:
    def kills(trial: Trial) -> None:
        trial.kill(1)

    known = {"a-1": claim("a-1", kills, brokers=1)}
    run = lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path, cluster=broker.bootstrap)
    results = lab.Lab(
        run, known, given=(settings.Kafka(), broker.bootstrap), say=lambda _: None
    ).run()
    assert (
        "the lab injects faults only into brokers that it started"
        in results["a-1"].judgement.because
    )
    assert broker.alive


def test_destructive_claims_are_refused_on_a_users_cluster(tmp_path: Path) -> None:
    known = {"a-1": claim("a-1", settled, harmless=False), "a-2": claim("a-2", settled)}
    with pytest.raises(errors.SettingsError, match="a-1 cannot run on your cluster"):
        lab.prepare(known, ["a"], tier=Tier.QUICK, seed=1, into=tmp_path, cluster="b:9092")
    run = lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path, cluster="b:9092")
    assert store.read_run(run).claims == ["a-2"]


def test_too_few_brokers_is_inconclusive(broker: LocalCluster, tmp_path: Path) -> None:
    known = {"a-1": claim("a-1", settled, brokers=3)}
    run = lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path, cluster=broker.bootstrap)
    results = lab.Lab(
        run, known, given=(settings.Kafka(), broker.bootstrap), say=lambda _: None
    ).run()
    assert "a-1 needs 3 brokers; the cluster has 1" in results["a-1"].judgement.because


def test_nothing_is_left_on_a_users_cluster(broker: LocalCluster, tmp_path: Path) -> None:
    """Clean up also after a part of the run that was killed.

    What others created stays.
    """
    with connection.Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        before = set(topics.names(cluster))
        topics.create(cluster, "instep-lab-of-somebody", 1)

        def works(trial: Trial) -> None:
            topic, group = trial.topic(1), trial.group()
            case = trial.scenario("one")
            case.publish(Publishing(topic=topic, count=10))
            case.consume(Consuming(topic=topic, group=group, to_end=True))
            assert consumer_groups.exists(cluster, group)
            settled(trial)

        known = {"a-1": claim("a-1", works, brokers=1)}
        run = lab.prepare(
            known, [], tier=Tier.QUICK, seed=1, into=tmp_path, cluster=broker.bootstrap
        )
        left = "instep-lab-left-over"
        topics.create(cluster, left, 1)
        store.record_created(run, store.CreatedResource("topic", left))
        store.record_created(run, store.CreatedResource("topic", "instep-lab-never-made"))
        results = lab.Lab(
            run, known, given=(settings.Kafka(), broker.bootstrap), say=lambda _: None
        ).run()
        assert results["a-1"].verdict is ClaimVerdict.RIGHT, results["a-1"].judgement.because
        groups = [one.name for one in store.read_created(run) if one.kind == "group"]
        assert groups
        assert not any(consumer_groups.exists(cluster, name) for name in groups)
        after = {name for name in topics.names(cluster) if not name.startswith("__")}
        assert after == {name for name in before if not name.startswith("__")} | {
            "instep-lab-of-somebody"
        }
        topics.delete(cluster, "instep-lab-of-somebody")


def run_lab(home: Path, *arguments: str) -> subprocess.Popen[str]:
    (home / "state").mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "XDG_STATE_HOME": str(home / "state")}
    environment.pop("INSTEP_HOME", None)
    command = [sys.executable, "-m", "instep", "lab", "run", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def only_run(home: Path) -> Path:
    (found,) = store.runs(home / "state" / "instep" / "lab")
    return found


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL]
)
def test_an_interrupted_run_leaves_nothing_running_and_can_be_resumed(
    tmp_path: Path, number: signal.Signals
) -> None:
    # a second process tests order-2, on brokers of its own, while this one tests order-3
    process = run_lab(tmp_path, "order-2", "order-3", "--seed", "5")
    history = "order-2/history-1_groups.jsonl"
    wait_until(
        lambda: any((tmp_path / "state").glob(f"instep/lab/*/{history}")), "the experiment to begin"
    )
    below = processes.descendants(process.pid)
    assert below, "the lab has started a broker"
    process.send_signal(number)
    _, messages = process.communicate(timeout=120)
    wait_until(lambda: not any(processes.alive(pid) for pid in below), "everything to be gone")
    run = only_run(tmp_path)
    begun = store.read_results(run)["order-2"]
    assert (begun.verdict, begun.ended) == (ClaimVerdict.INCONCLUSIVE, False)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert f"instep lab run --resume --run {run.name}" in messages
        again = run_lab(tmp_path, "--resume", "--run", run.name, "--json")
        out, messages = again.communicate(timeout=240)
        assert again.returncode == 0, messages
        verdicts = [one["judgement"]["verdict"] for one in json.loads(out)]
        assert verdicts == ["depends on the setting", "right"]


def test_an_unknown_tier_and_conflicting_options_are_refused(tmp_path: Path) -> None:
    for arguments, words in (
        (["--tier", "huge"], "unknown tier 'huge'"),
        (["--run", "x"], "--run names the run to resume"),
        (["--resume", "order-1"], "already has its claims"),
        (["--resume", "--seed", "3"], "already has its claims"),
        (["order-99"], "unknown claim 'order-99'"),
        (["--resume", "--run", "nope"], "no lab runs"),
        (["--seed", "-3"], "-3"),
    ):
        done = commands.run(
            ["lab", "run", *arguments],
            cwd=tmp_path,
            env={**os.environ, "INSTEP_HOME": str(tmp_path)},
        )
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert words in done.stderr


def test_every_claim_has_the_texts_that_a_reader_needs() -> None:
    for one in claims.ALL.values():
        texts = one.texts
        ends = [text[-1:] == "." for text in (texts.statement, texts.method, texts.advice)]
        assert ends == [False, True, True], one.id
        assert one.brokers in (0, 1, 3), one.id


def test_a_cluster_is_started_once(pool: ClusterPool) -> None:
    assert pool.of(1) is pool.of(1)
    assert pool.of(0) is None


@pytest.mark.parametrize("short_lived", [True, False])
def test_a_short_lived_broker_has_no_optimising_compiler(*, short_lived: bool) -> None:
    node = broker.Broker(short_lived=short_lived)
    assert (broker.SHORT_LIVED in node.command()) is short_lived
    node.close()


def test_the_brokers_of_the_tests_are_short_lived(pool: ClusterPool) -> None:
    cluster = pool.of(1)
    assert cluster is not None
    assert broker.SHORT_LIVED in cluster.node(1).command()


def test_a_publisher_keeps_its_rate_while_delivery_reports_arrive(
    pool: ClusterPool, tmp_path: Path
) -> None:
    trial = Trial("a-1", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))
    case = trial.scenario("paced")
    case.publish(
        Publishing(
            topic=trial.topic(1), count=61, per_s=200, warm=True, config={"batch.num.messages": 1}
        )
    )
    begun = sorted(one.at_ns - one.took_ns for one in case.history())
    assert (begun[-1] - begun[1]) / 1e9 > 59 / 200 - 0.05
    trial.close()


def test_the_end_of_a_log_is_known_only_if_every_send_was_acknowledged(
    pool: ClusterPool, tmp_path: Path
) -> None:
    trial = Trial("a-1", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))
    case, topic = trial.scenario("known"), trial.topic(2)
    assert not case._has_all(topic, 2)
    case.publish(Publishing(topic=topic, count=10))
    assert case._has_all(topic, 2)
    case.note(ClientOperation(kind=OperationKind.SEND, outcome=OperationStatus.UNKNOWN))
    assert not case._has_all(topic, 2)
    trial.close()


def test_a_new_topic_is_used_only_when_its_leaders_serve_it(
    pool: ClusterPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KAFKA-15591: a batch that came too early would be rejected until delivery.timeout.ms."""
    trial = Trial("a-1", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))
    latest, asked = offsets.latest, list[str]()

    def refused_twice(cluster: connection.Cluster, topic: str, *rest: Any, **more: Any) -> Any:
        asked.append(topic)
        if len(asked) <= 2:
            raise errors.InstepError("NOT_LEADER_OR_FOLLOWER")
        return latest(cluster, topic, *rest, **more)

    monkeypatch.setattr(offsets, "latest", refused_twice)
    assert asked == 3 * [trial.topic(2)]
    trial.close()


@pytest.mark.parametrize(("disk_lost", "idempotent"), [(True, True), (True, False), (False, True)])
def test_an_acknowledgement_without_offset_is_a_fault_unless_a_disk_was_lost(
    pool: ClusterPool, tmp_path: Path, *, disk_lost: bool, idempotent: bool
) -> None:
    trial = Trial("a-1", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))
    case = trial.scenario("acknowledged")
    case.disk_lost = disk_lost
    config = {"enable.idempotence": idempotent}
    case.publish(Publishing(topic=trial.topic(), count=1, config=config))
    case.note(ClientOperation(kind=OperationKind.SEND, member="publisher", key="k9", number=0))
    faults = case.check().faults
    if disk_lost and idempotent:
        assert faults == []
    else:
        assert faults == ["k9#0 was acknowledged without an offset"]
    trial.close()


def test_a_member_of_kafka_python_gets_partitions_that_are_added(
    pool: ClusterPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without help, the client forgets its join when a poll ends at the wrong moment."""
    monkeypatch.setattr(kafka_python, "POLL_S", 0.005)  # so that a poll does end there
    trial = Trial("a-1", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))
    case, topic = trial.scenario("grows"), trial.topic(2)
    plan = Consuming(
        topic=topic,
        group=trial.group(),
        library=Library.KAFKA_PYTHON,
        config={"metadata_max_age_ms": 100},
    )
    with case.background(plan) as (progress, _):
        trial.wait(lambda: len(progress.held) == 2, "the first partitions")
        topics.grow(trial.cluster.kafka, topic, 4)
        trial.wait(lambda: len(progress.held) == 4, "all partitions")
    trial.close()


def test_a_member_that_ended_by_itself_is_reported_at_once(
    pool: ClusterPool, tmp_path: Path
) -> None:
    trial = Trial("a-1", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))
    broken_config = {"session.timeout.ms": "never"}
    team = members.Team(
        trial, trial.scenario("team"), trial.topic(1), members.RANGE, config=broken_config
    )
    team.add_killable()
    with pytest.raises(errors.InstepError, match="a member of range ended with 1:"):
        members.settle(trial, [team], 1)
    trial.close()


def test_scenarios_run_and_read_at_the_same_time(pool: ClusterPool, tmp_path: Path) -> None:
    trial = Trial("a-1", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))
    cases, topic = [trial.scenario("first"), trial.scenario("second")], trial.topic(1)
    endless = Publishing(topic=topic, count=1_000_000, per_s=200)
    with trial.running(dict.fromkeys(cases, endless)):
        trial.wait_for_more(cases, 5)
    trial.read_topics(dict.fromkeys(cases, topic))
    written = sum(case.acknowledged for case in cases)
    for case in cases:
        reads = [one for one in case.history() if one.kind is OperationKind.READ]
        assert len(reads) == written
    trial.close()


def test_an_interruption_does_not_wait_for_a_frozen_broker(
    pool: ClusterPool, tmp_path: Path
) -> None:
    cluster = pool.of(1)
    assert cluster is not None
    trial = Trial("a-1", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=cluster)
    case, topic = trial.scenario("frozen"), trial.topic(1)

    def interrupt() -> None:
        with case.background(
            Publishing(topic=topic, count=1_000_000, per_s=100, flush_timeout_s=3_600)
        ):
            trial.wait_for_more([case], 1)
            trial.freeze(1)
            raise SystemExit(130)

    try:
        # if we waited for it, the publisher would be a separate error
        with pytest.raises(SystemExit):
            interrupt()
    finally:
        trial.abandon()
        cluster.recover()
