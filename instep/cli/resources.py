"""What commands open and use: the cluster, a maintenance session, Spark, the user's name."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from instep import extras, settings
from instep.cli import output

if TYPE_CHECKING:
    from instep.kafka.connection import Cluster
    from instep.pipeline.apply.maintenance import MaintenanceSession
    from instep.pipeline.transformed.on_demand import TransformOnDemand
    from instep.spark_options import SparkFiles

USER_CHARACTERS_MAX = 100  # the length of instep_decisions.actor


def bootstrap(declared: settings.Settings) -> str:
    """Return the brokers' address. Start a local broker if the settings name none."""
    if declared.kafka.bootstrap is not None:
        return declared.kafka.bootstrap
    from instep.local import registry

    running = registry.bootstrap()
    if running is not None:
        return running
    from instep.local import local_servers

    return local_servers.broker_on_demand(output.say)


def cluster(declared: settings.Settings) -> Cluster:
    """Connect to the cluster. Start a local broker if the settings name none."""
    from instep.kafka.connection import Cluster

    return Cluster(declared.kafka, bootstrap(declared))


@contextmanager
def running_cluster(declared: settings.Settings) -> Iterator[Cluster | None]:
    """Yield the cluster for a command that starts nothing.

    Yield None if the settings name no cluster and no local one is running.
    """
    from instep.kafka.connection import Cluster
    from instep.local import registry

    address = declared.kafka.bootstrap or registry.bootstrap()
    if address is None:
        yield None
        return
    with Cluster(declared.kafka, address) as opened:
        yield opened


def maintenance_session(
    declared: settings.Settings, name: str, *, reads: bool = False
) -> MaintenanceSession:
    """Return a session in which a person works on the quarantine or table of one pipeline.

    With `reads`, one that cannot change anything: the right to read is enough.
    """
    from instep.pipeline.apply.maintenance import MaintenanceSession
    from instep.sinks.connection import READING, WRITING

    pipeline = settings.pipeline(declared, name)
    return MaintenanceSession(
        name,
        pipeline,
        current_user(),
        transform=_transform(declared, name, pipeline),
        access=READING if reads else WRITING,
    )


def result_types(
    declared: settings.Settings, name: str, pipeline: settings.Pipeline
) -> dict[str, str]:
    """Return the types of the columns that a pipeline's transformation yields, as declared."""
    transform = _transform(declared, name, pipeline)
    assert transform is not None
    with contextlib.closing(transform):
        return transform.result_types()


def _transform(
    declared: settings.Settings, name: str, pipeline: settings.Pipeline
) -> TransformOnDemand | None:
    """Return what transforms records for a command, if the pipeline has a transformation."""
    if pipeline.transform is None:
        return None
    extras.require_spark()
    from instep.local import class_archives
    from instep.pipeline.transformed.on_demand import TransformOnDemand

    files = functools.partial(class_archives.spark_files, queries=True)
    return TransformOnDemand(declared.spark, files, name, pipeline)


@contextmanager
def spark_files(*, queries: bool) -> Iterator[SparkFiles]:
    """Yield the files that Spark needs. If the command is interrupted, leave no JVM behind."""
    extras.require_spark()
    from instep.local import class_archives, java, processes

    # Before the jars are fetched: without Java that would be in vain.
    java.find()
    files = class_archives.spark_files(queries=queries)
    try:
        yield files
    except SystemExit:
        # a JVM that is in its first second would outlive this process
        for pid in processes.descendants(os.getpid()):
            processes.send(pid, signal.SIGKILL)
        raise


def current_user() -> str:
    """Return the name of the user who runs the command, for instep_decisions."""
    try:
        return getpass.getuser()[:USER_CHARACTERS_MAX]
    except (KeyError, OSError):  # a user in a container may have no name
        return f"uid {os.getuid()}"
