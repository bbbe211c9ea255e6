"""Transformations: a SELECT statement or a Python function from records to events.

A transformation gets one record at a time, in the order of the log, and every row of its result
must come from exactly one record. Only then do ledger, order per document, dead letters, history,
replay and reconcile mean the same as without it. So the plan that Spark made of it is checked
before anything is read, against a list of what is allowed:

1. Each step works row by row: SELECT, WHERE, explode, and joins with static tables.
2. The records are read once, and they are the side of a join that Spark streams.
3. Nothing depends on chance or on the clock: a replay must compute the same.

The user's statement sees only the columns of `records`. Where a row comes from is carried past it:
the columns in `CARRIED` are added to every step of the plan. They keep the identities that Spark
gave them, so a statement can neither change nor lose them.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody uses
from pyspark.sql import types as T  # noqa: N812 - the name that everybody uses

from instep import errors
from instep.settings import nearest

PREFIX = "__instep_"
# What is known of a record besides its topic, and carried past the transformation.
CARRIED = ("partition", "offset", "timestamp_ms", "key", "value", "headers")
CARRIED_SCHEMA = (
    "partition int, offset long, timestamp_ms long, key binary, value binary,"
    " headers array<struct<key string, value binary>>"
)
CARRIED_NAMES = tuple(PREFIX + name for name in CARRIED)
VIEW = "records"
# What a transformation sees of a record. A column is computed only if it is used; what it cannot
# be computed from, such as text that is not UTF-8, is then an error of that record.
VISIBLE = {
    "topic": "{topic}",
    "partition": "{partition}",
    "offset": "{offset}",
    "timestamp": "if({timestamp_ms} < 0, null, timestamp_millis({timestamp_ms}))",
    "key": "validate_utf8(cast({key} as string))",
    "value": "validate_utf8(cast({value} as string))",
    "key_bytes": "{key}",
    "value_bytes": "{value}",
    "headers": "map_from_entries(transform({headers}, h -> struct(h.key,"
    " validate_utf8(cast(h.value as string)))))",
}
# Settings of a session in which transformations are planned.
CONF = {
    "spark.sql.ansi.enabled": "true",  # a wrong value is an error, never silently null
    "spark.sql.adaptive.enabled": "false",  # the plan that was checked is the plan that runs
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",  # a header may be repeated
    "spark.sql.session.timeZone": "UTC",
    # A table that is joined with the records is sent to every task, whatever its size.
    "spark.sql.autoBroadcastJoinThreshold": str(2**63 - 1),
}

GUIDE = "docs/guides/write-a-spark-stream.md"
REMEDY = f"write such a stream with Spark and instep's sink: {GUIDE}"
# Steps of a plan that work row by row and keep the order of rows.
ROW_BY_ROW = ("Project", "Filter", "SubqueryAlias", "View", "ResolvedHint")
GENERATORS = ("Explode", "PosExplode", "Inline", "Stack", "JsonTuple", "GeneratorOuter")
# Joins, with the side that may have the records: the other side can be sent to every task.
STREAMED_SIDES = {
    "Inner": (0, 1),
    "Cross": (0, 1),
    "LeftOuter": (0,),
    "RightOuter": (1,),
    "LeftSemi": (0,),
    "LeftAnti": (0,),
}
# What the others do, in the words of SQL and of the DataFrame API.
REFUSED = {
    "Aggregate": "an aggregation combines several records (GROUP BY, count, sum, DISTINCT)",
    "CollectMetrics": "observe() is not a part of a transformation",
    "Deduplicate": "dropDuplicates compares several records",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark compares several records",
    "Distinct": "DISTINCT compares several records",
    "EventTimeWatermark": "a watermark needs the records of all partitions",
    "Except": "EXCEPT compares several records",
    "Expand": "grouping sets combine several records",
    "GlobalLimit": "LIMIT drops records, depending on how they are batched",
    "Intersect": "INTERSECT compares several records",
    "LateralJoin": "a LATERAL join is not supported; LATERAL VIEW explode(…) is",
    "LocalLimit": "LIMIT drops records, depending on how they are batched",
    "LogicalRDD": "a checkpoint or an RDD hides which record a row comes from",
    "MapInArrow": "mapInArrow hides which record a row comes from; a UDF does not",
    "MapInPandas": "mapInPandas hides which record a row comes from; a UDF does not",
    "Offset": "OFFSET drops records, depending on how they are batched",
    "Pivot": "PIVOT combines several records",
    "RebalancePartitions": "a rebalance moves records between tasks",
    "Repartition": "repartition and coalesce move records between tasks",
    "RepartitionByExpression": "repartition moves records between tasks",
    "Sample": "a sample depends on chance",
    "Sort": "ORDER BY changes the order of records",
    "Tail": "tail drops records, depending on how they are batched",
    "Union": "UNION reads the records several times; to split a record, use"
    " explode(array(struct(…), struct(…)))",
    "Window": "a window combines several records",
}
# The same for the plan that Spark executes.
EXECUTED = (
    "WholeStageCodegenExec",
    "InputAdapter",
    "ColumnarToRowExec",
    "ProjectExec",
    "FilterExec",
    "GenerateExec",
    "ArrowEvalPythonExec",
    "BatchEvalPythonExec",
    "MapInArrowExec",
    "CoalesceExec",  # of the caller; one of the user is refused before
)
BROADCAST_JOINS = ("BroadcastHashJoinExec", "BroadcastNestedLoopJoinExec")

# How the lines begin that follow a message of Spark: a plan, or a stack.
AFTER_MESSAGE = ("== SQL", "'", "+-", ":-", "at ", "JVM stacktrace", "Caused by")
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"

TransformFunction = Callable[[DataFrame], DataFrame]


class Transformed(msgspec.Struct, frozen=True):
    """The result of a transformation: a frame with the carried columns and the user's own."""

    frame: DataFrame
    carried: tuple[str, ...]
    fields: T.StructType  # the user's columns
    reads_headers: bool
    source_ids: frozenset[str]  # Spark's identities of the columns that the records are read from


class Transformation:
    """A declared transformation, loaded. `place` is where the settings declare it."""

    def __init__(self, place: str, *, sql: str | None = None, python: str | None = None) -> None:
        """Load it; raise SettingsError if there is no such function."""
        self._place, self._sql = place, sql
        self._function: TransformFunction | None = None
        if python is not None:
            self._function = load_function(f"{place}.python", python)

    @property
    def place(self) -> str:
        """Return the setting that says what to do."""
        return f"{self._place}.{'python' if self._function else 'sql'}"

    def apply(self, records: DataFrame, topic: str) -> Transformed:
        """Return the results of records; raise SettingsError if their record cannot be known.

        `records` has the columns of `CARRIED_SCHEMA`, and its session those of `session_for`.
        """
        source = records.select(*[F.col(name).alias(PREFIX + name) for name in CARRIED])
        visible = source.select(*[_visible(name, topic) for name in VISIBLE])
        with self._explained():
            result = self._call(visible)
            fields = self._fields(result)
            rebuilding = _Rebuilding(self.place, source, visible, result)
            plan, reads_headers = rebuilding.plan()
            frame = _frame(records.sparkSession, plan)
            return Transformed(frame, CARRIED_NAMES, fields, reads_headers, rebuilding.leaf_ids)

    def _call(self, visible: DataFrame) -> DataFrame:
        if self._sql is not None:
            _refuse_other_statements(self.place, visible.sparkSession, self._sql)
            visible.createOrReplaceTempView(VIEW)
            return visible.sparkSession.sql(self._sql)
        assert self._function is not None
        try:
            result: Any = self._function(visible)
        except (errors.InstepError, PySparkException):
            raise
        except Exception as error:
            raise errors.SettingsError(
                f"{self.place} failed: {type(error).__name__}: {error}",
                "correct the function; it gets the DataFrame `records` and returns a DataFrame",
            ) from error
        if not isinstance(result, DataFrame):
            raise errors.SettingsError(
                f"{self.place} returned {type(result).__name__}, not a DataFrame",
                "let the function return the DataFrame that it made from `records`",
            )
        return result

    def _fields(self, result: DataFrame) -> T.StructType:
        """Return the columns of the result; refuse two of the same name."""
        names = result.columns
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise errors.SettingsError(
                f"{self.place} yields several columns named {repeated[0]!r}",
                "name each column once: SELECT a.id, b.id AS other_id",
            )
        return result.schema

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what Spark says about a wrong statement into an error of the settings."""
        try:
            yield
        except (PySparkException, Py4JError) as error:
            raise errors.SettingsError(
                f"{self.place}: {readable(error)}",
                f"correct it; `{VIEW}` has the columns {', '.join(VISIBLE)}",
            ) from error


def session_for(spark: SparkSession) -> SparkSession:
    """Return a session of the same context for one transformation, with its own views."""
    # PySpark logs every error of a query, with the JVM's stack, before it raises it.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    session = spark.newSession()
    for name, value in CONF.items():
        session.conf.set(name, value)
    return session


def load_function(place: str, name: str) -> TransformFunction:
    """Return the function `package.module:function`, also from the current directory."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise errors.SettingsError(
            f"{place} is {name!r}, which does not name a function",
            'write package.module:function, for example python = "print_shop.events:orders"',
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # a console script does not look there by itself
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise errors.SettingsError(
            f"{place}: there is no module {error.name!r}",
            f"put it into {here} or install it, on the machine that runs instep",
        ) from error
    except Exception as error:
        raise errors.SettingsError(
            f"{place}: module {module_name!r} cannot be imported: {type(error).__name__}: {error}",
            "correct the module; importing it must not need a Spark session",
        ) from error
    function: Any = getattr(module, function_name, None)
    if function is None:
        known = [one for one, _ in inspect.getmembers(module, callable)]
        raise errors.SettingsError(
            f"{place}: module {module_name!r} has no function {function_name!r}"
            f"{nearest(function_name, known)}",
            "name a function that takes a DataFrame and returns a DataFrame",
        )
    if not callable(function):
        raise errors.SettingsError(
            f"{place}: {name} is {type(function).__name__}, not a function",
            "name a function that takes a DataFrame and returns a DataFrame",
        )
    # The workers may not find the module: its UDFs travel as a whole.
    with contextlib.suppress(ValueError):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return function  # type: ignore[no-any-return]


def readable(error: Exception) -> str:
    """Return what Spark says about an error, without its plan and stack."""
    lines = [line.strip() for line in str(error).splitlines()]
    message = itertools.takewhile(lambda line: not line.startswith(AFTER_MESSAGE), lines)
    return " ".join(filter(None, message)).rstrip(" ;")[:600]


def refuse_moved_rows(transformed: Transformed, place: str) -> None:
    """Refuse a plan that does not pass each row through one task in order.

    `Transformation.apply` has checked what the user wrote; this is what Spark makes of it. A plan
    of a streaming query exists only when the query runs, and cannot be checked before.
    """
    node = transformed.frame._jdf.queryExecution().executedPlan()
    while children := _items(node.children()):
        name = node.getClass().getSimpleName()
        if name in BROADCAST_JOINS:
            streamed = 1 if "BuildLeft" in node.buildSide().toString() else 0
            node = children[streamed]
        elif name in EXECUTED:
            [node] = children
        elif name.startswith(("SortMergeJoin", "ShuffledHashJoin", "CartesianProduct")):
            raise _refused(
                place,
                "a table that the records are joined with is too large to be sent to every task",
                "select fewer of its rows or columns, or hint it: /*+ BROADCAST(name) */",
            )
        else:
            raise _refused(place, f"Spark would execute it with {name}", REMEDY)
    if not transformed.source_ids & _ids(node):
        raise _refused(place, "Spark would send the records to every task", REMEDY)


def _visible(name: str, topic: str) -> Any:
    raw = {one: f"`{PREFIX}{one}`" for one in CARRIED}
    if name == "topic":
        return F.lit(topic).alias("topic")
    return F.expr(VISIBLE[name].format(topic="", **raw)).alias(name)


def _refuse_other_statements(place: str, spark: SparkSession, sql: str) -> None:
    """Refuse everything but a query: Spark would execute other statements at once."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    gateway = spark.sparkContext._gateway
    for kind in ("Command", "ParsedStatement", "CompoundBody"):
        if is_instance_of(gateway, plan, f"{_LOGICAL}.{kind}"):
            raise errors.SettingsError(
                f"{place} is not a query: it would be executed as {plan.nodeName()}",
                f"write one SELECT statement that reads `{VIEW}`",
            )


def _refused(place: str, why: str, remedy: str = REMEDY) -> errors.SettingsError:
    return errors.SettingsError(
        f"{place} cannot keep each record's place in the log: {why}", remedy
    )


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _ids(plan: Any) -> set[str]:
    """Return Spark's identities of the columns that a step yields."""
    return {attribute.exprId().toString() for attribute in _items(plan.output())}


def _names(plan: Any) -> tuple[str, ...]:
    """Return the names of the columns that a step yields."""
    return tuple(attribute.name() for attribute in _items(plan.output()))


def _references(part: Any) -> set[str]:
    """Return Spark's identities of the columns that a step or an expression uses."""
    return {one.exprId().toString() for one in _items(part.references().toSeq())}


def _conjuncts(condition: Any) -> list[Any]:
    """Return the parts of a condition that are joined by AND."""
    if condition.getClass().getSimpleName() != "And":
        return [condition]
    return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]


def _bottom_up(plan: Any) -> Iterator[Any]:
    """Yield the steps of a plan, each behind those that it takes its rows from."""
    for child in _items(plan.children()):
        yield from _bottom_up(child)
    yield plan


def _frame(spark: SparkSession, plan: Any) -> DataFrame:
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan), spark)


class _Reads(StrEnum):
    """Whether a part of a plan reads the records, or reads them a second time."""

    NOTHING = "nothing"
    RECORDS = "records"
    AGAIN = "again"


class _Rebuilding:
    """Rebuilds the analysed plan of a result with the carried columns in every step."""

    def __init__(
        self, place: str, source: DataFrame, visible: DataFrame, result: DataFrame
    ) -> None:
        self._place, self._spark = place, source.sparkSession
        jvm: Any = source.sparkSession._jvm
        self._jvm = jvm
        patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self._json_pattern = patterns.JSON_TO_STRUCT()
        self._reads_headers = False
        # CTEs are written out where they are used, so that the plan is a tree.
        inline = jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False)
        self._result = inline.apply(result._jdf.queryExecution().analyzed())
        seen, read = (one._jdf.queryExecution().analyzed() for one in (visible, source))
        if result._jdf.queryExecution().analyzed().containsPattern(patterns.CTE()):
            seen, read = self._copied(seen, read)
        self._carried, self._source_ids = _items(read.output()), _ids(read)
        self._visible_ids = _ids(seen)
        self._headers_id = _items(seen.output())[-1].exprId().toString()
        self.leaf_ids = frozenset().union(*map(_ids, _items(read.collectLeaves())))
        self._parses_once = self._uses_parsed()

    def _copied(self, visible: Any, source: Any) -> tuple[Any, Any]:
        """Return both steps as they are in the result.

        Spark writes out a copy of a CTE, with identities of its own, where another CTE uses it.
        """
        copies = []
        for node in _bottom_up(self._result):
            children = _items(node.children())
            if len(children) == 1 and _names(children[0]) == CARRIED_NAMES:
                copies.append((node, children[0]))
        return copies[0] if len(copies) == 1 else (visible, source)

    def plan(self) -> tuple[Any, bool]:
        """Return the plan, with the carried columns first, and whether it reads headers.

        Raises SettingsError if a step is not allowed.
        """
        plan, reads = self._carry(self._result, ())
        if reads is not _Reads.RECORDS:
            raise _refused(self._place, f"it does not read {VIEW}", f"read the rows from `{VIEW}`")
        self._refuse_indeterminate(plan)
        output = [*self._carried, *_items(self._result.output())]
        return self._project(output, plan), self._reads_headers

    def _carry(self, node: Any, later: Sequence[Any]) -> tuple[Any, _Reads]:
        """Return a step with the carried columns in its output, and what it reads.

        `later` are the conditions of the steps that follow it.
        """
        if self._source_ids <= _ids(node):
            return node, _Reads.RECORDS
        if any(one.name().startswith(PREFIX) for one in _items(node.output())):
            return node, _Reads.AGAIN
        name = node.getClass().getSimpleName()
        conditions = [*_conjuncts(node.condition()), *later] if name == "Filter" else later
        steps = [self._carry(child, conditions) for child in _items(node.children())]
        reads = [one for _, one in steps if one is not _Reads.NOTHING]
        if not reads:
            return node, _Reads.NOTHING
        if name == "Join" and len(reads) == 1:
            return self._join(node, steps), reads[0]
        if len(reads) > 1:
            raise _refused(self._place, REFUSED.get(name, f"it reads {VIEW} more than once"))
        if name == "Generate":
            self._refuse_generator(node)
        elif name not in ROW_BY_ROW:
            raise _refused(self._place, REFUSED.get(name, f"{name} is not known to keep it"))
        self._look_into(node)
        [(child, _)] = steps
        if name == "Project":
            if self._parses_once and self._parsed_ids(node):
                return self._parsed_once(node, child, later), reads[0]
            return self._carrying(node, child), reads[0]
        return node.withNewChildren(self._seq([child])), reads[0]

    def _uses_parsed(self) -> bool:
        """Return whether a later step drops rows by a column that was parsed from JSON.

        Spark takes `from_json` for cheap: it would move the condition below that earlier step, and
        parse each record twice. It moves nothing below the step `ReturnAnswer`, which does nothing.
        """
        if not self._result.containsPattern(self._json_pattern):
            return False
        parsed: set[str] = set()
        for node in _bottom_up(self._result):
            name = node.getClass().getSimpleName()
            if name == "Project":
                parsed |= self._parsed_ids(node, parsed)
            elif name in ("Filter", "Join", "Generate") and parsed & _references(node):
                return True
        return False

    def _parsed_ids(self, project: Any, before: Collection[str] = ()) -> set[str]:
        """Return the identities of columns that this step parses from JSON, or takes from these."""
        return {
            one.exprId().toString()
            for one in _items(project.projectList())
            if one.containsPattern(self._json_pattern) or not _references(one).isdisjoint(before)
        }

    def _parsed_once(self, project: Any, child: Any, later: Sequence[Any]) -> Any:
        """Return a step that parses JSON, and below which Spark moves no condition.

        Those of the later conditions that need only columns of the records are tested here too: a
        record that they drop must not fail because it cannot be parsed. Each row comes from one
        record, so they may be tested before any step. A condition with a UDF or a subquery is not
        tested here, and Spark cannot move it below this step any more either: all records are
        parsed before it, and one that cannot be parsed fails, also if the condition would drop it.
        """
        plans = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        for condition in later:
            used = _references(condition)
            if used and used <= self._visible_ids and not self._is_costly(condition):
                child = plans.Filter(self._unless_false(condition), child)
        return plans.ReturnAnswer(self._carrying(project, child))

    def _unless_false(self, condition: Any) -> Any:
        """Return a condition that drops what the given one drops, and nothing that it fails on.

        What fails here may be dropped by another condition that the statement tests first.
        """
        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        true, false = expressions.Literal.TrueLiteral(), expressions.Literal.FalseLiteral()
        # Null drops a row as well; after this, only a failure is null.
        decided = expressions.Coalesce(self._seq([condition, false]))
        return expressions.Coalesce(self._seq([expressions.TryEval(decided), true]))

    def _is_costly(self, condition: Any) -> bool:
        """Return whether a condition should not be tested twice, or could have two outcomes."""
        patterns = self._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        costly = (
            self._json_pattern,
            patterns.PLAN_EXPRESSION(),
            patterns.PYTHON_UDF(),
            patterns.SCALA_UDF(),
        )
        return not condition.deterministic() or any(map(condition.containsPattern, costly))

    def _join(self, node: Any, steps: Sequence[tuple[Any, _Reads]]) -> Any:
        [streamed] = [side for side, (_, reads) in enumerate(steps) if reads is not _Reads.NOTHING]
        kind = node.joinType().toString()
        if streamed not in STREAMED_SIDES.get(kind, ()):
            raise _refused(
                self._place,
                f"a join of type {kind} yields rows without a record",
                f"put {VIEW} on the left: FROM {VIEW} LEFT JOIN …",
            )
        self._look_into(node)
        children = [child for child, _ in steps]
        static = children[1 - streamed]
        if static.isStreaming():
            raise _refused(self._place, "a join with another stream has to keep records")
        # Sent to every task: the records stay where they are, in their order.
        hinted = F.broadcast(_frame(self._spark, static))
        children[1 - streamed] = hinted._jdf.queryExecution().analyzed()
        return node.withNewChildren(self._seq(children))

    def _look_into(self, node: Any) -> None:
        """Look into the expressions of a step."""
        self._reads_headers = self._reads_headers or self._headers_id in _references(node)
        if any(self._reads_again(plan) for plan in _items(node.subqueriesAll())):
            raise _refused(self._place, f"a subquery reads {VIEW} more than once")

    def _reads_again(self, plan: Any) -> bool:
        names = [attribute.name() for attribute in _items(plan.output())]
        return any(name.startswith(PREFIX) for name in names) or any(
            map(self._reads_again, _items(plan.children()))
        )

    def _refuse_generator(self, node: Any) -> None:
        name = node.generator().getClass().getSimpleName()
        if name not in GENERATORS:
            raise _refused(self._place, f"{name} is not known to keep it", "use explode or inline")

    def _refuse_indeterminate(self, plan: Any) -> None:
        pattern = self._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        if plan.containsPattern(pattern):
            raise errors.SettingsError(
                f"{self._place} uses the current time, user or catalog:"
                " a replay would compute something else",
                f"use the column `timestamp` of `{VIEW}`, the time of the record",
            )
        if not plan.deterministic():
            raise errors.SettingsError(
                f"{self._place} depends on chance (rand, uuid, monotonically_increasing_id, or a"
                " UDF that is marked so): a replay would compute something else",
                "derive the value from the record: sha2(concat(key, value), 256), or `offset`"
                " and `partition`",
            )

    def _carrying(self, project: Any, child: Any) -> Any:
        return self._project([*_items(project.projectList()), *self._carried], child)

    def _project(self, columns: Sequence[Any], child: Any) -> Any:
        logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        return logical.Project(self._seq(columns), child)

    def _seq(self, items: Sequence[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(list(items))
