"""The lab's clusters, shared by the tests of this folder and started on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from instep_lab import claims, integrity, lab, store
from instep_lab.claim import ClaimResult, Tier
from instep_lab.cluster_pool import ClusterPool
from instep_lab.report import archive, contents
from instep_lab.report.contents import LabReport
from instep_lab.verdict import ClaimVerdict, Role

DOCS = Path(__file__).parents[2] / "docs"

Settle = Callable[..., ClaimResult]


@pytest.fixture(scope="package")
def pool() -> Iterator[ClusterPool]:
    with ClusterPool(None, lambda _: None) as shared:
        yield shared


@pytest.fixture
def settle(pool: ClusterPool, tmp_path: Path) -> Settle:
    """Settle one claim on the shared brokers; its records must have been checked."""

    def run(claim: str, *, tier: Tier = Tier.QUICK, seed: int = 1) -> ClaimResult:
        run = lab.prepare(claims.ALL, [claim], tier=tier, seed=seed, into=tmp_path)
        lab.Lab(run, claims.ALL, say=lambda _: None).run_on(pool)
        result = store.read_results(run)[claim]
        if result.verdict is not ClaimVerdict.INCONCLUSIVE:
            controls = [one.statement for one in result.parts if one.role is Role.CONTROL]
            assert integrity.is_checked(claim, controls), controls
        return result

    return run


@pytest.fixture(scope="package")
def published(tmp_path_factory: pytest.TempPathFactory) -> LabReport:
    """Return the run that the published page quotes, from the archive beside the page."""
    file = DOCS / "lab" / archive.NAME
    assert file.exists(), "no run was published: python -m instep_lab.report RUN docs/lab"
    run, kept = archive.unpack(file, tmp_path_factory.mktemp("published"))
    return contents.gather(run, claims.ALL, kept)
