"""Every claim, by its id, in the order of the list. Importing a family makes its experiments known."""

from __future__ import annotations

from instep.trials.claim import KNOWN
from instep.trials.claims import commit, order, queue, speed, topic

FAMILIES = (order, commit, topic, speed, queue)
ALL = KNOWN
