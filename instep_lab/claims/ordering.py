"""Workloads of the claims about order: a slower sender, and consumers that hand work to threads."""

from __future__ import annotations

from functools import partial

from instep_lab.clients.consuming import CommitMode, Consuming, Pool
from instep_lab.clients.publishing import Publishing
from instep_lab.trial import PATIENCE_S, Scenario, Trial

KEYS = 20
PER_S = 200


def send_with_two(
    trial: Trial, scenario: Scenario, topic: str, count: int, collects_ms: int
) -> None:
    """Send with two publishers at the same time; one collects its records before it sends them."""
    plans = [
        Publishing(
            topic=topic,
            count=count,
            keys=KEYS,
            seed=trial.seed,
            first=number * count,
            per_s=PER_S,
            member=member,
            config={"linger.ms": linger_ms},
        )
        for number, (member, linger_ms) in enumerate((("at once", 0), ("collects", collects_ms)))
    ]
    trial.together({plan.member: partial(scenario.publish, plan) for plan in plans})


def work_in_pool(trial: Trial, scenario: Scenario, pool: Pool, count: int) -> None:
    """Send to one partition, and work on its records in threads for 0 to 2 ms each."""
    topic = trial.topic(1)
    scenario.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed))
    scenario.consume(
        Consuming(
            topic=topic,
            group=trial.group(),
            count=count,
            idle_s=PATIENCE_S,
            commit=CommitMode.NEVER,
            pool=pool,
            work_ms=1,
            seed=trial.seed,
        )
    )
