"""The lab's clusters, shared by the tests of this folder and started on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from instep_lab import claims, lab, store
from instep_lab.claim import ClaimResult, Tier
from instep_lab.cluster_pool import ClusterPool

Settle = Callable[..., ClaimResult]


@pytest.fixture(scope="package")
def pool() -> Iterator[ClusterPool]:
    with ClusterPool(None, lambda _: None) as shared:
        yield shared


@pytest.fixture
def settle(pool: ClusterPool, tmp_path: Path) -> Settle:
    """Settle one claim on the shared brokers."""

    def run(claim: str, *, tier: Tier = Tier.QUICK, seed: int = 1) -> ClaimResult:
        run = lab.prepare(claims.ALL, [claim], tier=tier, seed=seed, into=tmp_path)
        lab.Lab(run, claims.ALL, say=lambda _: None).run_on(pool)
        return store.read_results(run)[claim]

    return run
