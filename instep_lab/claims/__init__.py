"""All claims by id, in the order of the list. Importing a family registers its experiments."""

from __future__ import annotations

from instep_lab.claim import REGISTERED, Claim
from instep_lab.claims import commit, group, once, order, queue, send, speed, start, topic

FAMILIES = [
    module.__name__.rpartition(".")[2]
    for module in (order, group, start, commit, send, once, topic, speed, queue)
]


def _position(claim: Claim) -> tuple[int, int]:
    family = FAMILIES.index(claim.family) if claim.family in FAMILIES else len(FAMILIES)
    return family, int(claim.id.rpartition("-")[2])


ALL = {claim.id: claim for claim in sorted(REGISTERED.values(), key=_position)}
