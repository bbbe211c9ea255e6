"""RabbitMQ, where it is installed."""

from __future__ import annotations

import os
import shutil

import pytest

needs_rabbitmq = pytest.mark.skipif(
    shutil.which("rabbitmq-server", path=f"{os.environ['PATH']}:/usr/sbin") is None,
    reason="rabbitmq-server is not installed: apt-get install rabbitmq-server",
)
