"""Spark for commands that decode records of a pipeline with a transformation.

Most of what operators do needs no Spark. So it starts only when the first record is transformed.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812 - the name that everybody uses

from instep import settings
from instep.document.decoding import Record
from instep.document.results import Result
from instep.pipeline import session, transformation
from instep.pipeline.transformation import Transformation
from instep.pipeline.transformed.transformer import EventPlan, Transformer
from instep.pipeline.transformed.worker import RecordSource
from instep.sinks import inspection
from instep.spark_options import SparkFiles


class TransformOnDemand:
    """Transforms records of one pipeline, in a Spark session of its own."""

    def __init__(
        self,
        spark: settings.Spark,
        files: Callable[[], SparkFiles],
        name: str,
        pipeline: settings.Pipeline,
    ) -> None:
        """Take what the session needs; nothing is started yet."""
        self._spark, self._files = spark, files
        self._name, self._pipeline = name, pipeline
        self._transformer: Transformer[Result] | None = None
        self._closing = contextlib.ExitStack()

    def __call__(self, records: Sequence[Record]) -> list[Result]:
        """Return the results of records of the log."""
        if self._transformer is None:
            self._transformer = self._started()
        return self._transformer(records)

    def close(self) -> None:
        """End Spark, if it was started."""
        self._closing.close()

    def result_types(self) -> dict[str, str]:
        """Return the types of the columns that the transformation yields, by name.

        They are written as in the settings. What is neither number, text nor time is JSON.
        """
        opened = transformation.session_for(self._session())
        transform = self._transform
        declared = Transformation(
            f"pipelines.{self._name}.transform", sql=transform.sql, python=transform.python
        )
        records = opened.createDataFrame([], transformation.CARRIED_SCHEMA)
        found = declared.apply(records, self._pipeline.topic)
        return {field.name: declared_type(field.dataType) for field in found.fields}

    def _started(self) -> Transformer[Result]:
        opened = self._session()
        # The records are given, so no cluster is needed.
        source = RecordSource(settings.Kafka(), "", self._pipeline.topic)
        mapping = inspection.inspect(self._name, self._pipeline).mapping
        plan = EventPlan(opened, source, self._name, self._transform, mapping)
        return Transformer(plan)

    @property
    def _transform(self) -> settings.Transform:
        transform = self._pipeline.transform
        assert transform is not None
        return transform

    def _session(self) -> SparkSession:
        handlers = [
            (number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)
        ]
        folder = session.RunFolder()
        self._closing.callback(folder.remove)
        opened = session.open_session(self._spark, self._files(), folder)
        for number, handler in handlers:
            signal.signal(number, handler)  # Spark installs its own handler when it starts

        def stop() -> None:
            with contextlib.suppress(Py4JError, OSError):
                opened.stop()

        self._closing.callback(stop)
        return opened


def declared_type(kind: T.DataType) -> str:
    """Return a type of Spark as the settings name it."""
    if isinstance(kind, T.DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    names: dict[type[T.DataType], str] = {
        T.StringType: "text",
        T.ByteType: "integer",
        T.ShortType: "integer",
        T.IntegerType: "integer",
        T.LongType: "bigint",
        T.FloatType: "double",
        T.DoubleType: "double",
        T.BooleanType: "boolean",
        T.TimestampType: "timestamp",
        T.TimestampNTZType: "timestamp",
        T.DateType: "date",
    }
    return names.get(type(kind), "json")
