"""Servers for the whole test run.

They start once, on free ports, and end with the tests, also when the tests are killed.
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse, urlunparse

import pytest
from hypothesis import HealthCheck, settings

from instep.local.broker import LocalCluster
from instep.local.mariadb import MariaDB
from instep.local.postgres import Postgres
from tests.support.database_servers import UnsyncedMariaDB, UnsyncedPostgres
from tests.support.pgbouncer import PROGRAM, PgBouncer
from tests.support.secured import SecuredBroker

if TYPE_CHECKING:
    import pymysql

pytest_plugins = ["tests.support.databases", "tests.support.pipelines"]

# the same examples in every run, and no deadlines: the machine may be busy
settings.register_profile(
    "instep", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("instep")

# The JVMs of the tests live for seconds: Java's optimising compiler would take a third of their
# time and never pay off. Without it, the default room for compiled code is too small for Spark SQL.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")

# servers that the user started: an administrator's URL
MYSQL_URL = os.environ.get("INSTEP_TEST_MYSQL_URL")
MARIADB_URL = os.environ.get("INSTEP_TEST_MARIADB_URL")
# Slow folders and files, the slowest first, behind the tests that start Spark as a user does.
LONG = (
    "test_exactly_once.py",
    "test_stops.py",
    "test_spark_cluster.py",
    "reconcile",
    "test_story.py",
    "lab",
    "bench",
    "test_docs.py",
    "test_cli.py",
    "test_api.py",
    "test_transaction.py",
    "pipeline",
    "local",
    "relay",
    "test_live.py",
    "test_watch.py",
    "test_terminal.py",
    "bridge",
    "kafka",
    "emit",
)
# Folders whose tests share servers that take seconds to start: one worker runs all of them.
TOGETHER = ("lab", "bench", "console", "relay")

# Files and folders whose tests need no server, no Spark and no other process: `make quick` runs
# them.
QUICK = (
    "archive/test_compaction.py",
    "archive/test_writer.py",
    "bench/test_compare.py",
    "bench/test_latency_join.py",
    "bench/test_load.py",
    "bench/test_machine.py",
    "bench/test_page.py",
    "bench/test_ranking.py",
    "bench/test_row_check.py",
    "bench/test_store.py",
    "bridge/test_schedule.py",
    "bridge/test_settings.py",
    "bridge/test_state.py",
    "bridge/test_urls.py",
    "campaign/test_judgement.py",
    "cli/test_help.py",
    "demo/test_stage.py",
    "document",
    "emit/test_deliveries.py",
    "emit/test_files.py",
    "emit/test_guarantees.py",
    "emit/test_memory.py",
    "kafka/admin/test_replication.py",
    "kafka/test_configs.py",
    "kafka/test_faults.py",
    "kafka/test_places.py",
    "kpis/test_counting.py",
    "kpis/test_histogram.py",
    "lab/test_bounds.py",
    "lab/test_checkers.py",
    "lab/test_integrity.py",
    "lab/test_log_files.py",
    "lab/test_report.py",
    "lab/test_seed_page.py",
    "lab/test_statements.py",
    "lab/test_store.py",
    "lab/test_verdict.py",
    "lab/test_workload.py",
    "operate/test_overdue.py",
    "pipeline/resident/test_channel.py",
    "pipeline/resident/test_linger.py",
    "pipeline/test_columns.py",
    "pipeline/test_isolate.py",
    "pipeline/test_live_view.py",
    "pipeline/test_pipelines.py",
    "pipeline/test_stop.py",
    "pipeline/test_task.py",
    "pipeline/test_transformer.py",
    "reconcile/test_coverage.py",
    "report",
    "sinks/test_facts.py",
    "sinks/test_target.py",
    "sources/test_connection.py",
    "spark_sink/test_calls.py",
    "spark_sink/test_decision.py",
    "spark_sink/test_definition.py",
    "spark_sink/test_encoding.py",
    "test_colours.py",
    "test_groups.py",
    "test_limits.py",
    "test_remedies.py",
    "test_settings.py",
    "test_vocabulary.py",
    "test_waiting.py",
    "vet/test_clients.py",
    "vet/test_judgement.py",
    "vet/test_remedies.py",
    "vet/test_report.py",
    "vet/test_rules.py",
    "vet/test_sampling.py",
)


@dataclass(frozen=True)
class GivenServer:
    """A server that somebody else started."""

    url: str

    @property
    def port(self) -> int:
        return urlparse(self.url).port or 3306


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database",
        metavar="KIND",
        help="run only the tests that use this database: postgres, mariadb or mysql",
    )


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark quick tests, select by database, and order.

    Where two workers share the files, the slow ones come first, so that both end together.
    """
    here = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(here)
        if str(path) in QUICK or path.parts[0] in QUICK:
            item.add_marker("quick")
    if kind := config.getoption("database"):
        chosen = [
            item for item in items if kind in item.name or kind in getattr(item, "fixturenames", ())
        ]
        config.hook.pytest_deselected(items=[*set(items) - set(chosen)])
        items[:] = chosen
    items.sort(key=lambda item: not _has_own_spark(item))  # before the session of the others starts
    if config.getoption("numprocesses", None) is not None or hasattr(config, "workerinput"):
        order = {name: number for number, name in enumerate(LONG)}
        items.sort(
            key=lambda item: (
                not _has_own_spark(item),
                min(order.get(name, len(LONG)) for name in (item.path.name, item.path.parent.name)),
            )
        )
        _group(items)


def _has_own_spark(item: pytest.Item) -> bool:
    return item.get_closest_marker("own_spark") is not None


def _group(items: list[pytest.Item]) -> None:
    """Let one worker run the tests of a file, of some folders, or of half those with Spark.

    Two workers have a Spark session: one for the pipeline's tests, one for all others. The first
    group comes first in its worker: there, Spark starts as a user starts it.
    """
    with_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    here = Path(__file__).parent
    for item in items:
        folder, path = item.path.parent.name, item.path.relative_to(here)
        if _has_own_spark(item):
            group = "own_spark"
        elif item.path in with_spark:
            group = "spark pipeline" if path.parts[0] == "pipeline" else "spark"
        elif folder in TOGETHER:
            group = folder
        else:
            group = str(path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def secured_broker() -> Iterator[SecuredBroker]:
    """Start a broker with users, certificates and rights: one listener per way to connect."""
    with SecuredBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with UnsyncedPostgres() as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    """Start a pooler in transaction mode, with two sessions for all clients of a database."""
    if PROGRAM is None:
        pytest.skip("pgbouncer is not installed (Debian: apt-get install pgbouncer)")
    with PgBouncer(postgres) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB | GivenServer]:
    if MARIADB_URL:
        yield GivenServer(MARIADB_URL)
    else:
        with UnsyncedMariaDB() as server:
            yield server


@pytest.fixture(params=["sqlite", "postgres", "mariadb", "mysql"])
def database_url(request: pytest.FixtureRequest, new_database: Callable[[str], str]) -> str:
    """Return the URL of a new, empty database of each kind in turn."""
    return new_database(request.param)


@pytest.fixture
def new_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    """Return a function that makes an empty database of a kind. Remove the database afterwards."""
    yield from _databases(request, tmp_path_factory)


@pytest.fixture(scope="module")
def shared_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    """Return the same function for databases that all tests of a module share."""
    yield from _databases(request, tmp_path_factory)


def _databases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    made: list[tuple[str, str, str]] = []

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/target.db"
        if kind == "mysql" and not MYSQL_URL:
            pytest.skip(
                "no MySQL: set INSTEP_TEST_MYSQL_URL=mysql://root@127.0.0.1:3306/mysql of a"
                " server to test on"
            )
        admin = MYSQL_URL if kind == "mysql" else request.getfixturevalue(kind).url
        assert admin is not None
        name = f"t_{uuid.uuid4().hex[:12]}"
        _create(kind, admin, name)
        made.append((kind, admin, name))
        return urlunparse(urlparse(admin)._replace(path=f"/{name}"))

    yield make
    for kind, admin, name in made:
        _run(kind, admin, f"DROP DATABASE {name}" + (" WITH (FORCE)" if kind == "postgres" else ""))


def _create(kind: str, admin: str, name: str) -> None:
    if kind != "postgres":
        _run(kind, admin, f"CREATE DATABASE {name}")
        return
    import psycopg

    with psycopg.connect(admin, autocommit=True) as connection:
        # Copying files takes a quarter of the time of copying through the log, where there is a
        # choice.
        strategy = " STRATEGY FILE_COPY" if connection.info.server_version >= 150000 else ""
        connection.execute(f"CREATE DATABASE {name}{strategy}")


def _run(kind: str, url: str, statement: str) -> None:
    parts = urlparse(url)
    if kind == "postgres":
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)
    else:
        connected = _mysql(
            parts.hostname or "", parts.port or 3306, parts.username or "", parts.password or ""
        )
        connected.cursor().execute(statement)


@functools.cache
def _mysql(host: str, port: int, user: str, password: str) -> pymysql.Connection[Any]:
    """Keep one connection for all new databases.

    MySQL encrypts each connection, which takes 30 ms of CPU time.
    """
    import pymysql

    return pymysql.connect(host=host, port=port, user=user, password=password, autocommit=True)
