"""Check whether this machine and its servers are ready for instep. Changes and starts nothing."""

from __future__ import annotations

import enum
import functools
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import msgspec
import psutil

from instep import errors, extras, settings
from instep.kafka import admin_extras, faults, groups, layout, offsets
from instep.kafka.admin import consumer_groups
from instep.kafka.connection import Cluster
from instep.local import artifacts, java, local_servers, paths, ports, registry
from instep.sinks import facts, target

FREE_BYTES_LOW, FREE_BYTES_FULL = 2 * 2**30, 200 * 2**20
CLOCK_S_MAX = 2.0
PYTHON_OLDEST = (3, 11)
MEMORY_BYTES_LOW = 1536 * 2**20  # of Spark and its workers
DRIVERS = {  # scheme of the URL -> package, extra that installs it
    "postgresql": ("psycopg", "postgres"),
    "mysql": ("pymysql", "mysql"),
    "mariadb": ("pymysql", "mysql"),
}


class CheckState(enum.StrEnum):
    GOOD = "good"
    NOTE = "note"
    WRONG = "wrong"


class Check(msgspec.Struct, frozen=True):
    """The result of one check: what was found, and how to correct it."""

    part: str
    state: CheckState
    found: str
    fix: str = ""


def examine(config: Path | None) -> Iterator[Check]:
    """Run all checks, one after the other. Each check reads what it needs by itself."""
    yield _python()
    yield _attempt("java", _java)
    yield from _packages()
    yield from _folders()
    yield _memory()
    try:
        declared = settings.load(config)
    except errors.InstepError as error:
        # Everything that follows depends on the settings.
        yield Check("settings", CheckState.WRONG, error.what, error.remedy)
        return
    yield _settings(declared, config)
    yield from _drivers(declared)
    yield from _local(declared)
    yield from _cluster(declared)
    for name, pipeline in declared.pipelines.items():
        yield from _database(name, pipeline)


# --- this machine ---------------------------------------------------------------------------------


def _python() -> Check:
    found = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < PYTHON_OLDEST:
        return Check("python", CheckState.WRONG, found, "install Python 3.11 or newer")
    return Check("python", CheckState.GOOD, found)


def _java() -> Check:
    program, version = java.find_version()
    return Check("java", CheckState.GOOD, f"Java {version} at {program}")


def _packages() -> Iterator[Check]:
    for package in ("pyspark", "pyarrow"):
        missing = f"{package} is not installed: nothing can be run"
        yield _package("spark", package, missing, extra="spark")
    kept = artifacts.is_kept("spark-kafka")
    yield Check(
        "jars",
        CheckState.GOOD if kept else CheckState.NOTE,
        f"Spark's Kafka connector is {'' if kept else 'not yet '}in {paths.cache()}",
        "" if kept else "nothing: the first run fetches it from Maven Central",
    )


def _package(part: str, package: str, missing: str, *, extra: str) -> Check:
    try:
        return Check(part, CheckState.GOOD, f"{package} {metadata.version(package)}")
    except metadata.PackageNotFoundError:
        return Check(part, CheckState.WRONG, missing, extras.command(extra))


def _folders() -> Iterator[Check]:
    for what, folder in (
        ("cache", paths.cache()),
        ("state", paths.state()),
        ("temporary files", Path(tempfile.gettempdir())),
    ):
        yield _disk(f"disk: {what}", folder)


def _disk(part: str, folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    found = f"{free / 2**30:.1f} GiB free below {folder}"
    if not os.access(folder, os.W_OK):
        return Check(
            part,
            CheckState.WRONG,
            f"{folder} cannot be written",
            "allow this user to write there, or set INSTEP_HOME or TMPDIR",
        )
    if free < FREE_BYTES_LOW:
        state = CheckState.WRONG if free < FREE_BYTES_FULL else CheckState.NOTE
        return Check(
            part, state, found, f"free some space below {folder}, or set INSTEP_HOME or TMPDIR"
        )
    return Check(part, CheckState.GOOD, found)


def _memory() -> Check:
    free = psutil.virtual_memory().available
    enough = free > MEMORY_BYTES_LOW
    return Check(
        "memory",
        CheckState.GOOD if enough else CheckState.NOTE,
        f"{free / 2**30:.1f} GiB free",
        "" if enough else "stop other programs",
    )


# --- what the settings require --------------------------------------------------------------------


def _settings(declared: settings.Settings, config: Path | None) -> Check:
    file = settings.file_of(config)
    if not file.exists():
        return Check(
            "settings",
            CheckState.NOTE,
            f"there is no {file} in {Path.cwd()}",
            "see README.md: first pipeline",
        )
    names = ", ".join(declared.pipelines) or "none"
    return Check("settings", CheckState.GOOD, f"{file} is valid; pipelines: {names}")


def _drivers(declared: settings.Settings) -> Iterator[Check]:
    for scheme in sorted(
        {_scheme(pipeline) for pipeline in declared.pipelines.values()} & DRIVERS.keys()
    ):
        package, extra = DRIVERS[scheme]
        missing = f"{package}, for {scheme}, is not installed"
        yield _package("driver", package, missing, extra=extra)


def _scheme(pipeline: settings.Pipeline) -> str:
    try:
        return target.database_url(pipeline.target).get_backend_name()
    except errors.SettingsError:
        return ""  # the check of the database reports it


def _local(declared: settings.Settings) -> Iterator[Check]:
    """Check the local servers, and the ports that they would use."""
    running = registry.running()
    for one in running:
        yield Check("local server", CheckState.GOOD, f"{one.name} runs at {one.address}")
    if declared.kafka.bootstrap is None and not any(one.node for one in running):
        port = local_servers.DEFAULT_PORTS["kafka"]
        state = "taken, so another one" if ports.taken(port) else "free"
        found = f"no local broker runs; port {port} is {state}"
        yield Check(
            "local server",
            CheckState.NOTE,
            f"{found} will be used",
            "nothing: it is started on demand; or: instep up",
        )


# --- servers --------------------------------------------------------------------------------------


def _cluster(declared: settings.Settings) -> Iterator[Check]:
    bootstrap = declared.kafka.bootstrap or registry.bootstrap()
    if not bootstrap:
        return
    # First without the Kafka client, which reports a wrong name, a closed port and a firewall
    # alike: as a timeout.
    for address in faults.addresses(bootstrap):
        yield _address(address)
    try:
        with Cluster(declared.kafka, bootstrap) as cluster:
            yield from _brokers(cluster, declared)
    except errors.InstepError as error:
        yield Check("broker", CheckState.WRONG, error.what, error.remedy)


def _address(address: str) -> Check:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return Check(
            "address",
            CheckState.WRONG,
            f"{address!r} has no port",
            'write host:port, such as "broker1:9092"',
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=3.0):
            return Check("address", CheckState.GOOD, f"{address} answers")
    except (OSError, ValueError, OverflowError) as error:
        return Check(
            "address",
            CheckState.WRONG,
            f"{address}: {error}",
            "check kafka.bootstrap, the name and the firewall",
        )


def _brokers(cluster: Cluster, declared: settings.Settings) -> Iterator[Check]:
    found = layout.read(cluster)
    yield Check(
        "broker",
        CheckState.GOOD,
        f"cluster {found.cluster_id} with {len(found.brokers)} brokers accepts our connection",
    )
    with admin_extras.connect(cluster) as extras:
        quorum = extras.quorum() if extras else None
    if quorum is not None and quorum.leader_clock_s is not None:
        yield _clock("the cluster's controller", quorum.leader_clock_s - time.time())
    for name, pipeline in declared.pipelines.items():
        part = f"topic of {name}"
        if pipeline.topic not in found.topics:
            near = settings.nearest(pipeline.topic, found.topics, count=3)
            fix = (
                f"instep topics create {pipeline.topic} --execute; or get DESCRIBE permission on it"
            )
            yield Check(
                part,
                CheckState.WRONG,
                f"{pipeline.topic} does not exist, or is not visible to us{near}",
                fix,
            )
            continue
        topic = found.topics[pipeline.topic]
        yield _attempt(part, functools.partial(_readable, cluster, topic))
        group = groups.mirror_name(name)
        yield _attempt(f"group of {name}", functools.partial(_group, cluster, group, topic))


def _readable(cluster: Cluster, topic: layout.Layout) -> Check:
    firsts = offsets.earliest(cluster, topic.topic, topic.with_leader)
    # The DESCRIBE right is enough for offsets. Only a fetch shows whether READ is granted.
    offsets.first_records(cluster, topic.topic, firsts)
    return Check(
        "",
        CheckState.GOOD,
        f"{topic.topic} can be read: {len(topic.with_leader)} of {len(topic.partitions)} partitions"
        " have a leader",
    )


def _group(cluster: Cluster, name: str, topic: layout.Layout) -> Check:
    members = consumer_groups.members(cluster, name)
    if members:
        fix = "give the other program another group.id: the pipeline mirrors its position there"
        return Check(
            "", CheckState.WRONG, f"group {name} has members: {', '.join(map(str, members))}", fix
        )
    groups.refuse_foreign(cluster, name, topic.topic, topic.with_leader)
    return Check("", CheckState.GOOD, f"group {name} is visible, and only the pipeline uses it")


def _database(name: str, pipeline: settings.Pipeline) -> Iterator[Check]:
    part = f"database of {name}"
    try:
        found = facts.read(name, pipeline)
    except errors.InstepError as error:
        yield Check(part, CheckState.WRONG, error.what, error.remedy)
        return
    if found.unreachable is not None:
        # The text of an error has its remedy on the second line.
        what, _, remedy = found.unreachable.partition("\n")
        yield Check(part, CheckState.WRONG, what, remedy)
        return
    version = ".".join(map(str, found.version or ())) or "of an unknown version"
    yield Check(part, CheckState.GOOD, f"{found.kind} {version} accepts our connection")
    if found.unfit is not None:
        yield Check(f"table of {name}", CheckState.WRONG, *found.unfit)
    elif found.lacking_rights:
        yield Check(
            f"table of {name}",
            CheckState.WRONG,
            f"permissions are missing: {', '.join(found.lacking_rights)}",
            found.granting,
        )
    else:
        yield Check(
            f"table of {name}",
            CheckState.GOOD,
            f"{pipeline.table} fits, and instep's own tables exist",
        )
    if found.clock_ahead_s is not None:
        yield _clock(f"the database of {name}", found.clock_ahead_s)
    if found.kind == "sqlite":
        folder = Path(target.database_url(pipeline.target).database or ".").parent
        yield _disk(f"disk: {part}", folder)


def _clock(where: str, ahead_s: float) -> Check:
    if abs(ahead_s) < CLOCK_S_MAX:
        return Check("clock", CheckState.GOOD, f"the clock of {where} agrees with ours")
    word = "ahead of" if ahead_s > 0 else "behind"
    return Check(
        "clock",
        CheckState.WRONG,
        f"the clock of {where} is {abs(ahead_s):.1f} s {word} ours",
        "synchronize both clocks with NTP",
    )


def _attempt(part: str, check: Callable[[], Check]) -> Check:
    try:
        return msgspec.structs.replace(check(), part=part)
    except errors.InstepError as error:
        return Check(part, CheckState.WRONG, error.what, error.remedy)
