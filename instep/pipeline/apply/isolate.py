"""Find the rows that the table refuses, by halving. Every writer of rows uses this one search.

Items are written in groups that belong together, such as the events of one document in log order.
All groups are tried at once; when the table refuses something, each half is tried alone, down to
the single item that is refused. The rest is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from instep import errors
from instep.document.guard import Changes
from instep.sinks.sink import Sink

Item = TypeVar("Item")
Refusals = tuple[type[errors.InstepError], ...]


def search(
    groups: Sequence[Sequence[Item]],
    *,
    attempt: Callable[[Sequence[Item]], None],
    refused: Callable[[Item, errors.InstepError], None],
    refusals: Refusals = (errors.RowRefused,),
) -> None:
    """Attempt all groups at once, and smaller parts where the table refuses something.

    An attempt that raises must leave nothing behind. A group of several items that is refused is
    attempted item by item, so that `refused` can hold back the items behind one.
    """
    pending = [list(groups)] if groups else []
    while pending:
        some = pending.pop()
        items = [item for group in some for item in group]
        try:
            attempt(items)
        except errors.TransactionUndone:
            raise
        except refusals as error:
            if len(items) == 1:
                refused(items[0], error)
            elif len(some) == 1:
                pending += [[[item]] for item in reversed(items)]
            else:
                half = len(some) // 2
                pending += [some[half:], some[:half]]


def write(
    sink: Sink,
    groups: Sequence[Sequence[Item]],
    *,
    decide: Callable[[Sequence[Item]], Changes],
    written: Callable[[Sequence[Item], Changes], None],
    refused: Callable[[Item, errors.InstepError], None],
    refusals: Refusals = (errors.RowRefused,),
) -> None:
    """Write what `decide` says of the items; report what was written and each refused item.

    `decide` sees the state that earlier calls of `written` left.
    """

    def attempt(items: Sequence[Item]) -> None:
        with sink.savepoint():
            changes = decide(items)
            sink.write(changes)
        written(items, changes)

    search(groups, attempt=attempt, refused=refused, refusals=refusals)
