"""Check what the types of the settings of streams, KPIs, archives and relays cannot express."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from instep import errors
from instep.settings import lookup
from instep.settings.file import JOB_TABLES, Settings
from instep.settings.jobs import Archive, Kpi, Stream
from instep.settings.pipeline_checks import check_start
from instep.settings.pipelines import Pipeline
from instep.settings.sources import Relay
from instep.settings.values import KPI_NAME_CHARACTERS_MAX, TOPIC_PART


def refuse_shared_names(settings: Settings) -> None:
    """Refuse a name that two jobs have: `instep run NAME` would be ambiguous."""
    seen: dict[str, str] = {}
    for table in JOB_TABLES.values():
        for name in getattr(settings, table):
            if name in seen:
                raise errors.SettingsError(
                    f"{seen[name]}.{name} and {table}.{name} have the same name, which"
                    " `instep run` needs to tell them apart",
                    "rename one of them; a job that has run before keeps its position only under"
                    " its old name",
                )
            seen[name] = table


def refuse_shared_folders(settings: Settings) -> None:
    """Refuse two archives in one folder, or one in the folder of another.

    Vacuum removes every file below an archive's folder that the archive does not know.
    """
    folders = {name: _folder(archive.path) for name, archive in settings.archives.items()}
    for name, folder in folders.items():
        for other, outer in folders.items():
            if other != name and f"{folder}/".startswith(f"{outer}/"):
                where = "is" if folder == outer else "is below"
                raise errors.SettingsError(
                    f"archives.{name}.path {where} the folder of archives.{other}",
                    "give each archive a folder of its own, beside the others",
                )


def _folder(path: str) -> str:
    """Return a folder so that the same folder has the same text, however it is written."""
    local = path.removeprefix("file://")
    return path.rstrip("/") if "://" in local else str(Path(local).resolve())


def refuse_loops(settings: Settings) -> None:
    """Refuse streams that bring records back to the topic that they came from."""
    for name, stream in settings.streams.items():
        for topic in _outputs(stream):
            way = _way(settings.streams, topic, stream.source)
            if way is not None:
                streams = ", ".join(f"streams.{one}" for one in (name, *way))
                raise errors.SettingsError(
                    f"{streams} bring records back to the topic {stream.source!r} that they came"
                    " from: they would never end",
                    "let one of them publish to another topic",
                )


def _way(streams: Mapping[str, Stream], start: str, end: str) -> list[str] | None:
    """Return the streams that bring records of one topic to another; None if none do."""
    ways: dict[str, list[str]] = {start: []}
    waiting = [start]
    while waiting and end not in ways:
        topic = waiting.pop()
        for name, stream in streams.items():
            for output in _outputs(stream):
                if stream.source == topic and output not in ways:
                    ways[output] = [*ways[topic], name]
                    waiting.append(output)
    return ways.get(end)


def _outputs(stream: Stream) -> list[str]:
    """Return the topics that a stream publishes to."""
    return [topic for topic in (stream.target, stream.dead_letters) if topic is not None]


def refuse_shared_outboxes(settings: Settings) -> None:
    """Refuse two relays that read the same table: each removes what it has published."""
    seen: dict[tuple[str, ...], str] = {}
    for name, relay in settings.relays.items():
        other = seen.setdefault(_outbox_identity(relay), name)
        if other != name:
            raise errors.SettingsError(
                f"relays.{name} and relays.{other} have the same source and the same outbox"
                f" {relay.outbox!r}: each removes what it has published, and the other one never"
                " sees those rows",
                f'give each relay an outbox of its own: [relays.{name}] outbox = "…"',
            )


def _outbox_identity(relay: Relay) -> tuple[str, ...]:
    """Return source and outbox without what may differ for one table: user, driver, options."""
    scheme, _, rest = relay.source.partition("?")[0].partition("://")
    kind = scheme.partition("+")[0]
    kind = {"postgres": "postgresql", "mariadb": "mysql"}.get(kind, kind)
    place, _, database = rest.partition("/")
    outbox = relay.outbox.removeprefix("main." if kind == "sqlite" else "public.")
    return kind, place.rpartition("@")[2].lower(), database, outbox


def check_stream(name: str, stream: Stream) -> None:
    place = f"streams.{name}"
    if not TOPIC_PART.fullmatch(name):
        raise errors.SettingsError(
            f"{place}: a stream's name is part of a topic's name",
            "use 1 to 100 letters, digits, dots, hyphens and underscores",
        )
    if stream.sql is not None and stream.python is not None:
        raise errors.SettingsError(f"{place} has both sql and python", "remove one of them")
    if stream.target == stream.source or stream.dead_letters == stream.source:
        raise errors.SettingsError(
            f"{place} publishes to the topic {stream.source!r} that it reads: it would never end",
            "publish to another topic",
        )
    if stream.dead_letters == stream.target:
        raise errors.SettingsError(
            f"{place}.dead_letters is the output topic", "choose another topic"
        )
    check_start(place, stream.start)


def check_kpi(settings: Settings, name: str, kpi: Kpi) -> None:
    place = f"kpis.{name}"
    if not name or len(name) > 100:
        raise errors.SettingsError(
            f"{place}: a KPI's name must have 1 to 100 characters", "choose another name"
        )
    if (kpi.pipeline is None) is (kpi.topic is None):
        problem = "both `pipeline` and `topic`" if kpi.topic else "neither `pipeline` nor `topic`"
        raise errors.SettingsError(f"{place} has {problem}", "name one of them")
    event = kpi.event
    if kpi.pipeline is not None:
        event = _counted_pipeline(settings, place, kpi.pipeline).event
    if kpi.pipeline is not None and kpi.event is not None:
        raise errors.SettingsError(
            f"{place}.event is set, but pipeline {kpi.pipeline!r} says which fields are used",
            "remove it, or name a topic instead of the pipeline",
        )
    if kpi.topic is not None and kpi.target is None:
        raise errors.SettingsError(
            f"{place} has no target database", 'add e.g. target = "sqlite:///kpis.db"'
        )
    if event is None or event.status is None:
        where = f"pipelines.{kpi.pipeline}" if kpi.pipeline else place
        raise errors.SettingsError(
            f"{place} counts status changes, but {where}.event.status is not set",
            f'add to [{where}.event]: status = "status"',
        )
    _check_durations(place, kpi)
    check_start(place, kpi.start)


def _counted_pipeline(settings: Settings, place: str, name: str) -> Pipeline:
    """Return the pipeline of a KPI; refuse one whose events are not the records of its topic."""
    pipeline = lookup.pipeline(settings, name)
    if pipeline.transform is not None:
        raise errors.SettingsError(
            f"{place}.pipeline is {name!r}, which has a transformation: a KPI would count the"
            " records as they are, not what is made of them",
            "let a stream publish the events: [streams.NAME] with the same statement; then name"
            f" its output topic in [{place}] instead of the pipeline, with target and event",
        )
    return pipeline


def _check_durations(place: str, kpi: Kpi) -> None:
    for name, statuses in kpi.durations.items():
        if not name or len(name) > KPI_NAME_CHARACTERS_MAX or not name.isprintable():
            raise errors.SettingsError(
                f"{place}.durations: {name!r} cannot be the name of a duration",
                f"use 1 to {KPI_NAME_CHARACTERS_MAX} printable characters",
            )
        if len(set(statuses)) != 2 or len(statuses) != 2 or "" in statuses:
            raise errors.SettingsError(
                f"{place}.durations.{name} is {statuses!r}",
                'name two different statuses: ["QUEUED", "PRINTED"]',
            )


def check_archive(name: str, archive: Archive) -> None:
    place = f"archives.{name}"
    if not TOPIC_PART.fullmatch(name):
        raise errors.SettingsError(
            f"{place}: an archive's name is part of a consumer group's name",
            "use 1 to 100 letters, digits, dots, hyphens and underscores",
        )
    if not archive.path:
        raise errors.SettingsError(f"{place}.path is empty", "name a folder of its own")
    check_start(place, archive.start)


def check_relay(name: str) -> None:
    """Refuse a name that cannot be part of a topic's name."""
    if not TOPIC_PART.fullmatch(name):
        raise errors.SettingsError(
            f"relays.{name}: a relay's name is part of a topic's name",
            "use 1 to 100 letters, digits, dots, hyphens and underscores",
        )
