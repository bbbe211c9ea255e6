"""Test that a bug in the lab itself never becomes a statement about Kafka.

Each bug is run through real experiments: a claim must end as INCONCLUSIVE.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from instep_lab.clients import process
from instep_lab.verdict import ClaimVerdict
from tests.lab.conftest import Settle
from tests.support import lab_bugs

ROOT = Path(__file__).parents[2]
# Bugs by the claims that they would spoil; the first pairs run in every test run, all in campaigns.
PAIRS = [
    ("sender_drops", "order-2"),
    ("consumer_skips", "start-2"),
    ("consumer_does_not_work", "commit-3"),
    ("java_drops", "order-9"),
    ("java_skips", "commit-16"),
]
LONG_PAIRS = [
    ("java_drops", "send-6"),
    ("java_repeats", "order-9"),
    ("java_repeats", "send-8"),
    ("java_swaps", "order-9"),
    ("java_swaps", "order-5"),
    ("java_skips", "start-1"),
    ("java_skips", "commit-2"),
    ("java_does_not_work", "commit-16"),
    ("java_does_not_work", "commit-2"),
    ("java_commits_too_far", "commit-16"),
    ("java_commits_too_far", "commit-12"),
    ("java_does_not_die", "commit-2"),
    ("java_does_not_die", "commit-10"),
    ("sender_drops", "group-1"),
    ("sender_drops", "send-6"),
    ("sender_drops", "order-6"),
    ("sender_drops", "commit-5"),
    ("sender_repeats", "send-9"),
    ("sender_swaps", "order-2"),
    ("sender_swaps", "order-6"),
    ("consumer_skips", "order-3"),
    ("consumer_skips", "send-8"),
    ("consumer_swaps", "order-3"),
    ("consumer_swaps", "order-6"),
    ("consumer_repeats", "order-3"),
    ("consumer_commits_too_far", "commit-6"),
    ("consumer_does_not_die", "group-1"),
    ("sender_does_not_die", "send-9"),
    ("bulk_sender_drops", "speed-2"),
    ("bulk_sender_drops", "send-13"),
    ("consumer_swaps", "start-2"),
    ("sender_drops", "order-3"),
    ("sender_drops", "commit-3"),
    ("sender_repeats", "order-3"),
    ("sender_repeats", "group-1"),
    ("sender_repeats", "send-8"),
    ("sender_repeats", "commit-3"),
    ("sender_swaps", "order-3"),
    ("sender_reports_other_offsets", "order-2"),
    ("sender_ignores_errors", "send-3"),
    ("sender_loses_keys", "order-3"),
    ("consumer_skips", "topic-4"),
    ("consumer_skips", "commit-3"),
    ("consumer_skips", "order-6"),
    ("consumer_swaps", "order-2"),
    ("consumer_swaps", "topic-4"),
    ("consumer_commits_too_far", "start-3"),
    ("consumer_repeats", "group-1"),
    ("consumer_repeats", "commit-3"),
    ("consumer_repeats", "commit-8"),
    ("consumer_does_not_work", "order-4"),
    ("consumer_does_not_work", "commit-8"),
    ("consumer_works_twice", "commit-3"),
    ("consumer_commits_too_far", "commit-3"),
    ("consumer_commits_too_far", "commit-7"),
    ("consumer_commits_nothing", "commit-3"),
    ("consumer_commits_first", "commit-3"),
    ("consumer_skips_final_commit", "commit-6"),
    ("consumer_does_not_die", "commit-3"),
    ("consumer_does_not_die", "commit-8"),
    ("consumer_records_other_partitions", "order-1"),
    ("consumer_records_other_offsets", "order-2"),
    ("consumer_starts_at_the_beginning", "start-3"),
    ("consumer_starts_at_the_beginning", "commit-4"),
    ("consumer_reads_uncommitted", "commit-15"),
    ("consumer_reads_uncommitted", "send-9"),
    ("consumer_stops_early", "order-2"),
    ("consumer_stops_early", "commit-3"),
    ("consumer_joins_another_group", "group-1"),
    ("consumer_joins_another_group", "start-3"),
    ("pool_ignores_keys", "order-4"),
    ("table_forgets_offsets", "commit-8"),
    ("table_is_ahead", "commit-8"),
    ("table_has_no_index", "commit-9"),
    ("proxy_corrupts_nothing", "order-5"),
    ("proxy_cuts_nothing", "send-8"),
    ("proxy_cuts_nothing", "commit-5"),
    ("proxy_swallows_nothing", "commit-5"),
    ("broker_is_not_killed", "send-1"),
    ("broker_is_not_frozen", "send-1"),
    ("disk_is_not_wiped", "send-2"),
    ("topic_settings_are_ignored", "topic-5"),
    ("topic_settings_are_ignored", "start-7"),
    ("history_loses_lines", "order-2"),
    ("history_loses_lines", "commit-3"),
]


@pytest.mark.parametrize(
    ("bug", "claim"),
    [*PAIRS, *(pytest.param(*pair, marks=pytest.mark.long) for pair in LONG_PAIRS)],
)
def test_a_bug_of_the_lab_makes_a_claim_inconclusive(
    settle: Settle, monkeypatch: pytest.MonkeyPatch, bug: str, claim: str
) -> None:
    monkeypatch.setenv(lab_bugs.VARIABLE, bug)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(process, "MODULE", "tests.support.lab_bugs")
    lab_bugs.ALL[bug](monkeypatch.setattr)
    result = settle(claim)
    assert result.verdict is ClaimVerdict.INCONCLUSIVE, result.judgement.because


def test_every_bug_is_run() -> None:
    assert {bug for bug, _ in (*PAIRS, *LONG_PAIRS)} == lab_bugs.ALL.keys()
