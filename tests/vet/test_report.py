"""Test the verdict as people read it: a short summary, then blocks of one rule each."""

from __future__ import annotations

import msgspec

from instep.vet import judgement, report, rules
from instep.vet.snapshot import EffectiveSetting, PublisherFacts, Snapshot
from tests.vet import sound
from tests.vet.sound import (
    changed,
    with_cluster,
    with_pipeline,
    with_publisher,
    with_replicas,
    with_settings,
)

LAGGING = {"replica.lag.time.max.ms": EffectiveSetting("600000")}


def lines(base: Snapshot) -> list[str]:
    return report.text(judgement.judge(base)).splitlines()


def test_the_report_starts_with_a_summary_of_at_most_five_lines() -> None:
    base = with_settings(
        with_publisher(with_replicas(sound.snapshot(), 1), acks="1"),
        retention_ms="1",
        min_insync_replicas="1",
    )
    text = lines(base)
    assert text[0].startswith("3 errors, ")
    assert text[1] == "contracts does not keep exactly-once"
    assert text[2].startswith(
        "1. error PUBLISHER_ACKS_NOT_ALL, publisher print-system: The publisher does not wait"
    )
    assert [line[:3] for line in text[2:5]] == ["1. ", "2. ", "3. "]
    assert text[5] == ""
    assert text[6] == "ERROR     PUBLISHER_ACKS_NOT_ALL  publisher print-system"


def test_a_report_without_findings_has_three_lines() -> None:
    report = lines(sound.snapshot())
    assert report[:2] == [
        f"0 errors, 0 warnings, 0 notes ({len(rules.ALL)} rules)",
        "contracts keeps exactly-once",
    ]
    assert report[2] == ""
    assert report[3].startswith(
        "contracts keeps exactly-once. With these settings, nothing is lost"
    )
    assert len(report) == 4


def test_findings_of_one_rule_share_a_block_that_lists_their_places() -> None:
    publishers = {
        name: PublisherFacts(topic="print-status", client="java", config={"acks": "1"})
        for name in ("a", "b", "c")
    }
    report = lines(changed(sound.snapshot(), publishers=publishers))
    at = report.index("ERROR     PUBLISHER_ACKS_NOT_ALL  3 places")
    block = report[at : report.index("", at)]
    assert sum(line.lstrip().startswith("found:") for line in block) == 3
    assert sum(line.lstrip().startswith("fix:") for line in block) == 3
    assert block[2] == "          found:   publisher a: acks=1 (set)"
    assert report[2].startswith("1. error PUBLISHER_ACKS_NOT_ALL, publisher a and 2 more: ")


def test_a_fix_shared_by_all_findings_is_printed_once() -> None:
    brokers = [
        sound.broker(n, settings={**(sound.broker(n).settings or {}), **LAGGING}) for n in (1, 2, 3)
    ]
    report = lines(with_cluster(sound.snapshot(), brokers=brokers))
    at = report.index("WARNING   CLUSTER_REPLICA_LAG_TIMEOUT_LONG  3 places")
    block = report[at : report.index("", at)]
    assert [line for line in block if "fix:" in line] == [
        "          fix:     set replica.lag.time.max.ms=30000 in server.properties"
    ]


def test_several_pipelines_are_named() -> None:
    base = with_replicas(sound.snapshot(), 1)
    mine = base.pipelines["contracts"]
    base = changed(
        base,
        pipelines={"contracts": mine, "other": msgspec.structs.replace(mine, table="other")},
        databases=dict.fromkeys(("contracts", "other"), base.databases["contracts"]),
    )
    text = lines(base)
    assert text[1] == "contracts does not keep exactly-once; other does not keep exactly-once"
    assert "ERROR     TOPIC_SINGLE_REPLICA  topic print-status (contracts, other)" in text


def test_a_fix_for_the_settings_file_keeps_its_lines_and_nothing_else_does() -> None:
    report = lines(with_pipeline(sound.snapshot(), order=None))
    at = next(
        number
        for number, line in enumerate(report)
        if "fix:     [pipelines.contracts.event]" in line
    )
    assert report[at + 1] == '                   order = "version"'
    odd = changed(sound.snapshot(), accepted={"TOPIC_SINGLE_REPLICA": "a\x1b[31mlaptop\nERROR"})
    assert "accepted  TOPIC_SINGLE_REPLICA  topic print-status: a\\x1b[31mlaptop\\nERROR" in lines(
        with_replicas(odd, 1)
    )


def test_many_findings_stay_short() -> None:
    """Report thirty publishers with the same four mistakes in four blocks, not in 120."""
    wrong = {"acks": "1", "retries": "0", "linger.ms": "9000", "max.block.ms": "1"}
    publishers = {
        f"p{n}": PublisherFacts(topic="print-status", client="java", config=wrong)
        for n in range(30)
    }
    report = lines(changed(sound.snapshot(), publishers=publishers))
    assert sum(line.endswith("  30 places") for line in report) == 5
    assert len(report) < 125
    assert sum("and 22 more places: --json lists all" in line for line in report) == 5
