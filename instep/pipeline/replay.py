"""Events applied again: what came later stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from instep.document.decoding import Event, Record
from instep.document.guard import Document
from instep.kafka import reading
from instep.kafka.connection import Cluster
from instep.pipeline.turns import Desk
from instep.sinks import setaside
from instep.sinks.setaside import Place
from instep.sinks.target import Position


class Overtaken:
    """Which events have been overtaken, where no order value tells: the log is asked for a later one of their documents."""

    def __init__(self, desk: Desk, open_cluster: Callable[[], Cluster]) -> None:
        self._desk, self._open_cluster = desk, open_cluster

    def __call__(self, position: Position, events: Sequence[Event]) -> set[int]:
        """The offsets of those of a partition's events whose documents have had a later event."""
        to = self._desk.sink.to
        if to.rules.ordered:
            return set()
        asked = {event.document for event in events}
        over = setaside.passed_over(self._desk.sink)
        newest: dict[Document, int] = {}
        start = min(event.offset for event in events) + 1
        with self._open_cluster() as cluster:
            for record in reading.read(cluster, to.topic, {position.partition: (start, position.next_offset)}):
                if Place(to.topic, record.partition, record.offset) in over:
                    continue
                found, _ = self._desk.decoder.decode_all([Record(record.offset, record.timestamp_ms, record.key, record.value)])
                newest |= {one.document: one.offset for one in found if one.document in asked}
        return {event.offset for event in events if newest.get(event.document, -1) > event.offset}
