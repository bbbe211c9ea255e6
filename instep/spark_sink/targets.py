"""Compare the schema of a DataFrame with the tables of a sink, before anything is written."""

from __future__ import annotations

from collections import Counter

import msgspec
from pyspark.sql import types as spark

from instep import errors, settings
from instep.document import kinds
from instep.document.mapping import TargetColumn
from instep.sinks import batches, inspection
from instep.sinks.target import Target
from instep.spark_sink import quarantine
from instep.spark_sink.definition import SinkDefinition, SinkTable

NUMBERS = (kinds.Float, kinds.Numeric, kinds.Json)
# The kinds of columns that take the values of a Spark type.
ACCEPTED: dict[type[spark.DataType], tuple[type[kinds.ColumnKind], ...]] = {
    spark.StringType: (kinds.Text, kinds.Enumeration, kinds.Uuid, kinds.Json),
    spark.BooleanType: (kinds.Boolean, kinds.Json),
    spark.ByteType: (kinds.Integer, *NUMBERS),
    spark.ShortType: (kinds.Integer, *NUMBERS),
    spark.IntegerType: (kinds.Integer, *NUMBERS),
    spark.LongType: (kinds.Integer, *NUMBERS),
    spark.FloatType: NUMBERS,
    spark.DoubleType: NUMBERS,
    spark.DecimalType: NUMBERS,
    spark.TimestampType: (kinds.Timestamp,),
    spark.TimestampNTZType: (kinds.Timestamp,),
    spark.DateType: (kinds.Date,),
    spark.StructType: (kinds.Json,),
    spark.ArrayType: (kinds.Json,),
    spark.MapType: (kinds.Json,),
}


def inspect(definition: SinkDefinition, schema: spark.StructType) -> list[Target]:
    """Return the targets of a sink, if rows of this schema fit its tables.

    instep's own tables are created if they are missing; the sink's tables are never changed.
    """
    rows = [(table, rows_of(table, schema)) for table in definition.tables]
    declared = [
        (table, fields, table.pipeline_settings(definition.url, fields)) for table, fields in rows
    ]
    batches.create_missing(definition.url)
    found = []
    for table, fields, pipeline in declared:
        try:
            target = inspection.inspect(definition.journal_name(table), pipeline)
        except errors.TargetUnfit as unfit:
            raise errors.TargetUnfit(unfit.what, unfit.sink_remedy) from unfit
        for column in (*target.mapping.keys, *target.mapping.columns):
            _check_type(table, column, fields[column.name])
        found.append(
            msgspec.structs.replace(target, mapping=quarantine.with_json_text(target.mapping))
        )
    return found


def refuse_changed(
    definition: SinkDefinition, schema: spark.StructType, known: list[Target]
) -> list[Target]:
    """Return the targets as they are now; raise TargetChanged if columns have changed."""
    try:
        current = inspect(definition, schema)
    except errors.TargetUnfit as unfit:
        raise errors.TargetChanged(
            f"a table was changed while the query was running: {unfit.what}",
            f"undo the change, or {unfit.remedy}; then start the query again",
        ) from unfit
    for before, after in zip(known, current, strict=True):
        if before.mapping != after.mapping:
            raise errors.TargetChanged(
                f"columns of table {after.table} were changed while the query was running",
                "start the query again",
            )
    return current


def rows_of(table: SinkTable, schema: spark.StructType) -> dict[str, spark.DataType]:
    """Return the columns of a table's rows; raise SettingsError if the DataFrame lacks one."""
    fields = schema
    if table.column is not None:
        kind = _type_of(table.column, schema)
        if isinstance(kind, spark.ArrayType):
            kind = kind.elementType
        if not isinstance(kind, spark.StructType):
            raise errors.SettingsError(
                f"column {table.column!r} is {kind.simpleString()}, but the rows of table"
                f" {table.table!r} are a struct or an array of structs",
                'make one: struct("order_id", "status").alias("orders")',
            )
        fields = kind
    columns = {field.name: field.dataType for field in fields}
    for name, count in Counter(fields.fieldNames()).items():
        if count > 1:
            raise errors.SettingsError(
                f"the rows of table {table.table!r} have {count} columns {name!r}",
                "drop or rename one of them: a join keeps the columns of both sides",
            )
    for name in (*table.key, *filter(None, (table.order, table.delete_when))):
        _type_of(name, fields)
    for name in columns:
        if "." in name or name.startswith("@"):
            raise errors.SettingsError(
                f"column {name!r} of the DataFrame has a dot or begins with @",
                'rename it: withColumnRenamed("...", "...")',
            )
    if table.delete_when is not None:
        kind = columns.pop(table.delete_when)
        if not isinstance(kind, spark.BooleanType):
            raise errors.SettingsError(
                f"`delete_when` is column {table.delete_when!r}, which is {kind.simpleString()},"
                " not boolean",
                'compute it: withColumn("is_deleted", expr("op = \'D\'"))',
            )
    return columns


def _type_of(name: str, schema: spark.StructType) -> spark.DataType:
    names = schema.fieldNames()
    if name not in names:
        raise errors.SettingsError(
            f"the DataFrame has no column {name!r}{settings.nearest(name, names)}",
            f"its columns are: {', '.join(names)}",
        )
    return schema[name].dataType


def _check_type(table: SinkTable, column: TargetColumn, kind: spark.DataType) -> None:
    accepted = ACCEPTED.get(type(kind), ())
    if isinstance(kind, spark.NullType) or isinstance(column.kind, accepted):
        return
    if isinstance(column.kind, kinds.Integer):
        is_whole = isinstance(kind, spark.DecimalType) and kind.scale == 0
        if is_whole or (isinstance(kind, spark.BooleanType) and column.kind.is_boolean):
            return
    converted = f'col("{column.name}").cast("...")'
    if isinstance(kind, spark.VariantType) and isinstance(column.kind, (kinds.Json, kinds.Text)):
        converted = f'to_json("{column.name}")'
    raise errors.TargetUnfit(
        f"column {column.name!r} is {kind.simpleString()} in the DataFrame,"
        f" but {column.declared} in table {table.table}",
        f'convert it: withColumn("{column.name}", {converted})',
    )


class SinkSchema(msgspec.Struct, frozen=True):
    """A schema as a value that can be compared and sent to tasks."""

    json: str

    @property
    def fields(self) -> spark.StructType:
        """Return the schema as Spark has it."""
        return spark.StructType.fromJson(msgspec.json.decode(self.json))
