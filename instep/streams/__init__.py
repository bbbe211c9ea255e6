"""Streams: from a topic to another topic, exactly once, in the tasks of a run.

driver: stream_group.py ── runner.py ── starts.py     task: share.py ── publisher.py ── output.py
"""
