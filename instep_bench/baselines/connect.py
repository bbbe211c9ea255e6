"""Baseline (c): a Kafka Connect worker with Debezium's JDBC sink, tuned.

Each run uses a connector with a new name, so that it begins at the start of the topic. The first
connector is started together with the worker, the others through the worker's REST interface.
"""

from __future__ import annotations

import contextlib
import os
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from instep import errors
from instep.local import artifacts, java, keeper_client, ports
from instep.sinks import target
from instep.waiting import retrying
from instep_bench import baselines, bench_servers, contest, meters

TASKS_MAX = 4
PATIENCE_S = 120.0
JVM_FLAGS = (
    "-Xms256m",
    "-Xmx2g",
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)
LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""
# The events carry no schema, but the sink needs the type of every column.
SCHEMA = {
    "type": "struct",
    "fields": [
        {"field": "doc_id", "type": "string", "optional": False},
        {"field": "status", "type": "string", "optional": True},
        {"field": "version", "type": "int64", "optional": True},
        {
            "field": "updated_at",
            "type": "string",
            "name": "io.debezium.time.ZonedTimestamp",
            "version": 1,
            "optional": True,
        },
    ],
}
# The worker already has these libraries; a second copy would conflict.
WORKER_LIBRARIES = (
    "jackson-",
    "connect-api-",
    "kafka-clients-",
    "slf4j-api-",
    "lz4-java-",
    "snappy-java-",
    "zstd-jni-",
)


class Connect(contest.Contestant):
    """A standalone worker: only its sink is measured, and it needs no internal topics."""

    name = baselines.CONNECT

    def __init__(self, folder: Path, bootstrap: str, partitions: int, groups: list[str]) -> None:
        """Describe a worker; `groups` collects the consumer groups that its sinks create."""
        self._folder, self._bootstrap, self._partitions, self._groups = (
            folder,
            bootstrap,
            partitions,
            groups,
        )
        self._keeper: keeper_client.KeeperClient | None = None
        self._port = 0
        self._pid = 0
        self._connector = ""

    @property
    def log(self) -> Path:
        return self._folder / "connect.log"

    def begin(self, declared: bench_servers.BenchPipeline) -> None:
        self._connector = f"bench-{uuid.uuid4().hex[:8]}"
        self._groups.append(f"connect-{self._connector}")
        config = self._config(declared)
        if self._keeper is None:
            self._start(config)
        else:
            self._ask("POST", "/connectors", {"name": self._connector, "config": config})

    def roles(self) -> Mapping[str, meters.Pids]:
        return {"worker": meters.tree(self._pid)}

    def check(self) -> bool:
        """Return False, because a connector never ends; raise if it or its worker has failed."""
        if self._keeper is None or self._keeper.poll() is not None:
            raise errors.InstepError(
                f"Kafka Connect's worker ended unexpectedly; the end of its log:\n{self._tail()}"
            )
        with contextlib.suppress(OSError):  # it has just started and does not listen yet
            status = self._ask("GET", f"/connectors/{self._connector}/status")
            for one in (status["connector"], *status["tasks"]):
                if one["state"] == "FAILED":
                    raise errors.InstepError(
                        f"Kafka Connect's sink failed: {one.get('trace', '')[:600]}"
                    )
        return False

    def finish(self) -> None:
        """Delete the connector, so that its connections are closed before the table is dropped."""
        retrying(
            lambda: self._ask("DELETE", f"/connectors/{self._connector}"),
            lambda error: isinstance(error, OSError),
            timeout_s=PATIENCE_S,
        )

    def close(self) -> None:
        if self._keeper:
            self._keeper.close()
            self._keeper = None

    def _start(self, config: Mapping[str, str]) -> None:
        self._folder.mkdir()
        self._port = ports.free()[0]
        plugins = self._folder / "plugins" / "debezium-jdbc"
        plugins.mkdir(parents=True)
        for jar in artifacts.jars("debezium-jdbc"):
            if not jar.name.startswith(WORKER_LIBRARIES):
                (plugins / jar.name).symlink_to(jar)
        worker = {
            "bootstrap.servers": self._bootstrap,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": str(self._folder / "offsets"),
            "listeners": f"http://{ports.HOST}:{self._port}",
            "plugin.path": str(plugins.parent),
            "plugin.discovery": "service_load",  # scanning the jars takes seconds
            "connector.client.config.override.policy": "All",
        }
        # Java reads properties files as Latin-1.
        (self._folder / "worker.properties").write_text(_properties(worker), encoding="latin-1")
        (self._folder / "log4j2.properties").write_text(LOG4J, encoding="latin-1")
        first = self._folder / "connector.properties"
        first.touch(mode=0o600)  # it contains the password
        first.write_text(_properties({"name": self._connector, **config}), encoding="latin-1")
        jars = artifacts.jars("connect")[0].parent
        flags = [*JVM_FLAGS, "-Dlog4j2.configurationFile=log4j2.properties", "-cp", f"{jars}/*"]
        command = [
            "org.apache.kafka.connect.cli.ConnectStandalone",
            "worker.properties",
            first.name,
        ]
        self._keeper = keeper_client.KeeperClient()
        self._pid = self._keeper.launch(
            [str(java.find()), *flags, *command], log=self.log, cwd=self._folder, env=os.environ
        )

    def _config(self, declared: bench_servers.BenchPipeline) -> dict[str, str]:
        url = target.database_url(declared.pipeline.target)
        address = baselines.jdbc_address(url.host, url.port, url.database)
        jdbc = {
            "postgresql": f"jdbc:postgresql://{address}?reWriteBatchedInserts=true",
            "mariadb": f"jdbc:mariadb://{address}?useBulkStmts=true&useServerPrepStmts=true",
            "mysql": f"jdbc:mysql://{address}?rewriteBatchedStatements=true",
        }
        return {
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "tasks.max": str(min(TASKS_MAX, self._partitions)),
            "topics": declared.pipeline.topic,
            "connection.url": jdbc[url.get_backend_name()],
            "connection.username": url.username or "",
            "connection.password": str(url.password or ""),
            "collection.name.format": declared.table,
            "insert.mode": "upsert",
            "primary.key.mode": "record_value",
            "primary.key.fields": bench_servers.KEY,
            "schema.evolution": "none",
            "delete.enabled": "false",
            "batch.size": "5000",
            "use.reduction.buffer": "true",  # only the last event of each document in a batch
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "true",
            "value.converter.schema.content": msgspec.json.encode(SCHEMA).decode(),
            "errors.tolerance": "all",  # drop bad events, as the other baselines do
            "consumer.override.max.poll.records": "5000",
            "consumer.override.auto.offset.reset": "earliest",
        }

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        """Send one request to the worker and return its response.

        Raise OSError while the worker does not listen or does not know the connector.
        """
        request = urllib.request.Request(
            f"http://{ports.HOST}:{self._port}{path}",
            method=method,
            data=None if body is None else msgspec.json.encode(body),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            text = answer.read()
        return msgspec.json.decode(text) if text else None

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


def refusal(database: bench_servers.TargetDatabase) -> str | None:
    """Return why the sink cannot write to this database, or None if it can."""
    if database.kind == "sqlite":
        return "Debezium's JDBC sink has no SQLite dialect"
    return None


def _properties(values: Mapping[str, str]) -> str:
    """Return the text of a Java properties file."""
    return "".join(
        f"{key}={value.replace(chr(92), chr(92) * 2)}\n" for key, value in values.items()
    )
