"""Let Spark find instep's data source: `format("instep")` works without registration.

Spark imports every module whose name begins with `pyspark_`, so this one imports nothing else until
it is used.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
)
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """The sink as a data source of Spark. It can only be written."""

    @classmethod
    def name(cls) -> str:
        return "instep"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from instep.spark_sink import data_source

        return data_source.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from instep.spark_sink import data_source

        return data_source.stream_writer(self.options, schema, overwrite)
