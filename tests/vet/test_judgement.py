"""Test the whole verdict: one sentence on what can happen, what is accepted, what is unknown."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from instep import errors
from instep.vet import judgement, snapshot
from tests.vet import sound
from tests.vet.sound import (
    changed,
    with_cluster,
    with_pipeline,
    with_publisher,
    with_replicas,
    with_settings,
    with_topic,
)


def sentence(base: snapshot.Snapshot) -> str:
    (outcome,) = judgement.judge(base).outcomes
    return outcome.sentence


def test_a_sound_pipeline_loses_repeats_and_reorders_nothing() -> None:
    assert sentence(sound.snapshot()) == (
        "With these settings, nothing is lost or repeated or reordered when a publisher,"
        " a broker, the pipeline or the database"
        " dies; publishing continues with 1 broker down, and acknowledged records survive the"
        " loss of 1 broker."
    )


def test_the_sentence_names_what_is_lost_repeated_and_reordered() -> None:
    base = with_settings(sound.snapshot(), min_insync_replicas="1")
    base = with_publisher(base, "librdkafka", partitioner="murmur2")
    text = sentence(base)
    assert (
        "can be lost when the leader of a partition dies after the other replicas fell behind"
        " (TOPIC_MIN_INSYNC_REPLICAS_ONE)"
    ) in text
    assert (
        "may be repeated when the answer to a publisher's request is late and the request is"
        " sent again (PUBLISHER_NOT_IDEMPOTENT)"
    ) in text
    assert "may be reordered when a request fails" in text
    assert (
        "publishing continues with 2 brokers down, and acknowledged records may be on one disk only"
        in text
    )


@pytest.mark.parametrize(
    ("guarantee", "words"),
    [
        (
            "at-least-once",
            "can be repeated when the pipeline dies between the rows' commit and the position's",
        ),
        (
            "at-most-once",
            "can be lost when the pipeline dies between the position's commit and the rows'",
        ),
    ],
)
def test_a_weaker_guarantee_says_what_it_allows(guarantee: str, words: str) -> None:
    verdict = judgement.judge(with_pipeline(sound.snapshot(), guarantee=guarantee))
    assert words in verdict.outcomes[0].sentence
    assert verdict.errors == []


def test_an_accepted_finding_is_no_error_but_stays_in_the_sentence() -> None:
    base = changed(
        with_replicas(sound.snapshot(), 1), accepted={"TOPIC_SINGLE_REPLICA": "a laptop"}
    )
    base = with_settings(base, min_insync_replicas="1")
    verdict = judgement.judge(base)
    (found,) = [one for one in verdict.findings if one.rule == "TOPIC_SINGLE_REPLICA"]
    assert found.accepted == "a laptop"
    assert found not in verdict.errors
    assert "TOPIC_SINGLE_REPLICA" in verdict.outcomes[0].sentence
    assert not verdict.outcomes[0].kept


@pytest.mark.parametrize(
    ("accepted", "words"),
    [
        (
            {"TOPIC_SINGLE_REPLICAS": "x"},
            (
                "there is no rule 'TOPIC_SINGLE_REPLICAS' in [vet.accept];"
                " did you mean 'TOPIC_SINGLE_REPLICA'"
            ),
        ),
        ({"TOPIC_SINGLE_REPLICA": " "}, "vet.accept.TOPIC_SINGLE_REPLICA has no reason"),
    ],
)
def test_accepting_a_finding_needs_a_rule_and_a_reason(
    accepted: dict[str, str], words: str
) -> None:
    with pytest.raises(errors.SettingsError) as raised:
        judgement.judge(changed(sound.snapshot(), accepted=accepted))
    assert words in str(raised.value)


def test_unknown_never_counts_as_good() -> None:
    base = with_topic(sound.snapshot(), settings=None)
    base = changed(
        base, unknown={"settings of topic print-status": "user 'bob' lacks DESCRIBE_CONFIGS"}
    )
    verdict = judgement.judge(base)
    (unjudged,) = verdict.unjudged
    assert unjudged.why == "settings of topic print-status: user 'bob' lacks DESCRIBE_CONFIGS"
    assert {
        "TOPIC_MIN_INSYNC_REPLICAS_ONE",
        "TOPIC_UNCLEAN_ELECTION_ALLOWED",
        "TOPIC_RETENTION_SHORT",
    } <= set(unjudged.rules)
    assert verdict.outcomes[0].kept is None
    assert (
        "whether anything is lost or reordered could not be judged in full"
        in verdict.outcomes[0].sentence
    )


def test_publishers_are_not_judged_if_none_are_declared() -> None:
    (outcome,) = judgement.judge(changed(sound.snapshot(), publishers={})).outcomes
    assert outcome.kept is None
    assert (
        "nothing is lost or repeated or reordered when a broker, the pipeline or the database dies"
        in outcome.sentence
    )
    assert (
        "what publishers lose, repeat or reorder before the broker is not known" in outcome.sentence
    )


def test_without_acks_all_no_durability_is_claimed() -> None:
    assert "survive" not in sentence(with_publisher(sound.snapshot(), acks="1"))


def test_each_pipeline_is_judged_by_its_own_guarantee() -> None:
    base = with_replicas(sound.snapshot(), 1)
    mine = base.pipelines["contracts"]
    weaker = msgspec.structs.replace(mine, table="other", guarantee="at-most-once")
    databases = dict.fromkeys(("contracts", "weaker"), base.databases["contracts"])
    verdict = judgement.judge(
        changed(base, pipelines={"contracts": mine, "weaker": weaker}, databases=databases)
    )
    assert [outcome.kept for outcome in verdict.outcomes] == [False, True]


def test_a_topic_with_an_unknown_id_does_not_count_as_replaced() -> None:
    verdict = judgement.judge(with_topic(sound.snapshot(), id=""))
    assert verdict.findings == []
    assert {"PIPELINE_TOPIC_REPLACED", "PIPELINE_RECORDS_EXPIRED"} <= {
        rule for one in verdict.unjudged for rule in one.rules
    }


def test_a_finding_shared_by_two_pipelines_is_reported_once() -> None:
    base = with_cluster(sound.snapshot(), voters=[1])
    mine = base.pipelines["contracts"]
    other = msgspec.structs.replace(mine, table="other")
    base = changed(
        base,
        pipelines={"contracts": mine, "other": other},
        databases=dict.fromkeys(("contracts", "other"), base.databases["contracts"]),
    )
    (found,) = judgement.judge(base).findings
    assert found.pipelines == ["contracts", "other"]


def test_a_snapshot_survives_a_round_trip_through_a_file(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    snapshot.save(sound.snapshot(), file)
    assert snapshot.load(file) == sound.snapshot()
    for text in ("", "[]", '{"format": 1}', "\xff"):
        file.write_text(text, encoding="latin-1")
        with pytest.raises(errors.SettingsError, match="is not a snapshot"):
            snapshot.load(file)
    with pytest.raises(errors.SettingsError, match="cannot be read"):
        snapshot.load(file.with_name("none"))
    with pytest.raises(errors.SettingsError, match="has no pipeline 'x'"):
        snapshot.only(sound.snapshot(), ["x"], [], [])


def test_a_warning_does_not_contradict_a_guarantee_that_is_kept() -> None:
    (outcome,) = judgement.judge(
        with_settings(sound.snapshot(), retention_bytes="1000000")
    ).outcomes
    assert outcome.kept
    assert "can be lost" not in outcome.sentence
    assert (
        "nothing is repeated or reordered when a publisher, a broker,"
        " the pipeline or the database dies"
    ) in outcome.sentence
    assert (
        "The warnings are about further risks: events may be lost when more is published during"
        " an outage"
    ) in outcome.sentence


def test_the_most_urgent_finding_comes_first() -> None:
    base = with_settings(sound.snapshot(), min_insync_replicas="1", max_message_bytes="2000")
    base = with_topic(
        base, partitions=[sound.partition(0), sound.partition(1, leader=None, in_sync=[])]
    )
    verdict = judgement.judge(base)
    assert [one.rule for one in verdict.findings[:3]] == [
        "TOPIC_UNDER_MIN_INSYNC_REPLICAS",
        "TOPIC_WITHOUT_LEADER",
        "TOPIC_MIN_INSYNC_REPLICAS_ONE",
    ]
    counted = [
        sum(one.severity == word for one in verdict.findings)
        for word in ("error", "warning", "note")
    ]
    assert [verdict.summary.errors, verdict.summary.warnings, verdict.summary.notes] == counted
    assert verdict.summary.most_urgent == [one.rule for one in verdict.findings[:3]]


@pytest.mark.parametrize("nodes", [(1,), (1, 2), (1, 2, 3)])
@pytest.mark.parametrize("in_sync", ["1", "2", "3", "4"])
def test_all_replica_rules_recommend_the_same_change(nodes: tuple[int, ...], in_sync: str) -> None:
    base = with_settings(with_replicas(sound.snapshot(), *nodes), min_insync_replicas=in_sync)
    names = ("TOPIC_SINGLE_REPLICA", "TOPIC_TWO_REPLICAS", "TOPIC_MIN_INSYNC_REPLICAS")
    fixes = {one.fix for one in judgement.judge(base).findings if one.rule.startswith(names)}
    steps = ["instep topics replicate print-status -r 3 --execute"] if len(nodes) < 3 else []
    steps += (
        ["instep topics alter print-status -c min.insync.replicas=2 --execute"]
        if in_sync != "2"
        else []
    )
    assert fixes == ({"; then ".join(steps)} if steps else set())
