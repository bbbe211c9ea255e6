"""`mapInArrow` without pandas.

PySpark's own method asks for pandas, which it does not use, and which every Python worker would load: memory, start time
and longer garbage collections. This is that method without the question; pyspark is pinned to the release it is taken for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

Batches = Iterator[pa.RecordBatch]


def map_batches(rows: DataFrame, function: Callable[[Batches], Batches], schema: str) -> DataFrame:
    """Each partition's rows through a function from Arrow batches to Arrow batches."""
    mapped = UserDefinedFunction(
        function, schema, name="instep", evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    column = mapped(*[rows[name] for name in rows.columns])
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)
