"""A streaming source in Python, in a module of its own, which Spark's workers import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader


class CountingReader(SimpleDataSourceStreamReader):
    """Three rows at a time, up to nine."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"next": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        end = min(start["next"] + 3, 9)
        return iter([(number,) for number in range(start["next"], end)]), {"next": end}

    def readBetweenOffsets(  # noqa: N802
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(start["next"], end["next"])])


class Counting(DataSource):
    """A source without a name of its own: Spark shows the address of an object."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def schema(self) -> str:
        return "order_id int"

    def simpleStreamReader(self, schema: Any) -> CountingReader:  # noqa: N802
        return CountingReader()
