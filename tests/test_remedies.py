"""Test that every error has a remedy: its own, or the default of its type."""

from __future__ import annotations

import ast
import inspect
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pymysql
import pytest
from confluent_kafka import KafkaError

from instep import errors
from instep.kafka import faults
from instep.sinks import mysql, postgres, sqlite, target

ROOT = Path(__file__).parent.parent
KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.InstepError)
]
# errors for which a generic remedy would not help: each is always raised with its own
OWN_WORDS = {"SettingsError", "MissingPart", "NotAuthorised", "TargetUnfit", "TopicMissing"}
POSTGRES = target.database_url("postgresql://app:hush@127.0.0.1:1/contracts")
MYSQL = target.database_url("mysql://app:hush@127.0.0.1:1/contracts")
SQLITE = target.database_url("sqlite:////data/contracts.db")


def sound(error: errors.InstepError | None) -> errors.InstepError:
    assert error is not None
    assert error.what
    assert error.remedy
    assert "hush" not in str(error)
    return error


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_type_has_a_default_remedy(kind: type[errors.InstepError]) -> None:
    assert sound(kind("x")).remedy == kind.usual_remedy
    assert sound(kind("x", "do this")).remedy == "do this"


def _raised(tree: ast.AST) -> Iterator[tuple[str, int, ast.Call]]:
    """Yield every call that makes one of the errors, by name and line."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="errors"), attr=name)) if (
                name in OWN_WORDS
            ):
                yield name, node.lineno, node


def test_settings_errors_and_missing_parts_have_their_own_remedy() -> None:
    without = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for package in ("instep", "instep_lab", "instep_bench")
        for file in sorted((ROOT / package).rglob("*.py"))
        for name, line, call in _raised(ast.parse(file.read_text(encoding="utf-8")))
        if len(call.args) + len(call.keywords) < 2
        and not any(isinstance(argument, ast.Starred) for argument in call.args)
    ]
    assert without == []


def _postgres_errors() -> dict[str, type[psycopg.Error]]:
    found = [
        kind
        for _, kind in inspect.getmembers(psycopg.errors, inspect.isclass)
        if issubclass(kind, psycopg.Error)
    ]
    return {kind.sqlstate: kind for kind in found if kind.sqlstate}


def test_every_error_of_postgresql_has_a_remedy() -> None:
    known = _postgres_errors()
    for code in postgres.CODES:
        assert any(state.startswith(code) for state in known), code
    for state, kind in known.items():
        error = sound(postgres.translate(kind("a message"), POSTGRES))
        assert state in error.what
        assert "postgresql://app:***@127.0.0.1:1/contracts" in error.what
    assert isinstance(postgres.translate(known["3D000"]("x"), POSTGRES), errors.DatabaseMissing)
    for without_state in (
        psycopg.OperationalError("gone"),
        psycopg.InterfaceError("closed"),
        psycopg.DataError("odd"),
    ):
        sound(postgres.translate(without_state, POSTGRES))


def test_every_error_of_mysql_has_a_remedy() -> None:
    for code in (*mysql.CODES, 0, 9999):
        for kind in (
            pymysql.err.OperationalError,
            pymysql.err.IntegrityError,
            pymysql.err.ProgrammingError,
        ):
            sound(mysql.translate(kind(code, "a message"), MYSQL))
    sound(mysql.translate(pymysql.err.InterfaceError("closed"), MYSQL))
    assert isinstance(
        mysql.translate(pymysql.err.OperationalError(1049, "x"), MYSQL), errors.DatabaseMissing
    )


def test_every_error_of_sqlite_has_a_remedy() -> None:
    for code in (*sqlite.CODES, sqlite3.SQLITE_INTERNAL):
        raised = sqlite3.OperationalError("a message")
        raised.sqlite_errorcode = code
        sound(sqlite.translate(raised, SQLITE))
    sound(sqlite.translate(sqlite3.ProgrammingError("closed"), SQLITE))


@pytest.mark.parametrize("topic", [None, "print-status"])
def test_every_error_of_kafka_has_a_remedy(topic: str | None) -> None:
    operation = faults.Operation(
        "read records", "broker:9092", faults.ClientIdentity("app"), topic, "contracts", 3.0, "READ"
    )
    for code in (*faults.MEANING, KafkaError.UNKNOWN):
        sound(faults.translate(KafkaError(code), operation))


def test_the_remedy_for_a_misspelt_topic_does_not_create_it() -> None:
    error = sound(faults.topic_missing("print-staus", "broker:9092", ["print-status", "other"]))
    assert "did you mean 'print-status'?" in error.what
    assert error.remedy.startswith("correct the name of the topic")
    assert faults.topic_missing("invoices", "broker:9092", ["other"]).remedy.startswith(
        "instep topics create invoices"
    )
