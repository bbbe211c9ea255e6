"""Kafka: connections, topics, offsets and groups; `admin` has what only commands need."""
