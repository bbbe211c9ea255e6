"""A JVM with Kafka's own classes, so that tests can compare with what Java does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from instep.local import artifacts, java


@contextlib.contextmanager
def started() -> Iterator[Any]:
    """Yield Kafka's classes as the gateway shows them. The JVM ends with the block."""
    jars = os.pathsep.join(str(jar) for jar in artifacts.jars("kafka"))
    with Path(os.devnull).open("w") as nowhere:
        port, process = launch_gateway(
            classpath=jars,
            java_path=str(java.find()),
            die_on_exit=True,
            redirect_stdout=nowhere,
            redirect_stderr=nowhere,
            return_proc=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()
            process.stdin.close()
            process.wait(timeout=60)
