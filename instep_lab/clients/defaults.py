"""The defaults of the client libraries, as the libraries report them."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import cimpl

from instep import errors
from instep.local import artifacts, java

JAVA_PRODUCER = "org.apache.kafka.clients.producer.ProducerConfig"
JAVA_CONSUMER = "org.apache.kafka.clients.consumer.ConsumerConfig"
JAVA_TIMEOUT_S = 60
VALUE_BYTES = 512


def of_java(bundle: str, config: str = JAVA_PRODUCER) -> tuple[str, dict[str, str]]:
    """Return the release of a bundle's Java client and the defaults of its producer or consumer.

    Kafka's configuration classes print their own documentation.
    """
    release, jar = _client(artifacts.jars(bundle))
    logging = [found for found in artifacts.jars("kafka") if found.name.startswith("slf4j-api-")]
    classes = os.pathsep.join(str(one) for one in (jar, *logging))
    printed = subprocess.run(
        [java.find(), "-XX:TieredStopAtLevel=1", "-cp", classes, config],
        capture_output=True,
        text=True,
        check=False,
        timeout=JAVA_TIMEOUT_S,
    )
    if printed.returncode != 0:
        raise errors.InstepError(
            f"{jar.name} does not print its defaults: {printed.stderr.strip()[-200:]}"
        )
    return release, parse(printed.stdout)


def parse(page: str) -> dict[str, str]:
    """Return the defaults in the output of Kafka's configuration classes."""
    found = {}
    for entry in page.split("<h4>")[1:]:
        name = re.search(r'<a id="([^"]+)"', entry)
        default = re.search(r"<th>Default:</th><td>(.*?)</td>", entry)
        if name and default:
            found[name[1]] = default[1].split(" (")[0].strip('"')
    return found


def of_librdkafka(
    names: Sequence[str], given: Mapping[str, str] | None = None
) -> tuple[str, dict[str, str]]:
    """Return the release of librdkafka and its defaults of these settings, queried through C.

    With `given`, these settings are set before.
    """
    # The extension module of confluent-kafka gives access to the functions of librdkafka.
    library = ctypes.CDLL(cimpl.__file__)
    for maker in (library.rd_kafka_conf_new, library.rd_kafka_topic_conf_new):
        maker.restype = ctypes.c_void_p
    configurations = (
        (
            library.rd_kafka_conf_get,
            library.rd_kafka_conf_set,
            ctypes.c_void_p(library.rd_kafka_conf_new()),
            library.rd_kafka_conf_destroy,
        ),
        (
            library.rd_kafka_topic_conf_get,
            library.rd_kafka_topic_conf_set,
            ctypes.c_void_p(library.rd_kafka_topic_conf_new()),
            library.rd_kafka_topic_conf_destroy,
        ),
    )
    found: dict[str, str] = {}
    for get, set_, conf, destroy in configurations:
        for name, text in (given or {}).items():
            set_(conf, name.encode(), text.encode(), None, ctypes.c_size_t(0))
        for name in names:
            value, size = ctypes.create_string_buffer(VALUE_BYTES), ctypes.c_size_t(VALUE_BYTES)
            if get(conf, name.encode(), value, ctypes.byref(size)) == 0:
                found.setdefault(name, value.value.decode())
        destroy(conf)
    return confluent_kafka.libversion()[0], found


def of_kafka_python(given: Mapping[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """Return the release of kafka-python and the defaults of its producer, with Java's names.

    With `given`, these settings are set before.
    """
    import kafka

    return kafka.__version__, _with_dots(kafka.KafkaProducer.DEFAULT_CONFIG, given)


def of_kafka_python_consumer(given: Mapping[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """Return the release of kafka-python and the defaults of its consumer, with Java's names.

    With `given`, these settings are set before.
    """
    import kafka

    return kafka.__version__, _with_dots(kafka.KafkaConsumer.DEFAULT_CONFIG, given)


def _with_dots(defaults: Mapping[str, Any], given: Mapping[str, str] | None) -> dict[str, str]:
    named = {name.replace(".", "_"): value for name, value in (given or {}).items()}
    return {name.replace("_", "."): str(value) for name, value in {**defaults, **named}.items()}


def _client(jars: Sequence[Path]) -> tuple[str, Path]:
    for jar in jars:
        if named := re.fullmatch(r"kafka-clients-(.+)\.jar", jar.name):
            return named[1], jar
    raise errors.InstepError("no Kafka client among the jars")
