"""Names for the shell's completion, as they are now: pipelines, topics, groups, rules.

The shell waits for them at every Tab, so an answer that does not come soon is none, and nothing is ever started or told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

from instep import errors, settings

PATIENCE_S = 1.5
Complete = Callable[[typer.Context, str], list[str]]


def pipelines(context: typer.Context, incomplete: str) -> list[str]:
    return names(incomplete, lambda: _declared(context).pipelines)


def topics(context: typer.Context, incomplete: str) -> list[str]:
    from instep.kafka import topics

    return names(incomplete, lambda: _asked(context, topics.names))


def groups(context: typer.Context, incomplete: str) -> list[str]:
    from instep.kafka.admin import consumer_groups

    return names(
        incomplete,
        lambda: _asked(
            context, lambda cluster: [one.group for one in consumer_groups.listings(cluster)[0]]
        ),
    )


def rules(_context: typer.Context, incomplete: str) -> list[str]:
    from instep.vet import rules

    return names(incomplete.upper(), lambda: rules.ALL)


def codes(_context: typer.Context, incomplete: str) -> list[str]:
    from instep.cli import explaining

    return names(incomplete.upper(), explaining.pages)


def names(incomplete: str, ask: Callable[[], Iterable[str]]) -> list[str]:
    """Return the names that begin so; none when they cannot be found out."""
    try:
        return sorted(name for name in ask() if name.startswith(incomplete))
    except (errors.InstepError, OSError):
        return []


def _declared(context: typer.Context) -> settings.Settings:
    at: typer.Context | None = context
    while at is not None:
        if at.params.get("_config"):
            return settings.load(at.params["_config"])
        at = at.parent  # type: ignore[assignment]
    return settings.load()


def _asked(context: typer.Context, ask: Callable[..., Iterable[str]]) -> Iterable[str]:
    """What a cluster that runs already says."""
    from instep.kafka.connection import Cluster
    from instep.local import registry

    declared = _declared(context)
    bootstrap = declared.kafka.bootstrap or registry.bootstrap()
    if not bootstrap:
        return []
    with Cluster(declared.kafka, bootstrap, timeout_s=PATIENCE_S) as cluster:
        return ask(cluster)
