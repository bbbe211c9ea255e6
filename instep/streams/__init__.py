"""Streams: from a topic to another topic, exactly once.

driver: stream_group.py ── runner.py ── starts.py       publishers.py ── publisher.py ── output.py
  without a transformation   resident.py ── task: share.py ──┘
  with a transformation      transforming.py ────────────────┘
"""
