"""`mapInArrow` without pandas.

PySpark's own method requires pandas without using it, and every Python worker would load it. That
costs memory, start time and longer garbage collections. This is the same method without that
requirement. It depends on PySpark's internals, so pyspark is pinned to one release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

Batches = Iterator[pa.RecordBatch]


def map_batches(rows: DataFrame, function: Callable[[Batches], Batches], schema: str) -> DataFrame:
    """Pass the rows of each partition through a function on Arrow batches."""
    mapped = UserDefinedFunction(
        function, schema, name="instep", evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    column = mapped(*[rows[name] for name in rows.columns])
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)
