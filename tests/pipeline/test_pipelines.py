"""Test what a run says about its pipelines before it starts."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from instep import errors, settings
from instep.kafka.connection import Cluster
from instep.pipeline import pending
from instep.pipeline.pipelines import PipelineGroup

SPLIT = {"sql": "SELECT id, state FROM records"}


def declared(event: dict[str, str], transform: dict[str, str] | None) -> settings.Pipeline:
    table = {
        "topic": "t",
        "target": "sqlite:///p.db",
        "table": "t",
        "key": "id",
        "columns": {"state": "state"},
        "event": event,
    }
    if transform is not None:
        table["transform"] = transform
    return msgspec.convert(table, settings.Pipeline)


@pytest.mark.parametrize(
    ("event", "transform", "lacks"),
    [
        ({"document": "id"}, SPLIT, True),
        ({"document": "id", "order": "version"}, SPLIT, False),
        ({"document": "@key"}, SPLIT, False),
        ({"document": "id"}, None, False),
    ],
)
def test_a_run_warns_of_documents_without_an_order(
    event: dict[str, str],
    transform: dict[str, str] | None,
    lacks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_: object) -> None:
        raise errors.TopicMissing("not asked here")

    monkeypatch.setattr(pending, "ahead", unknown)
    said: list[str] = []
    group = PipelineGroup({"p": declared(event, transform)})
    group.measure(cast("Cluster", None), said.append)
    assert [one.startswith("WARNING: p: event.document is not") for one in said] == [True] * lacks
