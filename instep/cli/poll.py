"""`instep poll`: poll a source's query service, and publish what changed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from instep import errors, extras, settings
from instep.cli import completion, output, resources
from instep.cli.options import GLOBAL, AsJson, Config, Debug, MetricsPort, Once

app = typer.Typer()


@app.command()
def poll(
    bridge: Annotated[
        str | None,
        typer.Argument(
            metavar="[BRIDGE]",
            help="Bridge. Needed if the settings declare more than one.",
            autocompletion=completion.bridges,
        ),
    ] = None,
    once: Once = False,
    metrics: MetricsPort = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Poll a query service and publish what changed.

    With --once, poll every document once, then exit, with status 1 if any failed.
    """
    declared = settings.load(GLOBAL.config)
    name = _only_bridge(declared) if bridge is None else bridge
    settings.bridge(declared, name)
    if find_spec("httpx") is None:
        raise extras.missing("httpx", "poll")
    from instep.bridge import progress
    from instep.bridge.poller import BridgePoller

    poller = BridgePoller(name, declared, resources.bootstrap(declared), once=once)
    result = poller.run(metrics_port=metrics)
    if as_json:
        output.print_json(progress.as_json(result))
    if once and result.counts.failed:
        raise typer.Exit(1)


def _only_bridge(declared: settings.Settings) -> str:
    if len(declared.bridges) > 1:
        raise errors.SettingsError(
            "the settings declare more than one bridge",
            f"name one: instep poll NAME (declared: {', '.join(declared.bridges)})",
        )
    if not declared.bridges:
        raise errors.SettingsError(
            "the settings declare no bridge",
            f"add a [bridges.NAME] table to {settings.file_of(GLOBAL.config)}",
        )
    return next(iter(declared.bridges))
