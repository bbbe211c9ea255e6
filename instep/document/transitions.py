"""Which status may follow which: the state machine that a pipeline's settings declare.

A document that is new, or whose status is not known, may begin with any declared status. A status
that stays the same is not a transition. Every other transition must be declared; otherwise the
event is refused and its document parked.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from instep.document.reasons import Reason, Refusal

NEAR = 0.8


class Transitions(msgspec.Struct, frozen=True):
    """The declared followers of each status, in the order of the settings. A plain value."""

    followers: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.followers)

    def refusal(self, before: str | None, after: str) -> Refusal | None:
        """Return why a document may not change from one status to another; None if it may."""
        allowed = _sets(self)
        if after not in allowed:
            return Refusal(
                Reason.STATUS_UNKNOWN, f"status {after!r} is not in the settings' transitions"
            )
        if before is None or before == after or after in allowed.get(before, ()):
            return None
        return Refusal(
            Reason.TRANSITION_NOT_ALLOWED, f"from {before!r} to {after!r}: {self._allowed(before)}"
        )

    def _allowed(self, before: str) -> str:
        if before not in _sets(self):
            return f"{before!r} is not in the settings' transitions"
        following = dict(self.followers).get(before, ())
        if not following:
            return f"{before!r} is a final status"
        return f"{before!r} may be followed by {', '.join(map(repr, following))}"


def declare(declared: Mapping[str, Sequence[str]]) -> Transitions:
    """Return the transitions of the settings."""
    return Transitions(
        tuple((status, tuple(dict.fromkeys(following))) for status, following in declared.items())
    )


def statuses(transitions: Transitions) -> list[str]:
    """Return every status in the settings, in order of first occurrence."""
    named = [name for status, following in transitions.followers for name in (status, *following)]
    return list(dict.fromkeys(named))


def starts(transitions: Transitions) -> list[str]:
    """Return the statuses that follow no other; if there are none, the first one declared."""
    followed = {
        name for status, following in transitions.followers for name in following if name != status
    }
    known = statuses(transitions)
    return [name for name in known if name not in followed] or known[:1]


def unreachable(transitions: Transitions) -> list[str]:
    """Return the statuses that no document can reach from a start."""
    followers = dict(transitions.followers)
    reached: set[str] = set()
    ahead = starts(transitions)
    while ahead:
        status = ahead.pop()
        if status not in reached:
            reached.add(status)
            ahead += followers.get(status, ())
    return [name for name in statuses(transitions) if name not in reached]


def doubtful(transitions: Transitions) -> list[tuple[str, str]]:
    """Return final statuses that may be misspelt, each with the similar status."""
    declared = [status for status, _ in transitions.followers]
    ends = [name for name in statuses(transitions) if name not in declared]
    near = [(name, difflib.get_close_matches(name, declared, n=1, cutoff=NEAR)) for name in ends]
    return [(name, close[0]) for name, close in near if close]


def picture(transitions: Transitions) -> str:
    """Draw the state machine as text: one block per status, with an arrow to each follower."""
    followers = dict(transitions.followers)
    beginning = starts(transitions)
    lost = unreachable(transitions)
    width = max((len(name) for name in statuses(transitions)), default=0)
    lines: list[str] = []
    for name in _walk(transitions, [*beginning, *lost]):
        mark = " "
        if name in beginning:
            mark = "●"
        elif name in lost:
            mark = "?"
        following = followers.get(name, ())
        if not following:
            lines.append(f"{mark} {name.ljust(width)} ■")
        for number, after in enumerate(following):
            head, branch = " " * (width + 2), "├─"
            if number == 0:
                head = f"{mark} {name.ljust(width)}"
            if len(following) == 1:
                branch = "──"
            elif number == 0:
                branch = "┬─"
            elif number == len(following) - 1:
                branch = "└─"
            lines.append(f"{head} {branch}▶ {after}")
    legend = "● begins   ■ ends"
    if lost:
        legend += "   ? cannot be reached"
    return "\n".join([*lines, legend])


def findings(transitions: Transitions, found: Iterable[str] = ()) -> list[str]:
    """Describe what looks wrong: unreachable, misspelt or undeclared statuses."""
    known = statuses(transitions)
    return [
        *(
            f"{name!r} cannot be reached from a status that documents begin with"
            for name in unreachable(transitions)
        ),
        *(
            f"{name!r} has no followers; did you mean {near!r}?"
            for name, near in doubtful(transitions)
        ),
        *(
            f"{name!r} is in the table, but not in the transitions"
            for name in sorted(set(found) - set(known))
        ),
    ]


def _walk(transitions: Transitions, first: list[str]) -> list[str]:
    """Return every status once, in the order in which documents reach them."""
    followers = dict(transitions.followers)
    seen: list[str] = []
    ahead = list(first)
    while ahead:
        name = ahead.pop(0)
        if name not in seen:
            seen.append(name)
            ahead += followers.get(name, ())
    return seen


@lru_cache(maxsize=64)
def _sets(transitions: Transitions) -> dict[str, frozenset[str]]:
    followers = dict(transitions.followers)
    return {name: frozenset(followers.get(name, ())) for name in statuses(transitions)}
