"""Transformations: what they yield, where it comes from, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from instep import errors
from instep.pipeline import transformation
from instep.pipeline.transformation import Transformation, Transformed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE = "pipelines.contracts.transform"
RECORDS = [
    (0, 1, 1_000, b"A", b'{"n": 1, "items": ["x", "y"]}', [("h", b"1"), ("h", b"2")]),
    (0, 2, 2_000, b"B", b'{"n": 2, "items": []}', None),
    (1, 7, -1, b"C", b"\xff", None),
]
MODULE = """
from pyspark.sql import functions as F

number = 3

def copied(records):
    return records.where("offset < 3").select(F.col("key").alias("doc_no"))

def aliased(records):
    kept = records.alias("r").where("r.key <> 'C'").select("r.key", "r.value").alias("k")
    parsed = kept.select("k.key", F.from_json("k.value", "n INT").alias("d")).alias("p")
    return parsed.where("p.d.n > 1 AND p.key < 'C'").select("p.d.n")

def shouted(records):
    shout = F.udf(lambda text: text.upper() + "!", "string")
    return records.where("offset < 3").select(shout("value").alias("loud"))

def counted(records):
    return records.groupBy("key").count()

def broken(records):
    return records.nowhere.fast

def shapeless(records):
    return 4
"""


@pytest.fixture
def records(spark: SparkSession) -> DataFrame:
    session = transformation.session_for(spark)
    session.createDataFrame([(1, "one"), (2, "two")], "n int, name string").createOrReplaceTempView(
        "names"
    )
    return session.createDataFrame(RECORDS, transformation.CARRIED_SCHEMA).coalesce(1)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module of functions to the current directory and return its name."""
    name = f"functions_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def transformed(records: DataFrame, **declared: str) -> Transformed:
    result = Transformation(PLACE, **declared).apply(records, "print-status")
    transformation.refuse_moved_rows(result, PLACE)
    return result


def rows(records: DataFrame, **declared: str) -> list[tuple[Any, ...]]:
    """Return offset and own columns of the results of the first two records."""
    frame = transformed(records.where("offset < 3"), **declared).frame
    carried = len(transformation.CARRIED)
    return [(row[1], *row[carried:]) for row in frame.collect()]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT topic, key FROM records", [(1, "print-status", "A"), (2, "print-status", "B")]),
        ("SELECT key FROM records WHERE offset = 2", [(2, "B")]),
        (
            "SELECT d.n, item FROM (SELECT from_json(value, 'n INT, items ARRAY<STRING>') AS d"
            " FROM records) LATERAL VIEW explode(d.items) AS item",
            [(1, 1, "x"), (1, 1, "y")],
        ),
        (
            "SELECT explode(array(2, 1)) AS n, key FROM records",
            [(1, 2, "A"), (1, 1, "A"), (2, 2, "B"), (2, 1, "B")],
        ),
        (
            "WITH parsed AS (SELECT from_json(value, 'n INT').n AS n FROM records)"
            " SELECT name FROM parsed JOIN names USING (n)",
            [(1, "one"), (2, "two")],
        ),
        (
            "SELECT key, name FROM records LEFT JOIN names ON n = offset AND n > 1",
            [(1, "A", None), (2, "B", "two")],
        ),
        ("SELECT key FROM names JOIN records ON n = offset", [(1, "A"), (2, "B")]),
        ("SELECT key FROM records WHERE offset IN (SELECT n FROM names WHERE n > 1)", [(2, "B")]),
        (
            "SELECT (SELECT max(name) FROM names WHERE n = offset) AS m FROM records",
            [(1, "one"), (2, "two")],
        ),
        ("SELECT headers['h'] AS h FROM records", [(1, "2"), (2, None)]),
    ],
)
def test_each_row_has_the_record_it_comes_from(
    records: DataFrame, sql: str, expected: list[Any]
) -> None:
    assert rows(records, sql=sql) == expected


def test_a_function_of_the_current_directory_transforms(records: DataFrame, module: str) -> None:
    assert rows(records, python=f"{module}:copied") == [(1, "A"), (2, "B")]


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_a_udf_needs_no_module_in_the_workers(records: DataFrame, module: str) -> None:
    values = [row[4].decode().upper() + "!" for row in RECORDS[:2]]
    assert rows(records, python=f"{module}:shouted") == [(1, values[0]), (2, values[1])]


def test_headers_are_read_only_if_they_are_used(records: DataFrame) -> None:
    assert transformed(records, sql="SELECT headers FROM records").reads_headers
    assert not transformed(records, sql="SELECT key FROM records").reads_headers


def test_text_that_is_not_utf8_fails_where_it_is_used(records: DataFrame) -> None:
    third = transformed(records, sql="SELECT key, value_bytes IS NULL AS gone FROM records").frame
    assert third.where("__instep_offset = 7").count() == 1
    third = transformed(records, sql="SELECT value FROM records").frame
    with pytest.raises(Exception, match="INVALID_UTF8_STRING"):
        third.collect()


PARSED = "(SELECT *, from_json(value, 'n INT, items ARRAY<STRING>') AS d FROM records)"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (f"SELECT d.* FROM {PARSED} WHERE d.n > 1", [(2, 2, [])]),
        (f"SELECT n FROM (SELECT d.n AS n FROM {PARSED}) WHERE n > 1", [(2, 2)]),
        (
            f"SELECT d.n, item FROM {PARSED} LATERAL VIEW explode(d.items) AS item",
            [(1, 1, "x"), (1, 1, "y")],
        ),
        (f"SELECT key, d.n, name FROM {PARSED} JOIN names ON names.n = d.n", None),
        (
            f"SELECT item, name FROM (SELECT * FROM {PARSED} LATERAL VIEW OUTER explode(d.items)"
            " AS item) LEFT JOIN names ON names.n = d.n"
            " WHERE d.n > 0 AND key <> 'A' AND name <> 'one'",
            [(2, None, "two")],
        ),
    ],
)
def test_each_record_is_parsed_once(
    records: DataFrame, sql: str, expected: list[Any] | None
) -> None:
    plan = transformed(records, sql=sql).frame._jdf.queryExecution().executedPlan().toString()
    assert plan.count("from_json(") == 1
    assert rows(records, sql=sql) == (expected or [(1, "A", 1, "one"), (2, "B", 2, "two")])


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "WITH kept AS (SELECT value FROM records WHERE key <> 'C'),"
            " parsed AS (SELECT from_json(value, 'n INT') AS d FROM kept)"
            " SELECT d.n FROM parsed WHERE d.n > 1",
            [2],
        ),
        (
            "WITH kept AS (SELECT value, offset AS o FROM records WHERE key <> 'C'),"
            " first AS (SELECT o, from_json(value, 'n INT, items STRING') AS d FROM kept),"
            " second AS (SELECT d.n, from_json(d.items, 'ARRAY<STRING>') AS items FROM first"
            " WHERE d.n > 0 AND o < 7)"
            " SELECT n FROM second WHERE size(items) > 0",
            [1],
        ),
    ],
)
def test_a_condition_may_use_a_column_that_is_projected_away(
    records: DataFrame, sql: str, expected: list[int]
) -> None:
    frame = transformed(records, sql=sql).frame
    assert [row.n for row in frame.collect()] == expected


def test_a_function_may_name_its_steps(records: DataFrame, module: str) -> None:
    frame = transformed(records, python=f"{module}:aliased").frame
    assert [row.n for row in frame.collect()] == [2]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("d.n > 5 AND CAST(key AS BIGINT) > 5", []),
        ("d.n > 5 AND CAST(key AS BIGINT) > 5 AND headers['h'] = '2'", []),
        ("offset = 2 AND (d.n = 1 AND CAST(key AS BIGINT) > 5 OR d.n = 2)", [2]),
    ],
)
def test_a_condition_fails_only_for_a_record_that_reaches_it(
    records: DataFrame, condition: str, expected: list[int]
) -> None:
    sql = f"SELECT d.n FROM {PARSED} WHERE {condition}"
    frame = transformed(records.where("offset < 3"), sql=sql).frame
    assert [row.n for row in frame.collect()] == expected


def test_a_condition_that_fails_for_a_record_that_reaches_it_fails(records: DataFrame) -> None:
    sql = f"SELECT d.n FROM {PARSED} WHERE d.n > 1 AND CAST(key AS BIGINT) > 5"
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        transformed(records.where("offset < 3"), sql=sql).frame.collect()


@pytest.mark.parametrize(
    "condition",
    [
        "offset < 7 AND d.n > 0",
        "d.n > 0 AND timestamp < '2000-01-01'",  # of the third record it is null
        "d.n > 0 AND key <> 'C'",
        "d.n IS NOT NULL AND (offset < 2 OR key = 'B')",
        "d.n > 0 AND (d.n < 0 OR offset >= 0) AND partition = 0",
    ],
)
def test_a_record_that_the_statement_leaves_out_is_not_parsed(
    records: DataFrame, condition: str
) -> None:
    """The third record is no text in UTF-8."""
    sql = f"SELECT key, d.n, topic FROM {PARSED} WHERE {condition}"
    frame = transformed(records, sql=sql).frame
    assert [row.n for row in frame.collect()] == [1, 2]


def test_a_condition_with_a_subquery_is_tested_after_the_record_is_parsed(
    records: DataFrame,
) -> None:
    sql = f"SELECT key, d.n FROM {PARSED} WHERE d.n > 0 AND offset IN (SELECT n FROM names)"
    with pytest.raises(Exception, match="INVALID_UTF8_STRING"):
        transformed(records, sql=sql).frame.collect()
    frame = transformed(records.where("offset < 3"), sql=sql).frame
    assert [row.n for row in frame.collect()] == [1, 2]


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELECT count(*) FROM records", "an aggregation combines several records"),
        ("SELECT DISTINCT key FROM records", "DISTINCT compares several records"),
        ("SELECT key FROM records ORDER BY key", "ORDER BY changes the order of records"),
        ("SELECT key FROM records SORT BY key", "ORDER BY changes the order of records"),
        ("SELECT key FROM records LIMIT 3", "LIMIT drops records"),
        ("SELECT key FROM records CLUSTER BY key", "move"),
        ("SELECT /*+ REPARTITION(3) */ key FROM records", "move"),
        ("SELECT key, max(offset) OVER (PARTITION BY key) AS m FROM records", "a window combines"),
        ("SELECT key FROM records UNION ALL SELECT key FROM records", "UNION reads the records"),
        ("SELECT a.key FROM records a JOIN records b ON a.key = b.key", "more than once"),
        ("SELECT key FROM records WHERE key IN (SELECT key FROM records)", "more than once"),
        ("SELECT n FROM names LEFT JOIN records ON n = offset", "yields rows without a record"),
        ("SELECT n FROM names FULL JOIN records ON n = offset", "yields rows without a record"),
        ("SELECT key, rand() AS r FROM records", "depends on chance"),
        ("SELECT key, now() AS n FROM records", "uses the current time"),
        ("SELECT n FROM names", "does not read records"),
        ("SELECT key, key FROM records", "several columns named 'key'"),
        ("SELECT keyy FROM records", "`keyy` cannot be resolved"),
        ("SELCT key FROM records", "Syntax error at or near 'SELCT'"),
        ("DROP TABLE names", "is not a query"),
        ("INSERT INTO names SELECT 1, key FROM records", "is not a query"),
        ("SELECT key FROM records TABLESAMPLE (10 PERCENT)", "a sample depends on chance"),
    ],
)
def test_what_breaks_the_place_in_the_log_is_refused(
    records: DataFrame, sql: str, what: str
) -> None:
    with pytest.raises(errors.SettingsError) as caught:
        transformed(records, sql=sql)
    assert what in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("counted", "an aggregation combines several records"),
        ("broken", "nowhere"),
        ("shapeless", "returned int, not a DataFrame"),
        ("number", "is int, not a function"),
        ("coppied", "did you mean 'copied'?"),
    ],
)
def test_wrong_functions_are_refused(
    records: DataFrame, module: str, function: str, what: str
) -> None:
    with pytest.raises(errors.SettingsError) as caught:
        transformed(records, python=f"{module}:{function}")
    assert what in caught.value.what


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("nowhere.to.be.found:f", "there is no module 'nowhere'"),
        ("functions", "does not name a function"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_refused(name: str, what: str) -> None:
    with pytest.raises(errors.SettingsError) as caught:
        Transformation(PLACE, python=name)
    assert what in caught.value.what
