"""Operator commands on a pipeline: quarantine, replay, rewind, history, timeline, status. No Spark."""
