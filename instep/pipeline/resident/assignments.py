"""Which task reads which partition. Pure: it decides, and the engine sends the messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

FlowKey = tuple[str, int]  # a job and its epoch


class Moves(msgspec.Struct):
    """What to tell the tasks now: partitions by task."""

    assign: dict[int, list[int]] = {}
    revoke: dict[int, list[int]] = {}


class FlowPartitions:
    """The partitions of one flow and their tasks.

    A partition that moves is first revoked. It is assigned to its new task when the old one has
    answered or is lost, so that two tasks rarely read the same records. If they do, the position
    in their transactions drops the repetition.
    """

    def __init__(self, partitions: Iterable[int]) -> None:
        self._owners: dict[int, int | None] = dict.fromkeys(partitions)
        self._revoked: set[int] = set()

    def owners(self) -> set[int]:
        """Return the tasks that read a partition."""
        return {owner for owner in self._owners.values() if owner is not None}

    def is_finished(self) -> bool:
        """Return whether no partition is left."""
        return not self._owners

    def add(self, partitions: Collection[int]) -> None:
        """Add partitions, except those that are known."""
        for partition in partitions:
            self._owners.setdefault(partition, None)

    def finish(self, partitions: Collection[int]) -> None:
        """Remove partitions that were applied up to their ends."""
        for partition in partitions:
            self._owners.pop(partition, None)
            self._revoked.discard(partition)

    def unassign(self, task: int, partitions: Collection[int] | None = None) -> None:
        """Note that a task no longer reads these partitions, or any if it is lost."""
        for partition, owner in self._owners.items():
            if owner == task and (partitions is None or partition in partitions):
                self._owners[partition] = None
                self._revoked.discard(partition)

    def balance(self, tasks: Sequence[int], first: int) -> Moves:
        """Return the next moves towards an even distribution over these tasks.

        `first` shifts the beginning, so that jobs with few partitions use different tasks.
        """
        moves = Moves({}, {})
        for partition, wanted in self._wanted(tasks, first).items():
            owner = self._owners[partition]
            if owner is None:
                self._owners[partition] = wanted
                moves.assign.setdefault(wanted, []).append(partition)
            elif owner != wanted and partition not in self._revoked:
                self._revoked.add(partition)
                moves.revoke.setdefault(owner, []).append(partition)
        return moves

    def _wanted(self, tasks: Sequence[int], first: int) -> Mapping[int, int]:
        if not tasks:
            return {}
        return {
            partition: tasks[(first + partition) % len(tasks)] for partition in sorted(self._owners)
        }
