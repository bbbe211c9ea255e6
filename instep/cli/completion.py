"""Shell completion: names of pipelines, topics, groups, rules and codes.

The shell waits for an answer on every Tab. Completion therefore starts nothing, prints nothing, and
returns no names if they are not available quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

from instep import errors, settings

TIMEOUT_S = 1.5  # the usual 10 s would block the shell


def pipelines(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a declared pipeline."""
    return matching(incomplete, lambda: _load_settings(context).pipelines)


def jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a declared job: a pipeline, a stream, a KPI or an archive."""
    return matching(incomplete, lambda: settings.job_names(_load_settings(context)))


def kpis(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a declared KPI."""
    return matching(incomplete, lambda: _load_settings(context).kpis)


def archives(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a declared archive."""
    return matching(incomplete, lambda: _load_settings(context).archives)


def relays(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a declared relay."""
    return matching(incomplete, lambda: _load_settings(context).relays)


def streams(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a declared stream."""
    return matching(incomplete, lambda: _load_settings(context).streams)


def bridges(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a declared bridge."""
    return matching(incomplete, lambda: _load_settings(context).bridges)


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a topic."""
    from instep.kafka import topics

    return matching(incomplete, lambda: _ask_cluster(context, topics.names))


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a consumer group."""
    from instep.kafka.admin import consumer_groups
    from instep.kafka.connection import Cluster

    def names(cluster: Cluster) -> list[str]:
        listings, _ = consumer_groups.listings(cluster)
        return [listing.group for listing in listings]

    return matching(incomplete, lambda: _ask_cluster(context, names))


def rules(_context: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of a vet rule."""
    from instep.vet import rules

    return matching(incomplete.upper(), lambda: rules.ALL)


def codes(_context: typer.Context, incomplete: str) -> list[str]:
    """Complete a code that `instep explain` knows."""
    from instep.cli import explain

    return matching(incomplete.upper(), explain.pages)


def matching(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    """Return the names that start with this text. Return none if the names are not available."""
    try:
        return sorted(name for name in names() if name.startswith(incomplete))
    except (errors.InstepError, OSError):
        return []


def _load_settings(context: typer.Context) -> settings.Settings:
    # --config may stand before or after the name of the command, so any context may have it.
    current: typer.Context | None = context
    while current is not None:
        if current.params.get("_config"):
            return settings.load(current.params["_config"])
        current = current.parent  # type: ignore[assignment]
    return settings.load()


def _ask_cluster(context: typer.Context, ask: Callable[..., Iterable[str]]) -> Iterable[str]:
    """Return what a running cluster answers, or nothing if none is running."""
    from instep.kafka.connection import Cluster
    from instep.local import registry

    declared = _load_settings(context)
    bootstrap = declared.kafka.bootstrap or registry.bootstrap()
    if not bootstrap:
        return []
    with Cluster(declared.kafka, bootstrap, timeout_s=TIMEOUT_S) as cluster:
        return ask(cluster)
