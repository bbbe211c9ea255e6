"""Test the claims about sending on real brokers; test_worker.py settles send-4."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from instep.kafka import offsets
from instep_lab import integrity
from instep_lab import trial as trials
from instep_lab.claim import Tier
from instep_lab.claims import producer, senders
from instep_lab.clients import bulk, defaults, key_hashes, publishing
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import DeliveryMode, KeyEncoding, Measuring, Variant
from instep_lab.cluster_pool import ClusterPool
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.trial import Trial
from instep_lab.verdict import ClaimVerdict, PartOutcome
from tests.lab.conftest import Settle


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        pytest.param("send-1", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
        pytest.param("send-2", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
        pytest.param("send-3", ClaimVerdict.DEPENDS_ON_RELEASE, marks=pytest.mark.long),
        pytest.param("send-5", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        pytest.param("send-6", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        pytest.param("send-7", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
        pytest.param("send-8", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        pytest.param("send-9", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        pytest.param("send-10", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
        pytest.param("send-11", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
        ("send-12", ClaimVerdict.DEPENDS_ON_CLIENT_AND_RELEASE),
        pytest.param("send-13", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
        pytest.param("send-14", ClaimVerdict.WRONG, marks=pytest.mark.long),
        pytest.param("send-15", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        pytest.param("send-16", ClaimVerdict.DEPENDS_ON_CLIENT, marks=pytest.mark.long),
        pytest.param("send-17", ClaimVerdict.OUTDATED, marks=pytest.mark.long),
        pytest.param("send-18", ClaimVerdict.WRONG, marks=pytest.mark.long),
        pytest.param("send-19", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: ClaimVerdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because


def test_one_pair_of_batches_is_paced_so_that_only_the_smaller_one_fills() -> None:
    linger_s = producer.LINGER_MS[-1] / 1_000
    waiting = producer.FILLING_PER_S * 100 * linger_s
    assert 2 * producer.MODEST < waiting < producer.LARGE / 2
    assert 1_000 * 100 * linger_s < producer.MODEST, "at the usual pace none of them fills"
    latency = [one for one in producer.COMPARISONS if one.measure is senders.latency]
    assert len({(one.low, one.high) for one in latency}) == len(latency) == 3


def test_defaults_are_read_from_the_output_of_the_java_classes() -> None:
    page = (
        '<h4><a id="acks"></a></h4><tr><th>Default:</th><td>all</td></tr><h4><a'
        ' id="linger.ms"></a></h4>no default'
    )
    assert defaults.parse(page) == {"acks": "all"}
    assert defaults.parse("nothing of the sort") == {}


def test_librdkafka_reports_only_settings_that_it_has() -> None:
    release, found = defaults.of_librdkafka(["acks", "linger.ms", "no.such.setting"])
    assert release.count(".") == 2
    assert found.keys() == {"acks", "linger.ms"}


def test_settings_that_were_set_are_read_back() -> None:
    probes = producer.PROBES
    for release, found in (
        defaults.of_librdkafka(list(probes), probes),
        defaults.of_kafka_python(probes),
    ):
        assert release.count(".") >= 1
        assert {name: found[name] for name in probes} == probes
    assert not probes.items() & defaults.of_librdkafka(list(probes))[1].items()
    assert not probes.items() & defaults.of_kafka_python()[1].items() - {
        ("enable.idempotence", "true")
    }


def test_the_partition_of_a_key_is_computed_by_the_hash_of_each_client() -> None:
    murmur2, crc32 = (key_hashes.PARTITION_OF[one] for one in key_hashes.PARTITION_OF)
    # as Java's client and librdkafka put them in 3 partitions: see group-5
    assert [murmur2(key, 3) for key in (b"1", b"2", b"3")] == [0, 2, 2]
    assert [crc32(key, 3) for key in (b"1", b"2", b"3")] == [2, 1, 1]
    sender = producer.NumericSender("librdkafka, default (CRC32)", KeyEncoding.DIGITS, 3)
    places = {f"k{number}": [crc32(str(number).encode(), 3)] for number in range(producer.KEYS)}
    assert sender.hashed_right(places) == producer.KEYS
    assert sender.hashed_right({**places, "k1": [0, 1]}) == producer.KEYS - 1


def test_the_time_to_connect_does_not_count(
    pool: ClusterPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting_s = 1.0

    class Slow(Producer):
        connected = False

        def flush(self, *args: Any) -> int:
            if not self.connected:
                time.sleep(connecting_s)
                self.connected = True
            return super().flush(*args)

    monkeypatch.setattr(bulk, "Producer", Slow)
    trial = Trial("probe", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))
    assert 0 < trial.fill(trial.topic(2), 100) < connecting_s
    trial.check_clients()
    assert [one.evidence for one in trial.parts] == ["100 sent, 100 in the log"]
    trial.close()


def test_the_client_reports_the_settings_that_it_refuses() -> None:
    assert publishing.rejection({"max.in.flight": 5}) is None
    assert "max.in.flight" in str(publishing.rejection({"max.in.flight": 6}))


def test_a_difference_is_clear_only_beyond_chance() -> None:
    assert senders.clearly_more(2.0, 1.0) is True
    assert senders.clearly_more(1.4, 1.0) is False
    assert senders.clearly_more(0.1, 1.0) is False
    assert senders.clearly_more(1.7, 1.0) is None
    assert senders.clearly_more(1.3, 1.0, 1.0, 1.25) is True


def in_log(number: int, offset: int, key: str = "k1") -> ClientOperation:
    return ClientOperation(
        kind=OperationKind.READ, group="reader", key=key, number=number, partition=0, offset=offset
    )


def sent(number: int, key: str = "k1") -> ClientOperation:
    return ClientOperation(kind=OperationKind.SEND, key=key, number=number)


MARKS = [{0: 2}, {0: 4}, {0: 8}]  # before the first fault, and before each of two cuts


def test_records_that_are_repeated_after_one_cut_count_once() -> None:
    log = [in_log(number, number) for number in range(4)]
    again = [in_log(2, 4), in_log(3, 5)]
    assert senders.cuts_with_repeats(log, MARKS) == 0
    assert senders.cuts_with_repeats([*log, *again], MARKS) == 1
    assert senders.cuts_with_repeats([*log, *again, in_log(3, 9)], MARKS) == 2
    before_any_cut = [in_log(0, 0), in_log(0, 1)]
    assert senders.cuts_with_repeats(before_any_cut, MARKS) == 0


def test_records_that_are_missing_after_one_cut_count_once() -> None:
    sends = [sent(number) for number in range(8)]
    complete = [in_log(number, number) for number in range(8)]
    assert senders.cuts_with_gaps([*sends, *complete], MARKS) == 0
    one_cut = [in_log(0, 0), in_log(1, 1), *(in_log(number, number) for number in range(4, 8))]
    assert senders.cuts_with_gaps([*sends, *one_cut], MARKS) == 1
    at_the_end = [in_log(number, number) for number in range(6)]
    assert senders.cuts_with_gaps([*sends, *at_the_end], MARKS) == 1
    both = [in_log(0, 0), in_log(4, 4), in_log(5, 5)]
    assert senders.cuts_with_gaps([*sends, *both], MARKS) == 2


def test_a_spread_is_even_if_no_partition_has_far_more_or_less_than_its_share() -> None:
    assert producer._evenly([2_400, 2_600, 3_000, 2_000])
    assert not producer._evenly([20, 0, 0, 0])
    assert not producer._evenly([9, 9, 1, 1])


@pytest.mark.parametrize(
    ("ends", "took_ms", "even"),
    [
        ([20, 0, 0, 0], 1.0, False),
        ([5, 5, 5, 5], 1.0, True),
        ([5, 5, 5, 5], 10.1, None),  # no burst: librdkafka has changed the partition meanwhile
        ([5, 5, 5, 4], 1.0, None),  # a record is missing
    ],
)
def test_a_burst_that_took_long_says_nothing(
    ends: list[int], took_ms: float, even: bool | None
) -> None:
    assert producer.are_even(producer.BURST, [producer.Spread(ends, took_ms)]) is even


@pytest.mark.parametrize(("stored", "outcome"), [(100, "PASS"), (99, "FAIL"), (101, "FAIL")])
def test_records_sent_at_full_speed_are_compared_with_the_log(
    pool: ClusterPool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stored: int,
    outcome: str,
) -> None:
    fill = bulk.fill

    def broken(connection: Any, topic: str, _count: int, *rest: Any) -> float:
        return fill(connection, topic, stored, *rest)

    monkeypatch.setattr(bulk, "fill", broken)
    monkeypatch.setattr(trials, "PATIENCE_S", 1.0)
    trial = Trial("probe", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))
    trial.fill(trial.topic(2), 100)
    trial.check_clients()
    [checked] = trial.parts
    assert (checked.evidence, checked.outcome) == (f"100 sent, {stored} in the log", outcome)
    trial.close()


@pytest.mark.parametrize("library", senders.CLIENTS)
def test_rates_are_measured_in_turns(pool: ClusterPool, tmp_path: Path, library: Library) -> None:
    trial = Trial("probe", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))
    variants = [
        Variant(name="callback", count=500, paced=20),
        Variant(name="wait", count=5, mode=DeliveryMode.WAIT),
        Variant(name="forget", count=500, mode=DeliveryMode.FORGET),
        Variant(name="paced", count=0, paced=20, paced_per_s=40),
    ]
    topic = trial.topic(1)
    plan = Measuring(topic=topic, variants=variants, rounds=2, library=library)
    began = time.monotonic()
    found = senders.measure(trial, plan, lambda _: [])
    assert time.monotonic() - began >= 2 * 19 / 40, "the records were not paced"
    assert {name: len(rounds) for name, rounds in found.items()} == {
        "callback": 2,
        "wait": 2,
        "forget": 2,
        "paced": 2,
    }
    assert not any(one.failed for rounds in found.values() for one in rounds)
    full_speed = [found[name] for name in ("callback", "wait", "forget")]
    assert all(one.per_s > 0 for rounds in full_speed for one in rounds)
    assert all((one.median_ms or 0) > 0 for one in found["paced"])
    assert all(0 < (one.median_ms or 0) <= (one.late_ms or 0) for one in found["callback"])
    # each producer also sends one record to connect, and a quarter in the round that warms up
    sent = 4 * 3 + (500 + 5 + 500) * 2 + (125 + 1 + 125) + (20 + 20) * 2
    assert plan.sends == sent
    trial.check_clients()
    [checked] = trial.parts
    assert (checked.statement, checked.outcome) == (integrity.LOG_CHECKED, PartOutcome.PASS)
    assert offsets.latest(trial.cluster.kafka, topic, [0]) == {0: sent}
    trial.close()
