"""The pages of the console, one module per subject."""

from __future__ import annotations

from collections.abc import Mapping

from instep.console.live import Source
from instep.console.pages import (
    actions,
    cluster,
    configuration,
    decisions,
    documents,
    overdue,
    overview,
    quarantine,
    repairs,
)
from instep.console.requests import ConsolePage

ALL: tuple[ConsolePage, ...] = (
    *overview.PAGES,
    *documents.PAGES,
    *quarantine.PAGES,
    *actions.PAGES,
    *decisions.PAGES,
    *overdue.PAGES,
    *cluster.PAGES,
    *repairs.PAGES,
    *configuration.PAGES,
)
STREAMS: Mapping[str, Source] = {
    **overview.STREAMS,
    **actions.STREAMS,
    **cluster.STREAMS,
    **repairs.STREAMS,
}
