"""Test the benchmark of publishing on a real broker with a few events. No figures are asserted."""

from __future__ import annotations

import pytest

from instep import errors, settings
from instep.document import event
from instep.kafka import connection, topics
from instep.local.broker import LocalCluster
from instep_bench import publish
from instep_bench.publish import PublishOptions


def test_all_contestants_are_measured_in_turn_and_nothing_is_left(broker: LocalCluster) -> None:
    with connection.Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        before = topics.names(cluster)
    messages: list[str] = []
    options = PublishOptions(events=200, documents=10, rounds=2, bootstrap=broker.bootstrap)
    result = publish.run(options, messages.append, "instep bench publish")
    names = [publish.SEND, publish.SEND_RAW, publish.LOOP, publish.LOOP_WITH_HEADERS]
    measured = [message.partition(":")[0] for message in messages if "events/s" in message]
    assert measured == [*names, *names[1:], names[0]]
    throughput = [one for one in result.figures if one.name == "throughput"]
    assert [one.labels["contestant"] for one in throughput] == names
    assert all(len(one.values) == 2 and one.low > 0 for one in result.figures)
    ratios = [one for one in result.figures if one.unit == "times"]
    assert [one.labels["contestant"] for one in ratios] == [*names[:2], names[3]]
    with connection.Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        assert topics.names(cluster) == before


def test_values_have_the_wanted_size() -> None:
    events = publish.events_of(PublishOptions(size=200, documents=12))
    assert {len(event.value(one)) for one in events} == {200}
    assert len({one.document for one in events}) == 12


@pytest.mark.parametrize("wrong", [{"events": 0}, {"rounds": 0}, {"partitions": 0}, {"size": 100}])
def test_invalid_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(errors.SettingsError):
        publish.run(PublishOptions(**wrong), lambda _: None, "")  # type: ignore[arg-type]
