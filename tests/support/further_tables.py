"""A database with the three tables of `further_model.py`, and the pipeline that writes them."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from instep import settings, sinks
from instep.document.decoding import Record
from instep.sinks import inspection, preparation
from instep.sinks.sink import Sink
from tests.support.databases import declare, run_sql
from tests.support.further_model import LIMIT, Change, FurtherModel
from tests.support.transactions import begun, event, record

TABLES = ("rows", "lines", "highest")
COLUMNS = {
    "rows": "version BIGINT, status VARCHAR(40), amount BIGINT",
    "lines": "version BIGINT NOT NULL, status VARCHAR(40), amount BIGINT",
    "highest": "amount BIGINT, status VARCHAR(40)",
}
EXACT = {"mysql": " COLLATE utf8mb4_0900_bin", "mariadb": " COLLATE utf8mb4_nopad_bin"}


class Configuration(msgspec.Struct, frozen=True):
    """How the tables are declared: see `FurtherModel`; with `parent`, by foreign keys."""

    every: bool = False
    deleting: bool = True
    limited: frozenset[str] = frozenset()
    parent: bool = False

    def pipeline(self, url: str) -> settings.Pipeline:
        amount = {"status": "status", "amount": "amount"}
        lines = {
            "table": "doc_lines",
            "line_key": "version",
            "columns": {"version": "version", **amount},
            "deletes": "row" if self.deleting else "ignore",
            **({"order": "version"} if self.every else {}),
        }
        return declare(
            url,
            table="doc_rows",
            columns={"version": "version", **amount},
            tables=[lines, {"table": "doc_highest", "order": "amount", "columns": amount}],
        )

    def create(self, url: str) -> None:
        """Create all tables, and begin the ledger."""
        for name in TABLES:
            run_sql(url, self._statement(url, name))
        preparation.prepare(self.pipeline(url))
        begun(self.sink(url)).close()

    def sink(self, url: str) -> Sink:
        return sinks.open_sink(inspection.inspect("contracts", self.pipeline(url)))

    def model(self) -> FurtherModel:
        return FurtherModel(every=self.every, deleting=self.deleting, limited=self.limited)

    def _statement(self, url: str, name: str) -> str:
        charset = EXACT.get(url.partition(":")[0], "")
        kind = f"VARCHAR(100){charset and ' CHARACTER SET utf8mb4'}{charset}"
        parts = [f"doc_no {kind} NOT NULL", COLUMNS[name]]
        parts.append(f"PRIMARY KEY ({'doc_no, version' if name == 'lines' else 'doc_no'})")
        if name in self.limited:
            parts.append(f"CHECK (amount < {LIMIT})")
        if self.parent and name != "rows":
            parts.append("FOREIGN KEY (doc_no) REFERENCES doc_rows (doc_no)")
        return f"CREATE TABLE doc_{name} ({', '.join(parts)})"


CONFIGURATIONS = (
    Configuration(),
    Configuration(every=True, deleting=False),
    Configuration(every=True, limited=frozenset({"lines"})),
    Configuration(limited=frozenset({"rows", "highest"}), parent=True),
)


def records_of(changes: list[Change], offset: int, prefix: str = "") -> list[Record]:
    """Return records from an offset on; the documents' ids begin with the prefix."""
    found = []
    for number, change in enumerate(changes, offset):
        document = f"{prefix}{change.document}"
        if change.is_delete:
            found.append(record(number, document, None))
        else:
            status = change.status or ""
            found.append(event(number, document, change.version, status, amount=change.amount))
    return found


def random_changes(dice: random.Random, count: int, documents: str = "abcdefgh") -> list[Change]:
    """Return events of which most are new."""
    return [
        Change(
            dice.choice(documents),
            dice.randrange(12),
            LIMIT if dice.random() < 0.03 else dice.randrange(9),
            None if dice.random() < 0.08 else dice.choice(["NEW", "SENT"]),
        )
        for _ in range(count)
    ]


def stored(url: str, prefix: str = "") -> tuple[dict[Any, Any], ...]:
    """Return the rows of documents with a prefix, of each table by key, and those parked."""
    found = []
    for query, width in (
        ("SELECT doc_no, version, status, amount FROM doc_rows", 1),
        ("SELECT doc_no, version, status, amount FROM doc_lines", 2),
        ("SELECT doc_no, amount, status FROM doc_highest", 1),
    ):
        rows = run_sql(url, f"{query} WHERE doc_no LIKE '{prefix}%'")
        named = [(row[0].removeprefix(prefix), *row[1:]) for row in rows]
        found.append({row[0] if width == 1 else row[:width]: tuple(row[width:]) for row in named})
    waiting = run_sql(
        url, f"SELECT DISTINCT document FROM instep_parked WHERE document LIKE '{prefix}%'"
    )
    return (*found, {row[0].removeprefix(prefix): None for row in waiting})


def expected(model: FurtherModel) -> tuple[dict[Any, Any], ...]:
    """Return what `stored` must return."""
    return model.rows, model.lines, model.highest, dict.fromkeys(model.parked)
