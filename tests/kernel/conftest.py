"""Nodes of real cgroups for the tests of the agent."""

from collections.abc import Iterator

import pytest

from tests.kernel.sandbox import Node, node


@pytest.fixture
def cgroup() -> Iterator[Node]:
    """A node of cgroup v1, for what does not depend on the version."""
    with node("v1") as made:
        yield made


@pytest.fixture(params=["v1", "v2"])
def cgroups(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node of each version."""
    with node(request.param) as made:
        yield made
