"""Helpers for experiments with producers: settings, brokers and leaders."""

from __future__ import annotations

from typing import Any

from instep.kafka import layout
from instep_lab.trial import Trial

FOREVER = 1_000_000


def plain(acks: str = "all", **config: Any) -> dict[str, Any]:
    """Return settings of a producer that is not idempotent; keywords have underscores for dots."""
    return {
        "enable.idempotence": False,
        "acks": acks,
        **{name.replace("_", "."): value for name, value in config.items()},
    }


def leader_of(trial: Trial, topic: str) -> int | None:
    return layout.read(trial.cluster.kafka).topics[topic].partitions[0].leader


def in_sync(trial: Trial, topic: str) -> set[int]:
    return set(layout.read(trial.cluster.kafka).topics[topic].partitions[0].in_sync)


def nodes_from(number: int) -> tuple[int, int, int]:
    """Return the three brokers, starting with a different one for each number."""
    first, second, third = ((number + step) % 3 + 1 for step in range(3))
    return first, second, third
