"""The settings file as a whole."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from instep.settings.cluster import Kafka, Spark
from instep.settings.jobs import Archive, Kpi, Stream
from instep.settings.pipelines import Pipeline
from instep.settings.sources import Bridge, Relay
from instep.settings.values import Client, ReaderClient, SettingsTable

# The kinds of jobs that `instep run` runs, with the tables that declare them. A name is declared
# only once among them.
JOB_TABLES = {"pipeline": "pipelines", "stream": "streams", "kpi": "kpis", "archive": "archives"}


class DeclaredPublisher(SettingsTable, frozen=True, kw_only=True):
    """A program that publishes to a topic, for `instep vet`."""

    topic: Annotated[str, Meta(description="topic that it publishes to")]
    client: Annotated[Client, Meta(description="client library, whose defaults instep knows")] = (
        "instep"
    )
    config: Annotated[
        dict[str, str | int | float | bool],
        Meta(description="settings of the client that it changes, by the client's own names"),
    ] = {}


class DeclaredReader(SettingsTable, frozen=True, kw_only=True):
    """A program other than a pipeline that reads a topic, for `instep vet`."""

    topic: Annotated[str, Meta(description="topic that it reads")]
    client: Annotated[
        ReaderClient, Meta(description="client library, whose defaults instep knows")
    ] = "java"
    group: Annotated[
        str | None, Meta(description="its consumer group; default: the name of this table")
    ] = None
    config: Annotated[
        dict[str, str | int | float | bool],
        Meta(description="settings of the client that it changes, by the client's own names"),
    ] = {}


class Vet(SettingsTable, frozen=True, kw_only=True):
    """What `instep vet` needs to know."""

    outage_hours_max: Annotated[
        int,
        Meta(
            description="longest outage, in hours, that a pipeline must survive without losing"
            " events",
            ge=1,
        ),
    ] = 72
    accept: Annotated[
        dict[str, str], Meta(description="rules whose findings are accepted: RULE = reason")
    ] = {}


class Settings(SettingsTable, frozen=True, kw_only=True):
    """Everything that a settings file declares."""

    kafka: Annotated[Kafka, Meta(description="the cluster")] = Kafka()
    spark: Annotated[Spark, Meta(description="where the pipelines run")] = Spark()
    pipelines: Annotated[dict[str, Pipeline], Meta(description="pipelines, by name")] = {}
    streams: Annotated[dict[str, Stream], Meta(description="streams, by name")] = {}
    kpis: Annotated[dict[str, Kpi], Meta(description="KPIs, by name")] = {}
    archives: Annotated[dict[str, Archive], Meta(description="archives, by name")] = {}
    relays: Annotated[dict[str, Relay], Meta(description="relays, by name")] = {}
    publishers: Annotated[
        dict[str, DeclaredPublisher],
        Meta(description="publishers, by name; only used by `instep vet`"),
    ] = {}
    readers: Annotated[
        dict[str, DeclaredReader],
        Meta(description="readers other than pipelines, by name; only used by `instep vet`"),
    ] = {}
    bridges: Annotated[dict[str, Bridge], Meta(description="polling bridges, by name")] = {}
    vet: Annotated[Vet, Meta(description="for `instep vet`")] = Vet()
