"""Kafka compared with other queues: how fast each is, and what each loses when it is killed.

All systems are measured through Python clients, with one connection and one thread in each
direction. The figures compare the systems as a Python program experiences them, not what their
servers could do for many clients at once.
"""
