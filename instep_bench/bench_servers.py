"""The servers of a benchmark: a local broker or the user's, and a database for each target.

A target is a local server, a SQLite file or a user's database. On a user's servers the benchmark
creates only a topic, tables and a pipeline with unique names, and removes them at the end, even
after a failure. instep's own tables are removed if they did not exist before.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import tomli_w

from instep import errors, masking, settings, sinks
from instep.kafka import connection, topics
from instep.kafka.admin import consumer_groups
from instep.local import broker, class_archives, keeper_client, mariadb, postgres, server
from instep.sinks import connecting, inspection, preparation, target
from instep.sinks.sink import Sink
from instep_bench import meters

TARGET = "target"  # what a database is for, if nothing else is said
LOCAL: dict[str, type[postgres.Postgres] | type[mariadb.MariaDB]] = {
    "postgres": postgres.Postgres,
    "mariadb": mariadb.MariaDB,
}
SQLITE = "sqlite"
# The columns are named like the fields of the events, because some baselines cannot rename them.
COLUMNS = {
    "status": "status",
    "version": "version",
    "updated_at": "updated_at",
}
KEY = "doc_id"
EVENT = {"document": "doc_id", "status": "status", "order": "version", "at": "updated_at"}


def check_target(name: str) -> None:
    """Raise unless the target is a local server or the URL of a database that answers.

    This is checked before anything is started for the target.
    """
    if name not in (SQLITE, *LOCAL) and "://" not in name:
        known = f"{', '.join((SQLITE, *LOCAL))}, or a database URL"
        raise errors.SettingsError(
            f"there is no target {name!r}{settings.nearest(name, (SQLITE, *LOCAL))}",
            f"give {known}",
        )
    if "://" in name:
        with connecting.connection(target.database_url(name), create=True):
            pass


class BenchPipeline:
    """A pipeline of the benchmark: its settings file, its name and its table."""

    def __init__(self, name: str, config: Path, database: TargetDatabase) -> None:
        self.name, self.config, self.database = name, config, database
        self.pipeline = settings.pipeline(settings.load(config), name)

    @property
    def table(self) -> str:
        return self.pipeline.table

    def empty(self) -> None:
        """Recreate the table and empty the ledger."""
        self.database.empty(self.name, self.pipeline)

    def sink(self) -> contextlib.closing[Sink]:
        """Return a connection for reading the table and the ledger."""
        return contextlib.closing(sinks.open_sink(inspection.inspect(self.name, self.pipeline)))


class TargetDatabase:
    """A target's database: its URL, and its processes if the benchmark started them."""

    def __init__(
        self,
        label: str,
        url: str,
        folder: Path,
        ours: server.Server | None = None,
        *,
        is_ours: bool,
    ) -> None:
        self.label, self.url, self.is_ours = label, url, is_ours
        self._server = ours
        self._folder = folder
        self._declared: list[BenchPipeline] = []
        self._prepared: set[str] = set()
        self._created_own = False  # whether instep's own tables were created here

    @property
    def pipelines(self) -> list[str]:
        """The names of the pipelines declared here; their consumer groups have the same names."""
        return [declared.name for declared in self._declared]

    @property
    def kind(self) -> str:
        """postgresql, mysql, mariadb or sqlite."""
        return target.database_url(self.url).get_backend_name()

    def pids(self) -> Iterable[int]:
        """Return the processes of the server; none for a user's server or a file."""
        return meters.tree(self._server.pid)() if self._server else ()

    def declare(
        self,
        bootstrap: str,
        topic: str,
        *,
        engine: settings.EngineName = "resident",
        history: bool = False,
        lines: bool = False,
        sql: str | None = None,
        due: Mapping[str, str] | None = None,
        spark: settings.Spark | None = None,
        batch_rows_max: int | None = None,
        url: str | None = None,
    ) -> BenchPipeline:
        """Declare a new pipeline from the topic into its own table.

        With `lines` it writes a second table, a line for each event. `sql` is a transformation.
        `due` says how long a document may keep a status. `url` is another address of this database,
        for example that of a proxy.
        """
        [declared] = self.declare_together(
            bootstrap,
            [topic],
            engine=engine,
            history=history,
            lines=lines,
            sql=sql,
            due=due,
            spark=spark,
            batch_rows_max=batch_rows_max,
            url=url,
        )
        return declared

    def declare_together(
        self,
        bootstrap: str,
        topics: Sequence[str],
        *,
        engine: settings.EngineName = "resident",
        history: bool = False,
        lines: bool = False,
        sql: str | None = None,
        due: Mapping[str, str] | None = None,
        spark: settings.Spark | None = None,
        batch_rows_max: int | None = None,
        url: str | None = None,
    ) -> list[BenchPipeline]:
        """Declare a new pipeline for each topic, all in one settings file for one run."""
        options: dict[str, Any] = {
            "engine": engine,
            "target": url or self.url,
            "key": KEY,
            "history": history,
            "event": EVENT,
            "columns": COLUMNS,
            "due": dict(due or {}),
        }
        if batch_rows_max:
            options["batch_rows_max"] = batch_rows_max
        if sql is not None:
            options["transform"] = {"sql": sql}
        topic_of = {f"bench-{uuid.uuid4().hex[:8]}": topic for topic in topics}
        spark = spark or settings.Spark()
        tree = {
            "kafka": {"bootstrap": bootstrap},
            "spark": {"master": spark.master, "memory": spark.memory, "conf": spark.conf},
            "pipelines": {
                name: {
                    "topic": topic,
                    "table": name.replace("-", "_"),
                    "tables": _line_tables(name) if lines else [],
                    **options,
                }
                for name, topic in topic_of.items()
            },
        }
        config = self._folder / f"{next(iter(topic_of))}.toml"
        config.write_text(tomli_w.dumps(tree), encoding="utf-8")
        declared = [BenchPipeline(name, config, self) for name in topic_of]
        self._declared += declared
        for one in declared:
            one.empty()
        return declared

    def empty(self, name: str, pipeline: settings.Pipeline) -> None:
        """Recreate the table of a pipeline and remove its state.

        On a local server instep's own tables are recreated as well: hundreds of thousands of
        deleted rows would slow it down.
        """
        if name in self._prepared:
            preparation.remove(name, pipeline, own_tables=self.is_ours)
        statements = preparation.prepare(pipeline)
        self._prepared.add(name)
        self._created_own |= any("instep_ledger" in statement for statement in statements)

    def close(self) -> None:
        """Stop the server, or remove everything that was created in the user's database."""
        with contextlib.ExitStack() as leaving:
            if self._server:
                leaving.callback(self._server.close)
            for number, declared in enumerate(() if self.is_ours else self._declared):
                # Callbacks run in reverse order, so the first pipeline is removed last.
                last = self._created_own and number == 0
                # Use the direct address: a proxy may be closed by now.
                pipeline = msgspec.structs.replace(declared.pipeline, target=self.url)
                leaving.callback(preparation.remove, declared.name, pipeline, own_tables=last)


def _line_tables(name: str) -> list[dict[str, Any]]:
    table = f"{name.replace('-', '_')}_lines"
    return [{"table": table, "line_key": "version", "columns": COLUMNS}]


class BenchServers:
    """The servers of one benchmark, each started on first use."""

    def __init__(self, bootstrap: str | None, say: Callable[[str], None]) -> None:
        self._say = say
        self._given = bootstrap
        self._own: broker.LocalCluster | None = None
        self._cluster: connection.Cluster | None = None
        self._stack = contextlib.ExitStack()
        self._databases: dict[tuple[str, str], TargetDatabase] = {}  # by role and name
        self.folder = Path(tempfile.mkdtemp(prefix="instep-bench-"))
        # The keeper removes the folder when this process ends, even after kill -9.
        self._stack.callback(keeper_client.KeeperClient(temporary=self.folder).close)
        self._topics: list[str] = []
        self.groups: list[str] = []  # consumer groups of contestants, to be removed

    @property
    def bootstrap(self) -> str:
        if self._given:
            return self._given
        return self.broker.bootstrap

    @property
    def broker(self) -> broker.LocalCluster:
        """The benchmark's own broker, into which faults may be injected."""
        if self._given:
            raise errors.SettingsError(
                "faults are injected only into a broker that the benchmark started",
                "omit --bootstrap",
            )
        if self._own is None:
            self._say("starting a Kafka broker on this machine")
            self._own = self._stack.enter_context(broker.LocalCluster())
        return self._own

    @property
    def cluster(self) -> connection.Cluster:
        if self._cluster is None:
            self._cluster = connection.Cluster(settings.Kafka(), self.bootstrap)
            self._stack.callback(self._cluster.close)
        return self._cluster

    def broker_pids(self) -> Iterable[int]:
        """Return the processes of the broker; none for a user's broker."""
        return meters.tree(self._own.nodes[0].pid)() if self._own else ()

    def new_topic(self, partitions: int) -> str:
        name = f"bench-{uuid.uuid4().hex[:8]}"
        topics.create(self.cluster, name, partitions)
        self._topics.append(name)
        return name

    def remove_topic_later(self, name: str) -> None:
        """Remove a topic at the end that a contestant created."""
        self._topics.append(name)

    def database(self, name: str, role: str = TARGET) -> TargetDatabase:
        """Return a database, started or connected. Each role has its own, except of a URL."""
        if (role, name) not in self._databases:
            check_target(name)
            self._databases[role, name] = self._open(name, role)
            self._stack.callback(self.drop, name, role)
        return self._databases[role, name]

    def drop(self, name: str, role: str = TARGET) -> None:
        """Close a database that is no longer needed, so that its server uses no more resources."""
        if (role, name) in self._databases:
            database = self._databases.pop((role, name))
            self.groups += database.pipelines
            database.close()

    def _open(self, name: str, role: str) -> TargetDatabase:
        if name == SQLITE:
            return TargetDatabase(
                SQLITE, f"sqlite:///{self.folder / f'{role}.db'}", self.folder, is_ours=True
            )
        if name in LOCAL:
            self._say(f"starting {name} on this machine")
            started = LOCAL[name]()
            try:
                started.start()
            except BaseException:
                # Also after Ctrl-C: a server that is just starting must not stay.
                started.close()
                raise
            return TargetDatabase(name, started.url, self.folder, started, is_ours=True)
        return TargetDatabase(masking.masked_url(name), name, self.folder, is_ours=False)

    def close(self) -> None:
        """Stop what was started, and remove topics and groups from a user's cluster."""
        if self._given:
            for topic in self._topics:
                # If the cluster is unreachable the topic stays; nothing depends on it.
                with contextlib.suppress(errors.InstepError):
                    topics.delete(self.cluster, topic)
            pipelines = [
                name for database in self._databases.values() for name in database.pipelines
            ]
            for group in (*self.groups, *pipelines):
                with contextlib.suppress(errors.InstepError):  # most groups do not exist
                    consumer_groups.delete(self.cluster, group)
        self._stack.close()

    def __enter__(self) -> Self:
        # Prepare the class archive now, not during a measurement.
        class_archives.prepare(class_archives.SPARK, self._say)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
