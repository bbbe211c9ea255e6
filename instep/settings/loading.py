"""Read settings from the file and the environment, and check them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from instep import errors, spark_options
from instep.settings.description import effective
from instep.settings.file import Settings
from instep.settings.job_checks import (
    check_archive,
    check_kpi,
    check_relay,
    check_stream,
    refuse_loops,
    refuse_shared_folders,
    refuse_shared_names,
    refuse_shared_outboxes,
)
from instep.settings.jobs import Archive, Kpi, Stream
from instep.settings.pipeline_checks import check_pipeline
from instep.settings.pipelines import Pipeline
from instep.settings.source_checks import check_bridge, check_security
from instep.settings.sources import Bridge, Relay
from instep.settings.tree import (
    convert,
    expand,
    hidden_values,
    join_dotted,
    leaves,
    origin_of,
    override,
    refuse_unknown,
    without_values,
)
from instep.settings.values import ENVIRONMENT_PREFIX, FILE_NAME


class Loaded(msgspec.Struct, frozen=True):
    """Settings, the origin of every key that was set, and masked values of those with `${NAME}`."""

    settings: Settings
    origins: Mapping[str, str]
    hidden: Mapping[str, Any] = {}

    def shown(self) -> list[tuple[str, Any]]:
        """Return (key, value) of every setting, without secrets and values from `${NAME}`."""
        return effective(self.settings, hidden=self.hidden)

    def origin(self, key: str) -> str:
        """Return the origin of a setting; for a table, the origins of its keys."""
        below = [
            where
            for name, where in self.origins.items()
            if name == key or name.startswith(f"{key}.")
        ]
        return ", ".join(dict.fromkeys(below)) or "default"


def load(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the file `path`, else INSTEP_CONFIG, else `./instep.toml`; without a file, defaults."""
    return load_with_origins(path, environ).settings


def file_of(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the settings file, which may not exist."""
    return path or Path(environ.get("INSTEP_CONFIG") or FILE_NAME)


def load_with_origins(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> Loaded:
    """Read the settings like `load`, with the origin of every value."""
    named = path is not None or bool(environ.get("INSTEP_CONFIG"))
    found = file_of(path, environ)
    try:
        text = found.read_text(encoding="utf-8")
    except FileNotFoundError:
        if named:
            raise errors.SettingsError(
                f"settings file {found} does not exist",
                f"create it, or omit --config to use ./{FILE_NAME}",
            ) from None
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise errors.SettingsError(
            f"settings file {found} cannot be read: {error}",
            "make it readable for this user, as UTF-8 text",
        ) from error
    try:
        return read(text, environ, str(found))
    except errors.SettingsError as error:
        if named or text:
            raise errors.SettingsError(f"{found}: {error.what}", error.remedy) from error
        raise


def parse(text: str, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return settings from a file's text and the environment."""
    return read(text, environ, FILE_NAME).settings


def read(text: str, environ: Mapping[str, str], file: str) -> Loaded:
    """Return settings from the text of a file with this name, with the origin of every value."""
    try:
        tree: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise errors.SettingsError(
            f"{file} is not valid TOML: {error}",
            "correct that line: strings are quoted, tables are in [brackets]",
        ) from error
    join_dotted(tree)
    origins = {key: origin_of(file, value) for key, value in leaves(tree, "")}
    for name, value in environ.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            key, given = override(
                tree, Settings, name.removeprefix(ENVIRONMENT_PREFIX).split("__"), value, name
            )
            origins = {
                known: where for known, where in origins.items() if not known.startswith(f"{key}.")
            }
            origins |= {leaf: name for leaf, _ in leaves({key: given}, "")}
    join_dotted(tree)
    refuse_unknown(tree, Settings, "")
    expanded = expand(tree, "", environ)
    try:
        settings = _converted(expanded)
    except errors.SettingsError as error:
        raise errors.SettingsError(
            without_values(error.what, tree, environ), without_values(error.remedy, tree, environ)
        ) from error.__cause__
    return Loaded(settings, origins, hidden_values(tree))


def _converted(expanded: dict[str, Any]) -> Settings:
    """Convert a tree to settings, and check them."""
    tables = (
        (Pipeline, "pipelines"),
        (Stream, "streams"),
        (Kpi, "kpis"),
        (Archive, "archives"),
        (Relay, "relays"),
        (Bridge, "bridges"),
    )
    for kind, place in tables:
        named = expanded.get(place, {})
        for name, table in named.items() if isinstance(named, dict) else ():
            convert(table, kind, f"{place}.{name}")
    settings: Settings = convert(expanded, Settings, "")
    for relay_name in settings.relays:
        check_relay(relay_name)
    for pipeline_name, pipeline in settings.pipelines.items():
        check_pipeline(pipeline_name, pipeline)
    for stream_name, declared_stream in settings.streams.items():
        check_stream(stream_name, declared_stream)
    for kpi_name, declared_kpi in settings.kpis.items():
        check_kpi(settings, kpi_name, declared_kpi)
    for archive_name, declared_archive in settings.archives.items():
        check_archive(archive_name, declared_archive)
    for bridge_name, declared in settings.bridges.items():
        check_bridge(bridge_name, declared)
    refuse_shared_names(settings)
    refuse_shared_folders(settings)
    refuse_loops(settings)
    refuse_shared_outboxes(settings)
    check_security(settings.kafka.security)
    spark_options.check(settings.spark.master, settings.spark.memory)
    return _with_absolute_paths(settings)


def _with_absolute_paths(settings: Settings) -> Settings:
    """Make file names absolute, because a process in another directory may read the files."""
    bridges = {name: _bridge_files(name, one) for name, one in settings.bridges.items()}
    archives = {
        name: one
        if "://" in one.path
        else msgspec.structs.replace(one, path=str(Path(one.path).absolute()))
        for name, one in settings.archives.items()
    }
    security = settings.kafka.security
    files = {name: getattr(security, name) for name in ("ca", "certificate", "key")}
    absolute = {name: str(Path(file).absolute()) for name, file in files.items() if file}
    kafka = msgspec.structs.replace(
        settings.kafka, security=msgspec.structs.replace(security, **absolute)
    )
    return msgspec.structs.replace(settings, kafka=kafka, bridges=bridges, archives=archives)


def _bridge_files(name: str, bridge: Bridge) -> Bridge:
    files = {key: getattr(bridge, key) for key in ("ids_file", "ca")}
    files["state"] = bridge.state or f"bridge-{name}.db"
    absolute = {key: str(Path(file).absolute()) for key, file in files.items() if file}
    return msgspec.structs.replace(bridge, **absolute)
