"""Test that pytest-xdist runs the tests of a group in one worker, and what it calls them."""

import pytest

from tests import failed_again


def test_the_groups_take_effect(request: pytest.FixtureRequest) -> None:
    """Check the name that pytest-xdist gives a test of a group: it ends with the group's."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("only with --dist loadgroup")
    assert request.node.nodeid.endswith("::test_the_groups_take_effect@test_groups.py")


def test_failed_tests_run_again_under_the_names_that_pytest_takes() -> None:
    assert failed_again.names(
        [
            "tests/lab/test_lab.py::test_killed[9]@lab",
            "tests/emit/test_publisher.py::test_sent@emit/test_publisher.py",
            "tests/kafka/test_places.py::test_time[@08:00]@kafka/test_places.py",
            "tests/kafka/test_places.py::test_time[@08:00]",
            "tests/lab/test_store.py",
        ]
    ) == [
        "tests/lab/test_lab.py::test_killed[9]",
        "tests/emit/test_publisher.py::test_sent",
        "tests/kafka/test_places.py::test_time[@08:00]",
        "tests/kafka/test_places.py::test_time[@08:00]",
        "tests/lab/test_store.py",
    ]
