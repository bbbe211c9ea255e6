"""Kafka's own command-line tools: our output must agree with theirs."""

from __future__ import annotations

import os
import subprocess

from instep.local import artifacts, class_archives, java

TOPICS = "org.apache.kafka.tools.TopicCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
ACLS = "org.apache.kafka.tools.AclCommand"


def run(tool: str, bootstrap: str, *arguments: str) -> str:
    """Return what the tool prints."""
    jars = os.pathsep.join(
        str(jar) for bundle in ("kafka", "kafka-tools") for jar in artifacts.jars(bundle)
    )
    command = [
        str(java.find()),
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        *class_archives.KAFKA.jvm_flags(),
        "-cp",
        jars,
        tool,
        "--bootstrap-server",
        bootstrap,
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
