"""The clients of trials: every kind that teams write, unsafe ones included.

Each records every operation in the history. Clients run in this process, or in their own process
that can be killed (`process.py`).
"""
