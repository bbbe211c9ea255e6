"""WAITING: connections, topics, offsets, groups."""
