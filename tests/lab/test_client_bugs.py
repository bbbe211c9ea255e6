"""Test that a bug in the lab itself never becomes a statement about Kafka.

Each bug is run through real experiments: a claim must end as INCONCLUSIVE, and the reason must be
what is meant to notice that bug.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from instep_lab import integrity, power_cut
from instep_lab.claim import ClaimResult
from instep_lab.clients import process
from instep_lab.verdict import ClaimVerdict, PartOutcome, Role
from tests.lab.conftest import Settle
from tests.support import lab_bugs

ROOT = Path(__file__).parents[2]
BROKEN_OFF = "the experiment completes"
VAGUE = (BROKEN_OFF, "timed out after 60 s waiting for something")
# By what notices a bug: the control that fails, or the message of the experiment that ends. By bug,
# the claims that it would spoil.
NOTICED_BY: Mapping[str, Mapping[str, Sequence[str]]] = {
    integrity.CLIENTS_CHECKED: {
        "consumer_commits_first": ["commit-3"],
        "consumer_commits_nothing": ["commit-3"],
        "consumer_commits_too_far": ["commit-3", "commit-6", "commit-7", "start-3"],
        "consumer_does_not_work": ["commit-3", "commit-8", "order-4"],
        "consumer_joins_another_group": ["start-3"],
        "consumer_records_other_offsets": ["order-2"],
        "consumer_records_other_partitions": ["order-1"],
        "consumer_records_other_times": ["order-7"],
        "consumer_repeats": ["commit-3", "commit-8", "group-1", "order-3"],
        "consumer_skips": ["commit-3", "order-3", "order-6", "start-2", "topic-4"],
        "consumer_skips_final_commit": ["commit-6"],
        "consumer_starts_at_the_beginning": ["commit-4", "start-3"],
        "consumer_stops_early": ["commit-3", "order-2"],
        "consumer_swaps": ["order-2", "order-3", "order-6", "start-2", "topic-4"],
        "consumer_works_twice": ["commit-3"],
        "java_commits_too_far": ["commit-12", "commit-16"],
        "java_does_not_work": ["commit-16", "commit-2"],
        "java_drops": ["order-9", "send-6"],
        "java_repeats": ["order-9"],
        "java_reports_other_offsets": ["order-9"],
        "java_skips": ["commit-16", "commit-2", "start-1"],
        "java_stops_early": ["commit-16", "commit-2"],
        "java_swaps": ["order-5", "order-9"],
        "java_swaps_what_it_reads": ["commit-16"],
        "pool_ignores_keys": ["order-4"],
        "python_skips": ["start-6", "start-7"],
        "sender_drops": [
            "commit-3",
            "commit-5",
            "group-1",
            "order-2",
            "order-3",
            "order-6",
            "send-6",
        ],
        "sender_ignores_errors": ["send-3"],
        "sender_loses_keys": ["order-3"],
        "sender_repeats": ["commit-3", "group-1", "order-3", "send-9"],
        "sender_reports_other_offsets": ["order-2"],
        "sender_swaps": ["order-2", "order-3", "order-6"],
        "history_loses_lines": ["order-2", "commit-3"],
    },
    integrity.LOG_CHECKED: {
        "bulk_sender_drops": ["send-13", "speed-2"],
        "java_bulk_sender_drops": ["send-13", "send-5"],
    },
    "*lost its session before its time*": {
        "consumer_rejoins": ["commit-3", "commit-7", "group-1"],
    },
    "*waiting for an automatic commit*": {
        "consumer_ignores_auto_commit": ["commit-1", "commit-10"],
        "java_ignores_auto_commit": ["commit-10"],
    },
    "*: an automatic commit was stored before the kill": {
        "consumer_ignores_auto_commit": ["commit-2"],
        "java_ignores_auto_commit": ["commit-2"],
    },
    "*: the group has a position after the rebalance": {
        "consumer_ignores_auto_commit": ["commit-13"],
        "java_ignores_auto_commit": ["commit-13"],
    },
    "*: after reading, the group has committed": {
        "consumer_ignores_auto_commit": ["start-1"],
        "java_ignores_auto_commit": ["start-1"],
    },
    "*: the failed commit changed nothing": {
        "commits_are_misread": ["commit-12"],
    },
    "* commits made by hand are found, in order": {
        "commits_are_passed_over": ["commit-16"],
    },
    "the first * were killed": {
        "consumer_does_not_die": ["commit-3", "commit-8", "group-1"],
        "java_does_not_die": ["commit-10", "commit-2"],
        "sender_does_not_die": ["send-9"],
    },
    "only readers with read_uncommitted find the records of an aborted transaction": {
        "consumer_reads_uncommitted": ["commit-15", "send-9"],
    },
    "before the first fault, the log has what was sent": {
        "consumer_skips": ["send-8"],
        "java_repeats": ["send-8"],
        "sender_repeats": ["send-8"],
    },
    "Java * had the defaults that its documentation lists": {
        "defaults_are_mixed_up": ["commit-14"],
    },
    "Java * has the values of the statement": {
        "defaults_are_mixed_up": ["send-12"],
    },
    "Java * had acks=1": {
        "defaults_are_mixed_up": ["send-4"],
    },
    "librdkafka: values that were set are read back": {
        "defaults_of_librdkafka_are_mixed_up": ["commit-14", "send-12", "send-4"],
    },
    "kafka-python: values that were set are read back": {
        "defaults_of_kafka_python_are_mixed_up": ["commit-14", "send-12", "send-4"],
    },
    "Java: the coordinator has the last commit that the consumer recorded": {
        "java_commits_nothing": ["commit-16"],
    },
    "the power cut loses what was not synced, and only that": {
        "power_is_not_cut": ["storage-1", "storage-2"],
    },
    "kafka-python, *: subscribe begins where expected": {
        "python_starts_at_the_beginning": ["start-6"],
    },
    "every measured message arrived exactly once": {
        "queue_client_drops": ["queue-1"],
    },
    "in the share group, each record goes to one member": {
        "share_joins_another_group": ["group-2"],
    },
    "the follower is alive, and behind the leader": {
        "throttle_does_nothing": ["topic-11"],
    },
    "*the lab's own table is at fault, not Kafka": {
        "table_forgets_offsets": ["commit-8"],
        "table_is_ahead": ["commit-8"],
        "table_has_no_index": ["commit-9"],
    },
    "no connection was cut*": {
        "proxy_cuts_nothing": ["send-8", "commit-5"],
    },
    "*waiting for every producer to send rejected requests again*": {
        "proxy_corrupts_nothing": ["order-5"],
    },
    "*: the broker stored commits whose response was dropped": {
        "proxy_swallows_nothing": ["commit-5"],
    },
    "*waiting for a follower to lead*": {
        "broker_is_not_killed": ["send-1"],
    },
    "some acknowledged records were only on the leader": {
        "broker_is_not_frozen": ["send-1"],
    },
    "*: the broker returned with a new disk": {
        "disk_is_not_wiped": ["send-2"],
    },
    "*waiting for old data to be deleted by size*": {
        "topic_settings_are_ignored": ["topic-5"],
    },
    "*waiting for retention to remove the old segments*": {
        "topic_settings_are_ignored": ["start-7"],
    },
}
CASES = [
    (bug, claim, reason)
    for reason, bugs in NOTICED_BY.items()
    for bug, spoiled in bugs.items()
    for claim in spoiled
]
# These run in every test run, all in campaigns.
QUICK = {
    ("sender_drops", "order-2"),
    ("consumer_skips", "start-2"),
    ("consumer_does_not_work", "commit-3"),
    ("java_drops", "order-9"),
    ("java_skips", "commit-16"),
    ("commits_are_passed_over", "commit-16"),
    ("defaults_are_mixed_up", "send-12"),
}


@pytest.mark.parametrize(
    ("bug", "claim", "reason"),
    [
        pytest.param(
            *case, marks=() if case[:2] in QUICK else pytest.mark.long, id="-".join(case[:2])
        )
        for case in CASES
    ],
)
def test_a_bug_of_the_lab_makes_a_claim_inconclusive(
    settle: Settle, monkeypatch: pytest.MonkeyPatch, bug: str, claim: str, reason: str
) -> None:
    if bug.startswith("power") and (lacking := power_cut.missing()):
        pytest.skip(lacking)
    monkeypatch.setenv(lab_bugs.VARIABLE, bug)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(process, "MODULE", "tests.support.lab_bugs")
    lab_bugs.ALL[bug](monkeypatch.setattr)
    result = settle(claim)
    assert result.verdict is ClaimVerdict.INCONCLUSIVE, result.judgement.because
    named = reasons(result)
    assert any(fnmatch.fnmatchcase(one, reason) for one in named), named


def reasons(result: ClaimResult) -> list[str]:
    """Return the controls that failed; for an experiment that did not complete, its message."""
    return [
        one.evidence if one.statement == BROKEN_OFF else one.title
        for one in result.parts
        if one.role is not Role.STATEMENT and one.outcome is not PartOutcome.PASS
    ]


def test_every_bug_is_run() -> None:
    assert {bug for bug, _, _ in CASES} == lab_bugs.ALL.keys()
    cases = [case[:2] for case in CASES]
    assert len(set(cases)) == len(cases)
    assert set(cases) >= QUICK
    # that an experiment broke off says nothing: its message must name what is missing
    assert not any(fnmatch.fnmatchcase(text, one) for one in NOTICED_BY for text in VAGUE)
