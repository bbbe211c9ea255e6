"""Clients of every sort that teams write, the unsafe ones too: what trials watch. Each writes down all that it does.

They run in this process, or in one of their own that can be killed (`process.py`).
"""
