"""The contract system: a table of documents without statuses, with its topic and pipeline.

The demo uses it, and so does the benchmark that compares events with polling.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w
from msgspec import UNSET

from instep import errors, settings, sinks
from instep.demo import pipeline_process
from instep.document import guard
from instep.emit import Publisher, StatusEvent
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.sinks import inspection, preparation
from instep.sinks.sink import Sink
from instep.waiting import wait_until

PARTITIONS = 4
PATIENCE_S = 180.0


class Contracts:
    """A table, a topic and a pipeline with unique names, and the rows that the table must hold.

    `expected` holds the status and version of each document; `events` counts the published events.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        url: str,
        count: int,
        *,
        prefix: str,
        name: str | None = None,
        batch_rows_max: int | None = None,
    ) -> None:
        self.folder, self.bootstrap, self.url = folder, bootstrap, url
        self.name = name or f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.config = folder / "instep.toml"
        self.config.write_text(
            _settings(self.name, bootstrap, url, batch_rows_max), encoding="utf-8"
        )
        # Override a bootstrap address from the user's environment.
        self._environment = {"INSTEP__KAFKA__BOOTSTRAP": bootstrap}
        declared = settings.load(self.config)
        self.kafka = declared.kafka
        self.pipeline = settings.pipeline(declared, self.name)
        self.documents = [f"doc-{number:05}" for number in range(count)]
        self.expected: dict[str, tuple[str, int]] = {}
        self.events = 0
        self._statements: list[str] = []

    # --- the parts -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the table with its documents, and the topic."""
        self._statements = preparation.prepare(self.pipeline)
        with self.sink() as sink, sink.transaction():
            nothing = (UNSET,) * len(sink.table.columns)
            sink.write(guard.Changes([], dict.fromkeys(self.documents, nothing), {}, {}, []))
        with Cluster(self.kafka, self.bootstrap) as cluster:
            topics.create(cluster, self.pipeline.topic, PARTITIONS)

    def clean_database(self) -> None:
        """Remove everything that was created in the database."""
        preparation.remove(
            self.name,
            self.pipeline,
            own_tables=any("instep_ledger" in statement for statement in self._statements),
        )

    def delete_topic(self) -> None:
        """Delete the topic, if it exists."""
        with (
            Cluster(self.kafka, self.bootstrap) as cluster,
            contextlib.suppress(errors.TopicMissing),
        ):
            topics.delete(cluster, self.pipeline.topic)

    def process(self) -> pipeline_process.PipelineProcess:
        """Return the pipeline as users run it. It is not started yet."""
        return pipeline_process.PipelineProcess(
            self.config, self.name, log=self.folder / "run.log", environment=self._environment
        )

    def publisher(self) -> Publisher:
        return Publisher(
            self.bootstrap, self.pipeline.topic, source="print-system", security=self.kafka.security
        )

    def publish(self, publisher: Publisher, document: str, status: str, version: int) -> None:
        publisher.send(
            StatusEvent(document=document, status=status, version=version, at=datetime.now(UTC))
        )
        self.events += 1
        if version > self.expected.get(document, ("", 0))[1]:
            self.expected[document] = (status, version)

    # --- reading -------------------------------------------------------------------------------

    def sink(self) -> contextlib.closing[Sink]:
        return contextlib.closing(sinks.open_sink(inspection.inspect(self.name, self.pipeline)))

    def started(self, sink: Sink) -> bool:
        return len(sink.ledger.positions()) == PARTITIONS

    def processed(self, sink: Sink) -> int:
        """Return the number of records that the ledger has passed."""
        return sum(self.ledger(sink).values())

    def ledger(self, sink: Sink) -> dict[int, int]:
        """Return the next offset of each partition."""
        return {
            partition: position.next_offset
            for partition, position in sink.ledger.positions().items()
        }

    def applied(self, sink: Sink) -> int:
        statement = (
            "SELECT count(*) FROM instep_history WHERE verdict = 'applied'"  # noqa: S608
            f" AND pipeline = {sink.connection.placeholder}"
        )
        return int(sink.connection.select(statement, (self.name,))[0][0])

    def freshness_ms(
        self, sink: Sink, version: int, since: datetime, until: datetime | None = None
    ) -> list[float]:
        """Return the freshness of the events of this version, in ascending order.

        Only events that happened at or after `since` and before `until` are included.
        """
        mark = sink.connection.placeholder
        statement = (
            "SELECT event_time, committed_at FROM instep_history"  # noqa: S608
            f" WHERE order_value = {mark} AND pipeline = {mark}"
        )
        return sorted(
            (_time(committed) - _time(happened)).total_seconds() * 1000
            for happened, committed in sink.connection.select(statement, (version, self.name))
            if since <= _time(happened) and (until is None or _time(happened) < until)
        )

    def differences(self, sink: Sink) -> int:
        """Return the number of documents whose row is not the latest published state."""
        rows = sink.connection.select(
            f"SELECT doc_no, print_status, print_version FROM {sink.table.name}"  # noqa: S608
        )
        found = {row[0]: (row[1], row[2]) for row in rows}
        return sum(
            found.get(document) != expected for document, expected in self.expected.items()
        ) + len(found.keys() - self.expected.keys())

    def wait(
        self,
        running: pipeline_process.PipelineProcess,
        reached: Callable[[], bool],
        what: str,
        interval_s: float = 0.02,
    ) -> None:
        """Wait for a condition; raise if the pipeline ends before, or if it takes too long."""
        is_over = False

        def is_reached_or_over() -> bool:
            nonlocal is_over
            if reached():
                return True
            is_over = running.poll() is not None
            return is_over

        if not wait_until(is_reached_or_over, PATIENCE_S, interval_s=interval_s) or is_over:
            raise errors.InstepError(
                f"the pipeline failed while {what}; the end of its log:\n{running.tail()}"
            )


def _settings(name: str, bootstrap: str, url: str, batch_rows_max: int | None) -> str:
    """Return the text of the settings file."""
    pipeline: dict[str, Any] = {
        "topic": f"{name}-print-status",
        "target": url,
        "table": name.replace("-", "_") + "_document",
        "key": "doc_no",
        "event": {
            "document": "doc_id",
            "status": "status",
            "order": "version",
            "at": "updated_at",
        },
        "columns": {
            "print_status": "status",
            "print_version": "version",
            "printed_at": "updated_at",
        },
    }
    if batch_rows_max:
        pipeline["batch_rows_max"] = batch_rows_max
    return tomli_w.dumps({"kafka": {"bootstrap": bootstrap}, "pipelines": {name: pipeline}})


def _time(value: datetime | str) -> datetime:
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return at if at.tzinfo else at.replace(tzinfo=UTC)
