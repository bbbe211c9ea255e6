"""Test the outbox with every kind of connection: the row is part of the caller's transaction."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from instep import Outbox, OutboxColumns, StatusEvent, errors, settings, sources
from instep.sinks import connecting, target
from instep.sources import tables
from tests.support.databases import run_sql

ROOT = Path(__file__).parents[2]
EVENT = StatusEvent(document="C-1", status="PRINTED", version=3, fields={"place": "Zürich"})
VALUE = {"doc_id": "C-1", "status": "PRINTED", "version": 3, "place": "Zürich"}
REFUSED = "the connection has no transaction"


@pytest.fixture
def outbox_url(new_database: Callable[[str], str], request: pytest.FixtureRequest) -> str:
    """Return a database with an outbox."""
    url = new_database(request.param)
    tables.prepare(settings.Relay(source=url, topic="t"), "r")
    return url


def stored(url: str) -> list[tuple[str, Any, Any]]:
    """Return document, decoded value and headers of every row, in order."""
    rows = run_sql(url, "SELECT document, value, headers FROM instep_outbox ORDER BY id")
    return [
        (document, None if value is None else json.loads(bytes(value)), headers)
        for document, value, headers in rows
    ]


def use(connection: Any) -> None:
    """Add an event that is rolled back, then an event and a delete that are committed."""
    outbox = Outbox()
    outbox.add(connection, EVENT)
    connection.rollback()
    outbox.add(connection, EVENT)
    outbox.delete(connection, "C-2", headers={"trace": "7"})
    connection.commit()


BOTH = [("C-1", VALUE, None), ("C-2", None, '{"trace":"7"}')]


@pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)
def test_sqlite3(outbox_url: str) -> None:
    file = outbox_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file)) as connection:
        use(connection)
    assert stored(outbox_url) == BOTH
    with (
        closing(sqlite3.connect(file, isolation_level=None)) as connection,
        pytest.raises(errors.SettingsError, match=REFUSED),
    ):
        Outbox().add(connection, EVENT)


@pytest.mark.parametrize("outbox_url", ["postgres"], indirect=True)
def test_postgres_drivers(outbox_url: str) -> None:
    with psycopg.connect(outbox_url) as connection:
        use(connection)
    assert stored(outbox_url) == BOTH
    with psycopg.connect(outbox_url, autocommit=True) as connection:
        with pytest.raises(errors.SettingsError, match=REFUSED):
            Outbox().add(connection, EVENT)
        with connection.transaction():
            Outbox().add(connection, EVENT)
    with closing(psycopg2.connect(outbox_url)) as other:
        use(other)
    assert len(stored(outbox_url)) == 5


@pytest.mark.parametrize("outbox_url", ["mariadb"], indirect=True)
def test_mysql_driver(outbox_url: str) -> None:
    parts = urlparse(outbox_url)
    arguments: dict[str, Any] = {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "database": parts.path[1:],
    }
    with closing(pymysql.connect(**arguments)) as connection:
        use(connection)
    assert stored(outbox_url) == BOTH
    with closing(pymysql.connect(**arguments, autocommit=True)) as connection:
        with pytest.raises(errors.SettingsError, match=REFUSED):
            Outbox().add(connection, EVENT)
        connection.begin()
        Outbox().add(connection, EVENT)
        connection.commit()
    assert len(stored(outbox_url)) == 3


@pytest.mark.parametrize("outbox_url", ["sqlite", "postgres", "mariadb"], indirect=True)
def test_sqlalchemy(outbox_url: str) -> None:
    url = outbox_url.replace("postgresql:", "postgresql+psycopg:").replace(
        "mariadb:", "mariadb+pymysql:"
    )
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            use(connection)
        with Session(engine) as session:
            use(session)
    finally:
        engine.dispose()
    assert stored(outbox_url) == BOTH + BOTH


@pytest.mark.parametrize("outbox_url", ["sqlite", "postgres", "mariadb"], indirect=True)
def test_sqlalchemy_in_autocommit_is_refused(outbox_url: str) -> None:
    url = outbox_url.replace("postgresql:", "postgresql+psycopg:").replace(
        "mariadb:", "mariadb+pymysql:"
    )
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    plain = sa.create_engine(url)
    optional = plain.execution_options(isolation_level="AUTOCOMMIT")
    try:
        for one in (engine, optional):
            with one.connect() as connection:
                with pytest.raises(errors.SettingsError, match=REFUSED):
                    Outbox().add(connection, EVENT)
                assert not connection.in_transaction()
            with Session(one) as session, pytest.raises(errors.SettingsError, match=REFUSED):
                Outbox().add(session, EVENT)
        with (
            closing(engine.raw_connection()) as raw,
            pytest.raises(errors.SettingsError, match=REFUSED),
        ):
            Outbox().add(raw, EVENT)
        with closing(plain.raw_connection()) as raw:
            use(raw)
        with plain.connect() as connection:
            use(connection)
    finally:
        engine.dispose()
        plain.dispose()
    assert stored(outbox_url) == BOTH + BOTH


class Base(DeclarativeBase):
    pass


class Job(Base):
    __tablename__ = "job"

    id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str]


def statements_of(engine: sa.Engine) -> list[str]:
    """Return a list to which the first two words of every statement will be added."""
    found: list[str] = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def listen(_c: Any, _r: Any, statement: str, *_: Any) -> None:
        found.append(" ".join(statement.split()[:2]))

    return found


CREATE_JOB = "CREATE TABLE job (id varchar(9) PRIMARY KEY, status varchar(9))"


@pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("autoflush", [True, False])
def test_a_session_is_flushed_before_its_event_is_added(outbox_url: str, autoflush: bool) -> None:
    """The document's row must be locked before the event gets its id."""
    run_sql(outbox_url, CREATE_JOB, "INSERT INTO job VALUES ('C-1', 'NEW')")
    engine = sa.create_engine(outbox_url)
    found = statements_of(engine)
    with Session(engine, autoflush=autoflush) as session:
        session.get_one(Job, "C-1").status = "PRINTED"
        Outbox().add(session, EVENT)
        session.delete(session.get_one(Job, "C-1"))
        Outbox().delete(session, "C-1")
        session.commit()
    engine.dispose()
    changes = [one for one in found if not one.startswith("SELECT")]
    assert changes == ["UPDATE job", "INSERT INTO", "DELETE FROM", "INSERT INTO"]


@pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)
def test_a_session_of_asyncio_is_flushed_before_its_event_is_added(outbox_url: str) -> None:
    run_sql(outbox_url, CREATE_JOB, "INSERT INTO job VALUES ('C-1', 'NEW')")
    engine = create_async_engine(outbox_url.replace("sqlite:", "sqlite+aiosqlite:"))
    found = statements_of(engine.sync_engine)

    async def main() -> None:
        async with AsyncSession(engine) as session:
            (await session.get_one(Job, "C-1")).status = "PRINTED"
            await Outbox().add_async(session, EVENT)
            await session.commit()
        await engine.dispose()

    asyncio.run(main())
    assert [one for one in found if not one.startswith("SELECT")] == ["UPDATE job", "INSERT INTO"]


class UnknownConnection:
    """A connection of a driver that no code here knows. It has only what DB-API demands."""

    def __init__(self, opened: sqlite3.Connection, *, autocommit: bool) -> None:
        self._opened, self.autocommit = opened, autocommit
        self.commit = opened.commit

    def cursor(self) -> Any:
        return self._opened.cursor()


def test_unknown_drivers_in_autocommit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tests"], "paramstyle", "qmark", raising=False)
    with closing(sqlite3.connect(":memory:")) as opened:
        opened.execute("CREATE TABLE instep_outbox (document TEXT, value BLOB)")
        with pytest.raises(errors.SettingsError, match=REFUSED):
            Outbox().add(UnknownConnection(opened, autocommit=True), EVENT)
        Outbox().add(UnknownConnection(opened, autocommit=False), EVENT)
        assert opened.execute("SELECT document FROM instep_outbox").fetchall() == [("C-1",)]


@pytest.mark.parametrize("outbox_url", ["postgres"], indirect=True)
def test_an_application_needs_only_the_right_to_insert(outbox_url: str) -> None:
    role = f"app_{uuid.uuid4().hex[:8]}"
    run_sql(outbox_url, f"CREATE ROLE {role}", f"GRANT {role} TO CURRENT_USER")
    run_sql(outbox_url, f"GRANT INSERT ON instep_outbox TO {role}")
    with psycopg.connect(outbox_url) as connection:
        connection.execute(f"SET ROLE {role}")
        Outbox().add(connection, EVENT)
    assert len(stored(outbox_url)) == 1
    run_sql(outbox_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


JSON_TABLES = {
    "postgres": "CREATE TABLE events (id bigserial PRIMARY KEY, document text, value {type},"
    " headers text, xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
    "mysql": "CREATE TABLE events (id bigint AUTO_INCREMENT PRIMARY KEY, document varchar(255),"
    " value {type}, headers json)",
}


@pytest.mark.parametrize(
    ("kind", "type_"), [("postgres", "jsonb"), ("postgres", "text"), ("mysql", "json")]
)
def test_a_column_of_json_takes_events_as_text(
    kind: str, type_: str, new_database: Callable[[str], str]
) -> None:
    """Use what JSON escapes: a quote, a backslash, a line break."""
    url = new_database(kind)
    run_sql(url, JSON_TABLES[kind].format(type=type_))
    fields = {"place": 'Zürich "C:\\"\n'}
    event = StatusEvent(document="C-1", status="PRINTED", version=3, fields=fields)
    engine = connecting.create_engine(target.database_url(url))
    outbox = Outbox("events", as_text=True)
    with engine.begin() as connection:
        outbox.add(connection, event)
        outbox.delete(connection, "C-2")
    if kind == "postgres":
        with psycopg.connect(url) as plain, closing(psycopg2.connect(url)) as other:
            outbox.add(plain, event)
            outbox.add(other, event)
            other.commit()
    engine.dispose()
    relay = settings.Relay(source=url, topic="t", outbox="events")
    tables.prepare(relay, "r")
    reader = sources.open_reader(relay, "r")
    batch = reader.next(10)
    reader.close()
    assert batch is not None
    values = [row.value and json.loads(row.value) for row in batch.rows]
    assert values[:2] == [{**VALUE, **fields}, None]
    assert values[2:] == [{**VALUE, **fields}] * (2 if kind == "postgres" else 0)


def connect_mysql_connector(**arguments: Any) -> Any:
    driver: Any = pytest.importorskip("mysql.connector")
    return driver.connect(**arguments, use_pure=True)


def connect_mysqldb(**arguments: Any) -> Any:
    driver: Any = pytest.importorskip("MySQLdb")
    return driver.connect(**arguments)


def connect_mariadb(**arguments: Any) -> Any:
    driver: Any = pytest.importorskip("mariadb")
    return driver.connect(**arguments)


@pytest.mark.parametrize("outbox_url", ["mariadb"], indirect=True)
@pytest.mark.parametrize("connect", [connect_mysql_connector, connect_mysqldb, connect_mariadb])
def test_further_drivers_of_mysql(connect: Callable[..., Any], outbox_url: str) -> None:
    """Use each with transactions, in autocommit, and with a transaction begun by a statement."""
    parts = urlparse(outbox_url)
    arguments: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "user": parts.username}
    with closing(connect(**arguments, database=parts.path[1:])) as connection:
        use(connection)
    assert stored(outbox_url) == BOTH
    with closing(connect(**arguments, database=parts.path[1:], autocommit=True)) as connection:
        with pytest.raises(errors.SettingsError, match=REFUSED):
            Outbox().add(connection, EVENT)
        with closing(connection.cursor()) as cursor:
            cursor.execute("BEGIN")
        Outbox().add(connection, EVENT)
        connection.commit()
    assert len(stored(outbox_url)) == 3


@pytest.mark.parametrize("outbox_url", ["mariadb"], indirect=True)
def test_asyncmy(outbox_url: str) -> None:
    asyncmy: Any = pytest.importorskip("asyncmy")
    parts = urlparse(outbox_url)
    arguments: dict[str, Any] = {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "db": parts.path[1:],
    }

    async def main() -> None:
        connection = await asyncmy.connect(**arguments)
        await use_async(connection, connection.rollback, connection.commit)
        await connection.autocommit(True)
        with pytest.raises(errors.SettingsError, match=REFUSED):
            await Outbox().add_async(connection, EVENT)
        await connection.begin()
        await Outbox().add_async(connection, EVENT)
        await connection.commit()
        await connection.ensure_closed()

    asyncio.run(main())
    assert len(stored(outbox_url)) == 3


async def use_async(connection: Any, rollback: Any, commit: Any) -> None:
    outbox = Outbox()
    await outbox.add_async(connection, EVENT)
    await rollback()
    await outbox.add_async(connection, EVENT)
    await outbox.delete_async(connection, "C-2", headers={"trace": "7"})
    await commit()


@pytest.mark.parametrize("outbox_url", ["postgres"], indirect=True)
def test_asyncio_drivers_of_postgres(outbox_url: str) -> None:
    async def psycopg_async() -> None:
        async with await psycopg.AsyncConnection.connect(outbox_url) as connection:
            await use_async(connection, connection.rollback, connection.commit)

    async def asyncpg_driver() -> None:
        connection = await asyncpg.connect(outbox_url)
        with pytest.raises(errors.SettingsError, match=REFUSED):
            await Outbox().add_async(connection, EVENT)
        async with connection.transaction():
            await Outbox().add_async(connection, EVENT)
            await Outbox().delete_async(connection, "C-2", headers={"trace": "7"})
        await connection.close()

    async def sqlalchemy_asyncio() -> None:
        for driver in ("asyncpg", "psycopg"):
            url = outbox_url.replace("postgresql:", f"postgresql+{driver}:")
            alone = create_async_engine(url, isolation_level="AUTOCOMMIT")
            async with alone.connect() as connection:
                with pytest.raises(errors.SettingsError, match=REFUSED):
                    await Outbox().add_async(connection, EVENT)
            await alone.dispose()
        engine = create_async_engine(outbox_url.replace("postgresql:", "postgresql+asyncpg:"))
        async with engine.connect() as connection:
            await use_async(connection, connection.rollback, connection.commit)
        await engine.dispose()

    steps: list[Callable[[], Coroutine[Any, Any, None]]] = [
        psycopg_async,
        asyncpg_driver,
        sqlalchemy_asyncio,
    ]
    for number, step in enumerate(steps, start=1):
        asyncio.run(step())
        assert stored(outbox_url) == BOTH * number


@pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)
def test_aiosqlite(outbox_url: str) -> None:
    async def main() -> None:
        async with aiosqlite.connect(outbox_url.removeprefix("sqlite:///")) as connection:
            await use_async(connection, connection.rollback, connection.commit)
        alone = create_async_engine(
            outbox_url.replace("sqlite:", "sqlite+aiosqlite:"), isolation_level="AUTOCOMMIT"
        )
        async with AsyncSession(alone) as session:
            with pytest.raises(errors.SettingsError, match=REFUSED):
                await Outbox().add_async(session, EVENT)
        await alone.dispose()

    asyncio.run(main())
    assert stored(outbox_url) == BOTH


DJANGO = """
import sys, django
from django.conf import settings
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}}
)
django.setup()
from django.db import connection, transaction
from instep import Outbox, StatusEvent, errors

outbox, event = Outbox(), StatusEvent(document="C-1", status="PRINTED", version=3)
try:
    outbox.add(connection, event)
except errors.SettingsError as refused:
    print(refused.what)
with transaction.atomic():
    outbox.add(connection, event)
"""

DJANGO_EXAMPLE = """
import sys, django
from django.conf import settings
settings.configure(
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}}}}
)
django.setup()
{example}

class PrintJob(models.Model):
    id = models.TextField(primary_key=True)
    status = models.TextField()
    version = models.IntegerField()

    class Meta:
        app_label, db_table = "shop", "print_job"

mark_printed(PrintJob.objects.all(), "C-1")
"""


@pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)
def test_django(outbox_url: str, tmp_path: Path) -> None:
    """In a separate process: Django has one configuration per process."""
    script = tmp_path / "use_django.py"
    script.write_text(DJANGO, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), outbox_url.removeprefix("sqlite:///")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(REFUSED)
    assert [document for document, _, _ in stored(outbox_url)] == ["C-1"]


def example(heading: str) -> str:
    """Return the program below a heading of the guide."""
    page = ROOT / "docs" / "guides" / "relay-an-outbox.md"
    _, found, rest = page.read_text(encoding="utf-8").partition(f"\n### {heading}\n")
    assert found, heading
    return rest.partition("```python\n")[2].partition("```")[0]


def run_example(heading: str) -> dict[str, Any]:
    """Run the program below a heading of the guide, and return its names."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example(heading), heading, "exec", dont_inherit=True), names)
    return names


def create_jobs(url: str) -> None:
    run_sql(
        url,
        "CREATE TABLE print_job (id varchar(50) PRIMARY KEY, status varchar(20), version integer)",
        "INSERT INTO print_job VALUES ('C-1', 'CREATED', 1)",
    )


def is_marked(url: str) -> bool:
    """Return whether the example has changed the job and added its event."""
    [(document, value, _)] = stored(url)
    job = run_sql(url, "SELECT id, status, version FROM print_job")
    return job == [(document, value["status"], value["version"])] == [("C-1", "PRINTED", 2)]


@pytest.mark.parametrize("outbox_url", ["sqlite", "postgres", "mariadb"], indirect=True)
def test_the_example_with_sqlalchemy(outbox_url: str) -> None:
    create_jobs(outbox_url)
    names = run_example("SQLAlchemy")
    engine = sa.create_engine(
        outbox_url.replace("postgresql:", "postgresql+psycopg:").replace(
            "mariadb:", "mariadb+pymysql:"
        )
    )
    try:
        with Session(engine) as session:
            names["mark_printed"](session, "C-1")
    finally:
        engine.dispose()
    assert is_marked(outbox_url)


@pytest.mark.parametrize("outbox_url", ["sqlite", "postgres"], indirect=True)
def test_the_example_with_asyncio(outbox_url: str) -> None:
    create_jobs(outbox_url)
    names = run_example("asyncio")

    async def main() -> None:
        engine = create_async_engine(
            outbox_url.replace("postgresql:", "postgresql+asyncpg:").replace(
                "sqlite:", "sqlite+aiosqlite:"
            )
        )
        async with AsyncSession(engine) as session:
            await names["mark_printed"](session, "C-1")
        await engine.dispose()

    asyncio.run(main())
    assert is_marked(outbox_url)


@pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)
def test_the_example_with_django(outbox_url: str, tmp_path: Path) -> None:
    create_jobs(outbox_url)
    script = tmp_path / "use_example.py"
    script.write_text(DJANGO_EXAMPLE.format(example=example("Django")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), outbox_url.removeprefix("sqlite:///")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert is_marked(outbox_url)


def test_names_of_tables_and_columns_are_quoted_and_headers_need_a_column() -> None:
    columns = OutboxColumns(document="the key", value='pay"load', headers=None)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute('CREATE TABLE "our box" ("the key" TEXT, "pay""load" BLOB)')
        outbox = Outbox("our box", columns)
        outbox.add(connection, EVENT)
        assert connection.execute('SELECT "the key" FROM "our box"').fetchall() == [("C-1",)]
        with pytest.raises(errors.SettingsError, match="no column for headers"):
            outbox.add(connection, EVENT, headers={"a": "b"})
        with pytest.raises(errors.SettingsError, match="cannot be sent"):
            outbox.add(connection, StatusEvent(document="", status="X"))
