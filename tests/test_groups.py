"""Test that pytest-xdist runs the tests of a group in one worker."""

import pytest


def test_the_groups_take_effect(request: pytest.FixtureRequest) -> None:
    """Check the name that pytest-xdist gives a test of a group: it ends with the group's."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("only with --dist loadgroup")
    assert request.node.nodeid.endswith("::test_the_groups_take_effect@test_groups.py")
