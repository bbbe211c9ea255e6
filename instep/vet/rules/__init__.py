"""The rules, by the part of the pipeline or the relay that they check."""

from instep.vet.rule import RULES
from instep.vet.rules import cluster, database, pipeline, publisher, records, relay, topic

ALL = RULES

__all__ = ["ALL", "cluster", "database", "pipeline", "publisher", "records", "relay", "topic"]
