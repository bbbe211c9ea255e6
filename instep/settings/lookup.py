"""Find a declared job by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from instep import errors
from instep.conversion_errors import nearest
from instep.settings.file import JOB_TABLES, Settings
from instep.settings.jobs import Archive, Kpi, Stream
from instep.settings.pipelines import Pipeline
from instep.settings.sources import Bridge, Relay
from instep.settings.values import FILE_NAME

Declared = TypeVar("Declared")


def any_query(settings: Settings, names: Iterable[str]) -> bool:
    """Return whether any of these jobs is a query of Structured Streaming."""
    for name in names:
        match job_kind(settings, name):
            case "pipeline":
                is_query = settings.pipelines[name].chosen_engine == "micro-batch"
            case "stream":
                is_query = settings.streams[name].is_transformed
            case "archive":
                is_query = False
            case _:
                is_query = True
        if is_query:
            return True
    return False


def job_names(settings: Settings) -> list[str]:
    """Return the names of everything that `instep run` runs, pipelines first."""
    return [name for table in JOB_TABLES.values() for name in getattr(settings, table)]


def job_kind(settings: Settings, name: str) -> str:
    """Return the kind of a declared job; raise SettingsError that suggests the nearest name."""
    for kind, table in JOB_TABLES.items():
        if name in getattr(settings, table):
            return kind
    kinds = " or ".join(kind for kind, table in JOB_TABLES.items() if getattr(settings, table))
    _named(kinds or "pipeline", dict.fromkeys(job_names(settings)), name)
    raise AssertionError(name)


def stream(settings: Settings, name: str) -> Stream:
    """Return the stream with that name; raise SettingsError that suggests the nearest one."""
    return _named("stream", settings.streams, name)


def kpi(settings: Settings, name: str) -> Kpi:
    """Return the KPI with that name; raise SettingsError that suggests the nearest one."""
    return _named("kpi", settings.kpis, name)


def archive(settings: Settings, name: str) -> Archive:
    """Return the archive with that name; raise SettingsError that suggests the nearest one."""
    return _named("archive", settings.archives, name)


def pipeline(settings: Settings, name: str) -> Pipeline:
    """Return the pipeline with that name; raise SettingsError that suggests the nearest one."""
    return _named("pipeline", settings.pipelines, name)


def relay(settings: Settings, name: str) -> Relay:
    """Return the relay with that name; raise SettingsError that suggests the nearest one."""
    return _named("relay", settings.relays, name)


def bridge(settings: Settings, name: str) -> Bridge:
    """Return the bridge with that name; raise SettingsError that suggests the nearest one."""
    return _named("bridge", settings.bridges, name)


def _named(kind: str, declared: Mapping[str, Declared], name: str) -> Declared:
    if name in declared:
        return declared[name]
    if not declared:
        raise errors.SettingsError(
            f"there is no {kind} {name!r}: the settings declare none",
            f"add a [{kind}s.NAME] table to {FILE_NAME}",
        )
    raise errors.SettingsError(
        f"there is no {kind} {name!r}{nearest(name, declared)}",
        f"declared: {', '.join(map(repr, declared))}",
    )
