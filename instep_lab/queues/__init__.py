"""The same messages through Kafka and through other queues: how fast each takes and gives them, and what each loses when killed.

Everything is measured through Python clients, one connection and one thread each way: the figures compare the systems as a
Python program meets them, not what their servers could do for many clients at once.
"""
