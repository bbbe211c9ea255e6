"""Kafka administration that only the commands need: topics, groups, records, replication."""
