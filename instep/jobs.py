"""The kinds of jobs that `instep run` and `instep.run` know, by the settings that declare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from instep import settings

if TYPE_CHECKING:
    from instep.pipeline.job import JobGroup


def groups(declared: settings.Settings, names: Sequence[str]) -> list[JobGroup]:
    """Return these jobs in groups of one kind, pipelines first.

    Each kind is imported only if it is used.
    """
    kinds = {name: settings.job_kind(declared, name) for name in names}
    chosen = {kind: [name for name in names if kinds[name] == kind] for kind in settings.JOB_TABLES}
    found: list[JobGroup] = []
    if chosen["pipeline"]:
        from instep.pipeline.pipelines import PipelineGroup

        found.append(
            PipelineGroup({name: settings.pipeline(declared, name) for name in chosen["pipeline"]})
        )
    if chosen["kpi"]:
        from instep.kpis.group import KpiGroup

        found.append(KpiGroup(declared, chosen["kpi"]))
    if chosen["stream"]:
        from instep.streams.stream_group import StreamGroup

        found.append(StreamGroup(declared, chosen["stream"]))
    if chosen["archive"]:
        from instep.archive.group import ArchiveGroup

        found.append(ArchiveGroup(declared, chosen["archive"]))
    return found
