"""Kafka administration for the commands: topics, groups, records, replication.

Of this folder, a running pipeline uses only `admin_extras`.
"""
