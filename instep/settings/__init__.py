"""The settings file `instep.toml` as frozen values; each setting has a default and a help text.

Precedence: command line, environment (`INSTEP__KAFKA__BOOTSTRAP=…`), file, default. A string may
contain `${NAME}` from the environment. An unknown key is an error that suggests the nearest one.
"""

from __future__ import annotations

from instep.conversion_errors import nearest
from instep.settings.cluster import Kafka, Security, Spark
from instep.settings.description import describe, effective
from instep.settings.file import JOB_TABLES, DeclaredPublisher, DeclaredReader, Settings
from instep.settings.jobs import Archive, Kpi, Stream
from instep.settings.loading import Loaded, file_of, load, load_with_origins, parse
from instep.settings.lookup import (
    any_query,
    archive,
    bridge,
    job_kind,
    job_names,
    kpi,
    pipeline,
    relay,
    stream,
)
from instep.settings.pipeline_checks import column_type
from instep.settings.pipelines import (
    ColumnMapping,
    EventMapping,
    FurtherTable,
    Pipeline,
    Redrive,
    Transform,
    further_views,
)
from instep.settings.sources import Bridge, IdsList, OutboxColumns, Relay
from instep.settings.tree import expanded
from instep.settings.values import (
    ENVIRONMENT_PREFIX,
    KPI_NAME_CHARACTERS_MAX,
    LINE_SEPARATOR,
    LINK_HEADER,
    PART_TYPES,
    SECRET,
    SINK_PREFIX,
    Client,
    Convert,
    Deletes,
    EngineName,
    Guarantee,
    Mechanism,
    Missing,
    ParkingReason,
    ReaderClient,
    RelayGuarantee,
    Unit,
    start_time,
)

__all__ = [
    "ENVIRONMENT_PREFIX",
    "JOB_TABLES",
    "KPI_NAME_CHARACTERS_MAX",
    "LINE_SEPARATOR",
    "LINK_HEADER",
    "PART_TYPES",
    "SECRET",
    "SINK_PREFIX",
    "Archive",
    "Bridge",
    "Client",
    "ColumnMapping",
    "Convert",
    "DeclaredPublisher",
    "DeclaredReader",
    "Deletes",
    "EngineName",
    "EventMapping",
    "FurtherTable",
    "Guarantee",
    "IdsList",
    "Kafka",
    "Kpi",
    "Loaded",
    "Mechanism",
    "Missing",
    "OutboxColumns",
    "ParkingReason",
    "Pipeline",
    "ReaderClient",
    "Redrive",
    "Relay",
    "RelayGuarantee",
    "Security",
    "Settings",
    "Spark",
    "Stream",
    "Transform",
    "Unit",
    "any_query",
    "archive",
    "bridge",
    "column_type",
    "describe",
    "effective",
    "expanded",
    "file_of",
    "further_views",
    "job_kind",
    "job_names",
    "kpi",
    "load",
    "load_with_origins",
    "nearest",
    "parse",
    "pipeline",
    "relay",
    "start_time",
    "stream",
]
