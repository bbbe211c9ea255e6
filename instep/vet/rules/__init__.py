"""The rules, by the part of the pipeline, relay or stream that they check."""

from instep.vet.rule import RULES
from instep.vet.rules import (
    cluster,
    database,
    output,
    pipeline,
    publisher,
    records,
    relay,
    target_table,
    topic,
)

ALL = RULES

__all__ = [
    "ALL",
    "cluster",
    "database",
    "output",
    "pipeline",
    "publisher",
    "records",
    "relay",
    "target_table",
    "topic",
]
