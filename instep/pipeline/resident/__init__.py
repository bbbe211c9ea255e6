"""The resident engine: one Spark job whose tasks keep running and read the topics themselves.

driver: engine.py ── assignments.py            tasks: worker.py ── share.py
            │                                     │
            └────── channel.py, messages.py ──────┘
"""
