"""Target tables of every shape, in each database."""

from __future__ import annotations

from tests.support.databases import run_sql

KEY = {
    "sqlite": "doc_no VARCHAR(40) NOT NULL PRIMARY KEY",
    "postgresql": "doc_no VARCHAR(40) NOT NULL PRIMARY KEY",
    "mariadb": (
        "doc_no VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL PRIMARY KEY"
    ),
    "mysql": (
        "doc_no VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin NOT NULL PRIMARY KEY"
    ),
}


# a target table with a foreign key, and its parent table
BATCHES = [
    "CREATE TABLE batch (id VARCHAR(20) NOT NULL PRIMARY KEY)",
    "INSERT INTO batch VALUES ('known')",
    "CREATE TABLE contract_document (doc_no VARCHAR(40) NOT NULL PRIMARY KEY,"
    " print_status VARCHAR(20), print_version BIGINT,"
    " batch VARCHAR(20), FOREIGN KEY (batch) REFERENCES batch (id))",
]

REST = "print_status VARCHAR(20), print_version BIGINT, printed_at TIMESTAMP NULL"


def kind_of(url: str) -> str:
    return url.partition(":")[0]


def make(url: str, rest: str = REST, key: str | None = None) -> None:
    run_sql(url, f"CREATE TABLE contract_document ({key or KEY[kind_of(url)]}, {rest})")
