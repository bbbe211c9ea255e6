"""The lab: settles claims one after another, each in a folder of its run, and can be interrupted and resumed at any point."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import instep
from instep import errors, settings
from instep.kafka import topics
from instep.kafka.admin import consumer_groups
from instep.local import artifacts, class_archives, java
from instep.report import files
from instep_lab import store
from instep_lab.claim import Claim, ClaimResult, Tier, chosen
from instep_lab.cluster_pool import ClusterPool, LabCluster
from instep_lab.trial import PREFIX, Trial
from instep_lab.verdict import ClaimVerdict, Judgement, PartOutcome, Role, VerdictPart, judge

GIB = 1 << 30
DISK_BYTES = {Tier.QUICK: 2 * GIB, Tier.FULL: 8 * GIB}
BROKER_BYTES = GIB  # its heap, what the JVM takes beside it, and the clients that go with it

Progress = Callable[[str], None]


class Lab:
    """Runs the claims of one run."""

    def __init__(
        self,
        run: Path,
        known: Mapping[str, Claim],
        *,
        given: tuple[settings.Kafka, str] | None = None,
        say: Progress,
    ) -> None:
        self._run, self._known, self._given, self._say = run, known, given, say
        self._asked = store.read_run(run)

    def settle(self) -> dict[str, ClaimResult]:
        """Settle what the run has not settled yet; what is settled by then, by claim."""
        if self._given is None:
            _check_room(self._run, self._asked.tier, {claim.brokers for claim in self._left()})
            class_archives.prepare(
                class_archives.KAFKA, self._say
            )  # experiments restart brokers dozens of times
        with ClusterPool(self._given, self._say) as grounds:
            return self.settle_on(grounds)

    def settle_on(self, grounds: ClusterPool) -> dict[str, ClaimResult]:
        """The same on clusters that are there already; the claims that need the fewest brokers first."""
        if self._given:
            sweep(self._run, grounds.of(1), self._say)
        waiting = sorted(self._left(), key=lambda claim: claim.brokers)
        for number, claim in enumerate(waiting, start=1):
            self._say(f"[{number}/{len(waiting)}] {claim.id}: {claim.told}")
            result = self._settle(claim, grounds)
            self._say(f"    {result.verdict} ({result.seconds:.1f} s): {result.judgement.because}")
        return store.read_results(self._run)

    def _left(self) -> list[Claim]:
        """What is not settled yet; SettingsError when a claim of the run is gone."""
        ids = store.remaining(self._asked.claims, store.read_results(self._run))
        return [claim for id_ in ids for claim in chosen(self._known, [id_])]

    def _settle(self, claim: Claim, grounds: ClusterPool) -> ClaimResult:
        asked = self._asked
        result = ClaimResult(
            claim=claim.id,
            tier=asked.tier,
            seed=asked.seed,
            judgement=Judgement(ClaimVerdict.INCONCLUSIVE, "the run was ended in the middle"),
            command=command([claim.id], asked.tier, asked.seed, asked.cluster),
            begun_at=files.now(),
        )
        shutil.rmtree(self._run / claim.id, ignore_errors=True)
        store.write_result(self._run, result)
        began = time.monotonic()
        failure: Exception | None = None
        trial = None
        try:
            ground = grounds.of(claim.brokers)
            if ground is not None and ground.brokers < claim.brokers:
                has = f"the cluster has {ground.brokers}"
                raise errors.InstepError(f"{claim.id} needs {claim.brokers} brokers, and {has}")  # noqa: TRY301
            trial = Trial(
                claim.id,
                run=self._run,
                tier=asked.tier,
                seed=asked.seed,
                ground=ground,
                say=self._say,
            )
            claim.experiment(trial)
        except Exception as error:  # noqa: BLE001 - whatever broke the experiment, the others are still to be settled
            failure = error
        except BaseException:
            if trial is not None:
                trial.abandon()
            raise
        if trial is not None:
            self._leave(claim, trial, grounds)
        parts = trial.parts if trial else []
        if failure is not None:
            parts = [
                *parts,
                VerdictPart(
                    Role.CONTROL,
                    "the experiment can be run",
                    PartOutcome.INCONCLUSIVE,
                    _said(failure),
                ),
            ]
        ended = ClaimResult(
            claim=claim.id,
            tier=result.tier,
            seed=result.seed,
            judgement=judge(parts, claim.until),
            parts=parts,
            tables=trial.tables if trial else [],
            plots=trial.plots if trial else [],
            command=result.command,
            begun_at=result.begun_at,
            seconds=round(time.monotonic() - began, 2),
            ended=True,
        )
        store.write_result(self._run, ended)
        return ended

    def _leave(self, claim: Claim, trial: Trial, grounds: ClusterPool) -> None:
        """Mend what a fault has left, so that the trial can clean up; brokers that do not come back are given up."""
        try:
            if claim.brokers and not claim.harmless:
                trial.ground.mend()
        except errors.InstepError as error:
            self._say(
                f"{claim.id}: the brokers do not come back and are started anew: {error.what}"
            )
            grounds.drop(claim.brokers)
        trial.close()


def meant(known: Mapping[str, Claim], ids: list[str], cluster: str | None) -> list[Claim]:
    """The claims of these ids or families; on a cluster of the user's the harmless ones, and to name another is an error."""
    wanted = chosen(known, ids)
    if cluster is None:
        return wanted
    refused = [claim.id for claim in wanted if not claim.harmless]
    if refused and ids:
        raise errors.SettingsError(
            f"{', '.join(refused)} would harm a cluster: brokers are killed, frozen, looked into, or put behind a proxy",
            "leave --bootstrap out: the lab then starts brokers of its own",
        )
    return [claim for claim in wanted if claim.harmless]


def prepare(
    known: Mapping[str, Claim],
    ids: list[str],
    *,
    tier: Tier,
    seed: int,
    into: Path,
    cluster: str | None = None,
) -> Path:
    """Make the folder of a run of these claims."""
    wanted = meant(known, ids, cluster)
    at = datetime.now(UTC)
    while (into / store.new_id(tier, seed, at)).exists():
        at += timedelta(seconds=1)
    run = store.LabRun(
        id=store.new_id(tier, seed, at),
        tier=tier,
        seed=seed,
        claims=[claim.id for claim in wanted],
        command=command(ids, tier, seed, cluster),
        begun_at=files.now(),
        machine=_machine(),
        releases=_releases(cluster),
        cluster=cluster,
    )
    return store.begin(into, run)


def sweep(run: Path, ground: LabCluster | None, say: Progress) -> None:
    """Remove what an earlier part of this run, which was killed, left in the cluster."""
    if ground is None:
        return
    for made in store.read_made(run):
        if not made.name.startswith(PREFIX):
            continue
        try:
            if made.kind == "topic":
                topics.delete(ground.cluster, made.name)
            elif consumer_groups.exists(ground.cluster, made.name):
                consumer_groups.delete(ground.cluster, made.name)
        except errors.TopicMissing:
            continue
        except errors.InstepError as error:
            say(f"could not remove {made.kind} {made.name}: {error.what}")


def command(ids: Sequence[str], tier: Tier, seed: int, cluster: str | None) -> str:
    """What repeats it."""
    where = f" --bootstrap {cluster}" if cluster else ""
    return " ".join(["instep lab run", *ids, f"--tier {tier} --seed {seed}{where}"])


def _said(failure: Exception) -> str:
    return (
        str(failure)
        if isinstance(failure, errors.InstepError)
        else f"{type(failure).__name__}: {failure}"
    )


def _check_room(run: Path, tier: Tier, clusters: set[int]) -> None:
    """Refuse to begin where the disk or the memory would run out in the middle. `clusters` are the numbers of their brokers."""
    brokers = sum(clusters)
    if not brokers:
        return
    disk, memory = DISK_BYTES[tier], brokers * BROKER_BYTES
    for folder, remedy in (
        (run, "or choose another folder with --into"),
        (Path(tempfile.gettempdir()), "or set TMPDIR"),
    ):
        free = shutil.disk_usage(folder).free
        if free < disk:
            raise errors.InstepError(
                f"{free / GIB:.1f} GiB are free below {folder}, and the lab needs {disk / GIB:.0f} GiB",
                f"free some space there, {remedy}",
            )
    available = _memory_available()
    if available is not None and available < memory:
        raise errors.InstepError(
            f"{available / GIB:.1f} GiB of memory are available, and the lab needs {memory / GIB:.0f} GiB for {brokers} brokers",
            "end other programs, choose claims that need fewer brokers (instep lab list), or use another machine",
        )


def _memory_available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _machine() -> dict[str, str]:
    return {
        "system": platform.system(),
        "release": platform.release(),
        "cores": str(os.cpu_count() or "unknown"),
    }


def _releases(cluster: str | None) -> dict[str, str]:
    found = {
        "instep": instep.__version__,
        "python": platform.python_version(),
        "confluent-kafka": metadata.version("confluent-kafka"),
        "kafka-python": metadata.version("kafka-python"),
    }
    return (
        found
        if cluster
        else {**found, "kafka": artifacts.KAFKA_VERSION, "java": str(java.find_version()[1])}
    )
