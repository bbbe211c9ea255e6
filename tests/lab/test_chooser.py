"""Test the chooser: clients accept every choice, each line has a claim, the page shows it all."""

from __future__ import annotations

import re
from pathlib import Path

import confluent_kafka
import pytest

from instep import errors
from instep.kafka import configs, topics
from instep_lab import chooser, claims
from instep_lab.chooser import (
    Absence,
    ChooserAnswers,
    ClientKind,
    LossAllowed,
    Ordering,
    RepeatsAllowed,
    SettingPart,
)
from instep_lab.clients import java_client
from instep_lab.cluster_pool import ClusterPool

DOCS = Path(__file__).parents[2] / "docs" / "lab"
PAGE = DOCS / "choose-kafka-settings.md"
ALL = list(chooser.combinations())
NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


def answers(
    loss: LossAllowed = LossAllowed.NO,
    repeats: RepeatsAllowed = RepeatsAllowed.YES,
    order: Ordering = Ordering.NONE,
    client: ClientKind = ClientKind.JAVA,
) -> ChooserAnswers:
    return ChooserAnswers(loss, repeats, order, Absence.HOURS, client)


def test_every_combination_is_covered() -> None:
    assert len(set(ALL)) == 2 * 2 * 3 * 3 * 2


def test_librdkafka_accepts_every_choice() -> None:
    """Construct each kind of client once, without a broker."""
    distinct = {
        (part, tuple(chooser.choose(one).of(part).items()))
        for one in ALL
        if one.client is ClientKind.LIBRDKAFKA
        for part in (SettingPart.PRODUCER, SettingPart.CONSUMER)
    }
    assert len(distinct) > 4
    for part, settings in distinct:
        if part is SettingPart.PRODUCER:
            confluent_kafka.Producer({**NOWHERE, **dict(settings)})
        else:
            confluent_kafka.Consumer({**NOWHERE, "group.id": "g", **dict(settings)}).close()


def test_the_java_producer_accepts_every_choice() -> None:
    distinct = {
        tuple(chooser.choose(one).of(SettingPart.PRODUCER).items())
        for one in ALL
        if one.client is ClientKind.JAVA
    }
    assert len(distinct) == 2
    for settings in distinct:
        assert java_client.rejection(dict(settings)) is None  # test_java_client.py has a refusal


def test_a_cluster_accepts_the_settings_of_topics_and_brokers(pool: ClusterPool) -> None:
    cluster = pool.of(1)
    assert cluster is not None
    known = configs.of_brokers(cluster.kafka, [1])[1]
    chosen = [chooser.choose(one) for one in ALL]
    assert {name for one in chosen for name in one.of(SettingPart.BROKER)} <= known.keys()
    distinct = {
        tuple(
            (name, value)
            for name, value in one.of(SettingPart.TOPIC).items()
            if name not in (chooser.PARTITIONS, chooser.REPLICAS)
        )
        for one in chosen
    }
    for number, settings in enumerate(sorted(distinct)):
        topics.create(cluster.kafka, f"chosen-{number}", 1, 1, dict(settings))


@pytest.mark.parametrize("client", ClientKind)
def test_every_line_names_claims_that_exist(client: ClientKind) -> None:
    for one in (one for one in ALL if one.client is client):
        choice = chooser.choose(one)
        for shown in [line.claims for line in choice.settings] + [
            rule.claims for rule in choice.program
        ]:
            assert shown
            assert set(shown) <= claims.ALL.keys()


def test_a_setting_is_chosen_once() -> None:
    for one in ALL:
        names = [(line.part, line.name) for line in chooser.choose(one).settings]
        assert len(set(names)) == len(names)


def test_no_loss_means_acknowledgements_of_two_replicas() -> None:
    for one in (one for one in ALL if one.loss is LossAllowed.NO):
        choice = chooser.choose(one)
        assert choice.of(SettingPart.PRODUCER)["acks"] == "all"
        assert choice.of(SettingPart.TOPIC)["min.insync.replicas"] == "2"
        assert choice.of(SettingPart.CONSUMER)["enable.auto.commit"] == "false"


def test_order_needs_an_idempotent_producer() -> None:
    for one in (one for one in ALL if one.order is not Ordering.NONE):
        assert chooser.choose(one).of(SettingPart.PRODUCER)["enable.idempotence"] == "true"


def test_results_in_kafka_need_a_transactional_id_and_records_are_deleted_only_by_age() -> None:
    for one in ALL:
        choice = chooser.choose(one)
        assert choice.of(SettingPart.TOPIC)["retention.bytes"] == "-1"
        assert one.exactly_once == any("`transactional.id`" in rule.text for rule in choice.program)


def test_what_must_not_repeat_is_read_committed() -> None:
    for one in ALL:
        level = chooser.choose(one).of(SettingPart.CONSUMER).get("isolation.level")
        assert level == ("read_committed" if one.repeats is RepeatsAllowed.NO else None)


def test_a_rule_about_threads_does_not_contradict_automatic_commit() -> None:
    for one in ALL:
        texts = " ".join(rule.text for rule in chooser.choose(one).program)
        is_automatic = "With automatic commit, do not close" in texts
        assert is_automatic == one.commits_what_was_polled
        assert not (is_automatic and "one thread per partition" in texts)


def test_the_page_says_which_client_a_rule_is_for() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "\n- Java: With automatic commit, do not close the consumer within a batch" in text
    assert "\n- librdkafka: Store the offset after the work" in text
    assert "\n- With automatic commit" not in text


def test_every_command_on_the_page_answers_all_questions() -> None:
    commands = re.findall(r"`(instep lab choose --[^`]+)`", PAGE.read_text(encoding="utf-8"))
    assert len(commands) == 2 * 2 * 3
    for command in commands:
        assert re.findall(r"--(\w+)", command) == [question.name for question in chooser.QUESTIONS]


def test_the_reset_is_an_error_where_neither_loss_nor_repeats_are_allowed() -> None:
    resets = {
        client: chooser.choose(answers(repeats=RepeatsAllowed.NO, client=client)).of(
            SettingPart.CONSUMER
        )
        for client in ClientKind
    }
    assert resets[ClientKind.JAVA]["auto.offset.reset"] == "none"
    assert resets[ClientKind.LIBRDKAFKA]["auto.offset.reset"] == "error"


def test_records_and_commits_are_kept_longer_than_a_consumer_may_be_away() -> None:
    away_days = {Absence.HOURS: 1, Absence.DAYS: 7, Absence.WEEKS: 28}
    for one in ALL:
        choice = chooser.choose(one)
        days = away_days[one.away]
        assert int(choice.of(SettingPart.TOPIC)["retention.ms"]) > days * chooser.DAY_MS
        kept = int(choice.of(SettingPart.BROKER)["offsets.retention.minutes"])
        assert kept > days * chooser.DAY_MINUTES


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        (answers(LossAllowed.SOME, RepeatsAllowed.NO), "You allow loss, but no repeats"),
        (answers(LossAllowed.SOME, order=Ordering.KEY), "You allow loss, but want order"),
        (answers(order=Ordering.ALL), "one reader per group"),
        (answers(), None),
        (answers(LossAllowed.SOME), None),
    ],
)
def test_contradictory_answers_get_a_warning(given: ChooserAnswers, warning: str | None) -> None:
    warnings = chooser.choose(given).warnings
    if warning is None:
        assert warnings == ()
    else:
        assert any(warning in one for one in warnings)


def test_wrong_answers_are_refused() -> None:
    right = {"loss": "no", "repeats": "no", "order": "key", "away": "days", "client": "java"}
    assert chooser.parse(right).order is Ordering.KEY
    for question in chooser.QUESTIONS:
        with pytest.raises(errors.SettingsError, match="is not an answer"):
            chooser.parse({**right, question.name: "perhaps"})
        with pytest.raises(errors.SettingsError, match="There is no answer"):
            chooser.parse({name: word for name, word in right.items() if name != question.name})


def test_the_page_shows_every_choice() -> None:
    """Write it with: python -m instep_lab.chooser docs/lab/choose-kafka-settings.md."""
    text = PAGE.read_text(encoding="utf-8")
    assert text == chooser.write(text)
    assert text.count("<details>") == 2 * 2 * 3
    with pytest.raises(errors.InstepError, match="chooser: begin"):
        chooser.write("# Another page")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_every_claim_that_a_page_links_to_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    linked = set(re.findall(r"claims\.md#claim-([a-z]+-\d+)", text))
    assert linked <= claims.ALL.keys()


def test_the_guide_links_every_claim_that_it_names() -> None:
    text = re.sub(r"\[[a-z]+-\d+\]\([^)]*\)", "", PAGE.read_text(encoding="utf-8"))
    families = "|".join({claim.family for claim in claims.ALL.values()})
    assert re.findall(rf"\b(?:{families})-\d+\b", text) == []
