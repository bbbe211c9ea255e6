"""All claims by id, in the order of the list. Importing a module registers its experiments."""

from __future__ import annotations

from instep_lab.claim import REGISTERED, Claim
from instep_lab.claims import (
    commit,
    effects,
    group,
    membership,
    once,
    order,
    producer,
    queue,
    rebalance,
    reset,
    send,
    speed,
    start,
    storage,
    topic,
    total_order,
)

# the families in the order of the list, with the modules that hold their claims
MODULES = {
    "order": (order, total_order),
    "group": (group, membership),
    "start": (start, reset),
    "commit": (commit, effects, rebalance),
    "send": (send, producer, once),
    "topic": (topic,),
    "storage": (storage,),
    "speed": (speed,),
    "queue": (queue,),
}
FAMILIES = list(MODULES)


def _position(claim: Claim) -> tuple[int, int]:
    family = FAMILIES.index(claim.family) if claim.family in FAMILIES else len(FAMILIES)
    return family, int(claim.id.rpartition("-")[2])


ALL = {claim.id: claim for claim in sorted(REGISTERED.values(), key=_position)}
