"""Operator commands on a pipeline, without Spark: quarantine, replay, rewind, history, status."""
