"""Test which key `instep emit` uses, and the deletes that it publishes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Message

from instep import errors, settings
from instep.emit import files, publishing
from instep.local.broker import LocalCluster
from tests.support.databases import declare


def declared(**fields: str) -> settings.Settings:
    """Return a pipeline of the topic for each name, with the field that holds the document's id."""
    events = {
        name: {"document": field, "status": "status", "order": "version"}
        for name, field in fields.items()
    }
    return settings.Settings(
        pipelines={
            name: declare("sqlite:///t.db", topic="prints", event=event)
            for name, event in events.items()
        }
    )


def test_the_key_is_the_field_that_the_pipeline_uses_as_document() -> None:
    assert publishing.key_of(declared(), "prints") == files.Key(("doc_id",))
    assert publishing.key_of(declared(a="order.id"), "prints") == files.Key(("order.id",))
    assert publishing.key_of(declared(a="order.id", b="@key"), "prints") == files.Key(("order.id",))
    assert publishing.key_of(declared(a="@key"), "prints") == files.Key(("doc_id",))
    assert publishing.key_of(declared(a="order.id"), "others") == files.Key(("doc_id",))
    with pytest.raises(errors.SettingsError, match=r"different fields: id, order\.id") as caught:
        publishing.key_of(declared(a="order.id", b="id"), "prints")
    assert "--key" in caught.value.remedy


def test_deletes_have_a_key_and_no_value(
    broker: LocalCluster, topic: str, read_all: Callable[..., list[Message]]
) -> None:
    with pytest.raises(errors.SettingsError, match="cannot be a record's key"):
        publishing.publish_deletions(settings.Kafka(), broker.bootstrap, topic, ["C-1", ""])
    assert read_all(topic) == []
    assert (
        publishing.publish_deletions(settings.Kafka(), broker.bootstrap, topic, ["C-1", "C-2"]) == 2
    )
    found = read_all(topic)
    assert sorted((message.key(), message.value()) for message in found) == [
        (b"C-1", None),
        (b"C-2", None),
    ]
