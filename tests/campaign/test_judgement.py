"""Test that the judgement finds each kind of damage in the result of a faultless run."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from tests.campaign.events import Stream
from tests.campaign.judgement import FreeModel, Judgement, fact, judge
from tests.campaign.scenario import COLUMNS, FinalState
from tests.support.model import Fact

ROUNDS = 8


def log(ordered: bool) -> list[Fact]:
    """Return a log of several rounds, in which the topic grows."""
    stream = Stream("t", ordered, random.Random(5))
    ends = [0] * 6
    facts = []
    for number in range(ROUNDS):
        stream.partitions = 3 if number < ROUNDS // 2 else 6
        for key, value, partition in stream.next_round():
            facts.append(fact((partition, ends[partition]), key, value))
            ends[partition] += 1
    return facts


def faultless(facts: list[Fact], ordered: bool) -> FinalState:
    """Return the result of one event at a time, with the audit of a constrained table."""
    model = FreeModel(ordered, "insert", True, {}, dict(COLUMNS))
    audit: list[tuple[str, str | None]] = []
    for one in sorted(facts, key=lambda one: one.place):
        model.apply(one)
        if model.history.get(one.place) == "applied":
            audit.append((one.document, one.body["uid"] if one.body else None))
    return FinalState(
        rows=model.rows,
        history=[
            (*place, model.facts[place].document, verdict)
            for place, verdict in model.history.items()
        ],
        dead=[(*place, reason) for place, reason in model.dead.items()],
        parked=[
            (*place, document, reason)
            for document, some in model.parked.items()
            for place, reason in some
        ],
        audit=audit,
    )


def damaged(found: FinalState, damage: str) -> FinalState:
    rows, history, audit = dict(found.rows), list(found.history), list(found.audit)
    event = next(one for one in audit if one[1] is not None)
    document = next(iter(rows))
    match damage:
        case "no outcome":
            history.pop(3)
        case "two outcomes":
            history.append(history[3])
        case "outcome of an aborted record":
            history.append((0, 100_000, "d1", "applied"))
        case "row lost":
            del rows[document]
        case "row wrong":
            rows[document] = {**rows[document], "note": "other"}
        case "row left over":
            rows["d100001"] = rows[document]
        case "written twice":
            audit.insert(audit.index(event) + 1, event)
        case "not written":
            audit.remove(event)
        case "deleted twice":
            audit.append(next(one for one in audit if one[1] is None))
        case "written late":
            written = [one for one in audit if one[1] is not None]
            name = next(
                one[0]
                for one in written
                if int(one[0][1:]) % 2 and sum(other[0] == one[0] for other in written) > 2
            )
            first, second = [
                number for number, one in enumerate(audit) if one[0] == name and one[1]
            ][:2]
            audit[first], audit[second] = audit[second], audit[first]
        case "dead letter lost":
            return replace(found, dead=found.dead[1:])
        case "parked for another reason":
            return replace(found, parked=[(*found.parked[0][:3], "OTHER"), *found.parked[1:]])
    return replace(found, rows=rows, history=history, audit=audit)


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_a_faultless_run_passes(ordered: bool) -> None:
    facts = log(ordered)
    found = faultless(facts, ordered)
    judged = judge(facts, found, ordered=ordered, constrained=True)
    assert judged.good, judged.notes
    assert {"applied", "parked"} <= {row[3] for row in found.history}
    assert found.dead
    assert not Judgement().good  # nothing was compared


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("no outcome", "lost"),
        ("two outcomes", "repeated"),
        ("outcome of an aborted record", "different"),
        ("row lost", "lost"),
        ("row wrong", "different"),
        ("row left over", "different"),
        ("written twice", "repeated"),
        ("not written", "lost"),
        ("deleted twice", "repeated"),
        ("written late", "reordered"),
        ("dead letter lost", "lost"),
        ("parked for another reason", "different"),
    ],
)
def test_damage_is_found(ordered: bool, damage: str, kind: str) -> None:
    facts = log(ordered)
    judged = judge(
        facts, damaged(faultless(facts, ordered), damage), ordered=ordered, constrained=True
    )
    assert getattr(judged, kind) >= 1, judged.notes


def test_a_rewind_may_write_rows_again_only_without_an_order() -> None:
    for ordered in (True, False):
        facts = log(ordered)
        found = faultless(facts, ordered)
        last = next(one for one in reversed(found.audit) if one[1] is not None)
        judged = judge(
            facts,
            replace(found, audit=[*found.audit, last], rewinds=1),
            ordered=ordered,
            constrained=True,
        )
        assert judged.repeated == int(ordered), judged.notes


def test_the_same_seed_sends_the_same_events() -> None:
    assert [json.dumps(one.body) for one in log(True)] == [
        json.dumps(one.body) for one in log(True)
    ]
