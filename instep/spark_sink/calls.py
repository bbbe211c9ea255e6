"""The calls of sinks in this process: in a run of a query, one for each batch.

Within a run, Spark repeats no batch that succeeded. So a batch that a sink of this process has
applied, or found applied, and that comes again in the same run, is a second call of the user's
function. In the database it looks like a repeated batch, whose rows are skipped. After a call that
failed, the function may call the sink again.
"""

from __future__ import annotations

import threading

from instep import errors
from instep.spark_sink.definition import SinkDefinition


class CallLog:
    """The last batch that each sink has finished, and its run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._finished: dict[tuple[str, str], tuple[str, int]] = {}

    def refuse_second(self, sink: SinkDefinition, run_id: str, batch_id: int) -> None:
        """Raise if a sink has finished this batch in this run."""
        if self._finished.get((sink.url, sink.name)) == (run_id, batch_id):
            raise errors.SinkCalledTwice(
                f"sink {sink.name!r} was called twice in batch {batch_id}:"
                " the rows of the second call are not written",
                "union the rows and call the sink once, or give each sink its own name:"
                ' instep.sink(..., name="...")',
            )

    def finish(self, sink: SinkDefinition, run_id: str, batch_id: int) -> None:
        """Note that a batch is finished; raise if another call has finished it meanwhile."""
        with self._lock:
            self.refuse_second(sink, run_id, batch_id)
            self._finished[sink.url, sink.name] = run_id, batch_id


CALLS = CallLog()  # of this process, in which Spark calls the functions of all its queries
