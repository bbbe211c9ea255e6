"""Streams: from a topic to another topic, exactly once.

driver: stream_group.py ── runner.py ── starts.py
publishing: partition_publishers.py ── publisher.py ── output.py
  without a transformation: resident.py in the driver, share.py in resident tasks, which publish
  with a transformation: transforming.py in the driver, which publishes
"""
