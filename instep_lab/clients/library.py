"""The client libraries that the lab tests."""

from __future__ import annotations

import enum


class Library(enum.StrEnum):
    """The library of a client.

    JAVA is Kafka's own client, in its own process. LIBRDKAFKA is the C library below the clients
    of Python, Go, .NET and others; only it supports tables. KAFKA_PYTHON has the eager sticky
    assignor. SHARE is librdkafka's share consumer, which reads as a member of a share group until
    it is stopped.
    """

    JAVA = "Java"
    LIBRDKAFKA = "librdkafka"
    KAFKA_PYTHON = "kafka-python"
    SHARE = "share"
