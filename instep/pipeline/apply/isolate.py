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


def write(
    sink: Sink,
    groups: Sequence[Sequence[Item]],
    *,
    decide: Callable[[Sequence[Item]], Changes],
    written: Callable[[Sequence[Item], Changes], None],
    refused: Callable[[Item, errors.InstepError], None],
) -> None:
    """Write what `decide` says of the items, and report each try that held and each refused item.

    `decide` sees the state that earlier calls of `written` left. A group of several items that is
    refused as a whole is tried item by item, so that `refused` can hold back the items behind one.
    """
    pending = [list(groups)]
    while pending:
        some = pending.pop()
        items = [item for group in some for item in group]
        try:
            with sink.savepoint():
                changes = decide(items)
                sink.write(changes)
        except errors.TransactionUndone:
            raise
        except errors.MAY_BE_A_ROW as error:
            if len(items) == 1:
                refused(items[0], error)
            elif len(some) == 1:
                pending += [[[item]] for item in reversed(items)]
            else:
                half = len(some) // 2
                pending += [some[half:], some[:half]]
        else:
            written(items, changes)
