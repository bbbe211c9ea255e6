"""The lab: tests claims, two at a time where that does not disturb them.

Each claim has a folder in its run. A run can be interrupted and resumed at any point.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import psutil

import instep
from instep import errors, settings
from instep.kafka import topics
from instep.kafka.admin import consumer_groups
from instep.local import artifacts, class_archives, java
from instep.report import files
from instep.waiting import wait_until
from instep_lab import source_tree, store
from instep_lab.claim import Claim, ClaimResult, Tier, select
from instep_lab.clients import defaults, java_client
from instep_lab.cluster_pool import ClusterPool, LabCluster
from instep_lab.interruption import Interruption
from instep_lab.trial import PREFIX, Trial
from instep_lab.verdict import ClaimVerdict, Judgement, PartOutcome, Role, VerdictPart, judge
from instep_lab.worker import ClaimWorker, TakenClaims

GIB = 1 << 30
DISK_BYTES = {Tier.QUICK: 2 * GIB, Tier.FULL: 8 * GIB}
QUEUE_CLIENTS = ("pika", "pyzmq", "redis")
BROKERS_BACK_S = 30.0
BROKER_BYTES = GIB  # heap, other memory of the JVM, and the clients

Progress = Callable[[str], None]
Advance = Callable[[str, int, int], None]  # the claim that runs, how many are done, of how many


def _no_advance(_claim: str, _done: int, _total: int) -> None:
    """Show no progress."""


class Lab:
    """Tests the claims of one run.

    `two_at_once` lets a second process test claims of `claims.ALL` at the same time.
    """

    def __init__(
        self,
        run: Path,
        known: Mapping[str, Claim],
        *,
        given: tuple[settings.Kafka, str] | None = None,
        say: Progress,
        advance: Advance = _no_advance,
        two_at_once: bool = False,
    ) -> None:
        self._run, self._known, self._given, self._say = run, known, given, say
        self._advance, self._two_at_once = advance, two_at_once
        self._request = store.read_run(run)
        self._commit = _commit()

    def run(self) -> dict[str, ClaimResult]:
        """Test the remaining claims of the run; return all its results, by claim."""
        if self._given is None:
            brokers = sum({claim.brokers for claim in self._remaining()})
            _check_room(self._run, self._request.tier, brokers)
            # experiments restart brokers dozens of times, and class archives make that faster
            class_archives.prepare(class_archives.KAFKA, self._say)
            self._two_at_once &= _has_room_for_two(brokers)
        with self._new_pool() as pool:
            if self._given:
                sweep(self._run, pool.of(1), self._say)
            elif self._two_at_once:
                self._run_beside_worker(pool)
            # Idle brokers would take time from those that are measured: the largest cluster goes
            # first, and is gone before the next.
            for brokers in sorted({claim.brokers for claim in self._remaining()}, reverse=True):
                self._run_in_turn(brokers, pool)
                pool.drop(brokers)
        return store.read_results(self._run)

    def run_on(self, pool: ClusterPool) -> dict[str, ClaimResult]:
        """Test the remaining claims on clusters of a pool, those with the fewest brokers first."""
        for brokers in sorted({claim.brokers for claim in self._remaining()}):
            self._run_in_turn(brokers, pool)
        return store.read_results(self._run)

    def assist(self, taken: TakenClaims) -> None:
        """Test claims of a run of another process, as long as one is free.

        Only claims that need one broker or none: the other process has the large cluster.
        """
        free = [claim for claim in _shared(self._remaining()) if claim.brokers <= 1]
        with self._new_pool() as pool:
            for claim in taken.take_each(sorted(free, key=lambda claim: -claim.brokers)):
                self._test(claim, taken.count, pool)

    def _new_pool(self) -> ClusterPool:
        short_lived = self._request.tier is Tier.QUICK
        return ClusterPool(self._given, self._say, short_lived=short_lived)

    def _run_beside_worker(self, pool: ClusterPool) -> None:
        """Test the claims that do not measure speed, together with a second process.

        It begins with the first claims that need one broker, and this process with those that need
        another number. Then both approach each other. What it leaves, because it failed, remains.
        """
        remaining = self._remaining()
        shared = _shared(remaining)
        if sum(claim.brokers <= 1 for claim in shared) == 0 or len(shared) < 2:
            return
        large = [claim for claim in shared if claim.brokers > 1]
        none = [claim for claim in shared if claim.brokers == 0]
        last = [claim for claim in reversed(shared) if claim.brokers == 1]
        with tempfile.TemporaryDirectory(prefix="instep-lab-") as folder:
            taken = TakenClaims(Path(folder) / "taken")
            taken.folder.mkdir()
            for id_ in set(self._request.claims) - {claim.id for claim in remaining}:
                (taken.folder / id_).touch()
            with ClaimWorker(self._run, taken, Path(folder) / "worker.log") as worker:
                for claim in taken.take_each([*large, *none, *last]):
                    self._test(claim, taken.count, pool)
                    worker.relay(self._say)
                status = worker.wait(self._say)
        if status:
            self._say(f"the second process of the lab ended with {status}; its claims run here")

    def _run_in_turn(self, brokers: int, pool: ClusterPool) -> None:
        """Test the remaining claims that need this number of brokers, one after another."""
        waiting = self._remaining()
        ended = len(self._request.claims) - len(waiting)
        needing = [claim for claim in waiting if claim.brokers == brokers]
        for number, claim in enumerate(needing, start=ended + 1):
            self._test(claim, number, pool)

    def _test(self, claim: Claim, number: int, pool: ClusterPool) -> None:
        total = len(self._request.claims)
        self._say(f"[{number}/{total}] {claim.id}: {claim.statement}")
        self._advance(claim.id, number - 1, total)
        result = self._run_claim(claim, pool)
        self._say(
            f"    {claim.id}: {result.verdict} ({result.seconds:.1f} s): {result.judgement.because}"
        )

    def _remaining(self) -> list[Claim]:
        """Return the untested claims; SettingsError if this release does not know one of them."""
        ids = store.remaining(self._request.claims, store.read_results(self._run))
        return [claim for id_ in ids for claim in select(self._known, [id_])]

    def _run_claim(self, claim: Claim, pool: ClusterPool) -> ClaimResult:
        request = self._request
        result = ClaimResult(
            claim=claim.id,
            tier=request.tier,
            seed=request.seed,
            judgement=Judgement(ClaimVerdict.INCONCLUSIVE, "the run was interrupted"),
            command=command([claim.id], request.tier, request.seed, request.cluster),
            begun_at=files.now(),
            commit=self._commit,
            texts=claim.texts,
        )
        # An interrupted attempt may have left files.
        shutil.rmtree(self._run / claim.id, ignore_errors=True)
        # INCONCLUSIVE until it is overwritten: a killed run must not look complete.
        store.write_result(self._run, result)
        began = time.monotonic()
        failure: Exception | None = None
        trial = None
        try:
            cluster = pool.of(claim.brokers)
            if cluster is not None and claim.brokers not in store.read_brokers(self._run):
                store.write_brokers(self._run, claim.brokers, cluster.changed_settings())
            if cluster is not None and not _has_brokers(cluster, claim.brokers):
                raise errors.InstepError(  # noqa: TRY301 - reported like any other failure
                    f"{claim.id} needs {claim.brokers} brokers; the cluster has {cluster.brokers}"
                )
            trial = Trial(
                claim.id,
                run=self._run,
                tier=request.tier,
                seed=request.seed,
                cluster=cluster,
                say=self._say,
            )
            with Interruption() as interruption:
                try:
                    claim.experiment(trial)
                    trial.check_clients()
                finally:
                    interruption.raise_noted()
        except Exception as error:  # noqa: BLE001 - one broken experiment must not stop the others
            failure = error
            if trial is not None:
                # a client that did something else than planned may be what broke it
                with contextlib.suppress(errors.InstepError):
                    trial.check_clients()
        except BaseException:
            if trial is not None:
                trial.abandon()
            raise
        if trial is not None:
            self._clean_up(claim, trial, pool)
        parts = trial.parts if trial else []
        if failure is not None:
            parts = [
                *parts,
                VerdictPart(
                    Role.CONTROL,
                    "the experiment completes",
                    PartOutcome.INCONCLUSIVE,
                    _describe(failure),
                ),
            ]
        ended = ClaimResult(
            claim=claim.id,
            tier=result.tier,
            seed=result.seed,
            judgement=judge(parts, claim.before),
            parts=parts,
            tables=trial.tables if trial else [],
            plots=trial.plots if trial else [],
            examples=trial.examples if trial else [],
            texts=claim.texts,
            command=result.command,
            begun_at=result.begun_at,
            commit=result.commit,
            seconds=round(time.monotonic() - began, 2),
            ended=True,
        )
        store.write_result(self._run, ended)
        return ended

    def _clean_up(self, claim: Claim, trial: Trial, pool: ClusterPool) -> None:
        """Undo faults and remove what the trial created.

        Brokers that do not recover are discarded.
        """
        try:
            if claim.brokers and not claim.harmless:
                trial.cluster.recover()
        except errors.InstepError as error:
            self._say(f"{claim.id}: the brokers did not recover and will be replaced: {error.what}")
            pool.drop(claim.brokers)
        trial.close()


def select_for_cluster(
    known: Mapping[str, Claim], ids: list[str], cluster: str | None
) -> list[Claim]:
    """Return the claims with these ids or families.

    On the user's cluster only harmless claims may run: naming another is an error.
    """
    selected = select(known, ids)
    if cluster is None:
        return selected
    refused = [claim.id for claim in selected if not claim.harmless]
    if refused and ids:
        raise errors.SettingsError(
            f"{', '.join(refused)} cannot run on your cluster: experiments kill or freeze brokers,"
            " read their files, or put a proxy in front of them",
            "omit --bootstrap: the lab then starts its own brokers",
        )
    return [claim for claim in selected if claim.harmless]


def prepare(
    known: Mapping[str, Claim],
    ids: list[str],
    *,
    tier: Tier,
    seed: int,
    into: Path,
    cluster: str | None = None,
) -> Path:
    """Create the folder of a run of these claims."""
    selected = select_for_cluster(known, ids, cluster)
    at = datetime.now(UTC)
    while (into / store.new_id(tier, seed, at)).exists():
        at += timedelta(seconds=1)
    run = store.LabRun(
        id=store.new_id(tier, seed, at),
        tier=tier,
        seed=seed,
        claims=[claim.id for claim in selected],
        command=command(ids, tier, seed, cluster),
        begun_at=files.now(),
        commit=_commit(),
        files=source_tree.files(),
        machine=_machine(),
        releases=_releases(cluster),
        cluster=cluster,
    )
    return store.begin(into, run)


def sweep(run: Path, cluster: LabCluster | None, say: Progress) -> None:
    """Remove the topics and groups that this run left in the cluster when it was killed."""
    if cluster is None:
        return
    for resource in store.read_created(run):
        # A safeguard: never delete what the lab did not name.
        if not resource.name.startswith(PREFIX):
            continue
        try:
            if resource.kind == "topic":
                topics.delete(cluster.kafka, resource.name)
            elif consumer_groups.exists(cluster.kafka, resource.name):
                consumer_groups.delete(cluster.kafka, resource.name)
        except errors.TopicMissing:  # recorded, but not created
            continue
        except errors.InstepError as error:
            say(f"could not remove {resource.kind} {resource.name}: {error.what}")


def command(ids: Sequence[str], tier: Tier, seed: int, cluster: str | None) -> str:
    """Return the command that repeats a run."""
    where = f" --bootstrap {cluster}" if cluster else ""
    return " ".join(["instep lab run", *ids, f"--tier {tier} --seed {seed}{where}"])


def _describe(failure: Exception) -> str:
    if isinstance(failure, errors.InstepError):
        return str(failure)
    described = f"{type(failure).__name__}: {failure}"
    if failure.__cause__ is not None:
        described += f", caused by {type(failure.__cause__).__name__}: {failure.__cause__}"
    return described


def _shared(claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims that two processes may test at the same time."""
    return [claim for claim in claims if not claim.alone]


def _has_room_for_two(brokers: int) -> bool:
    """Return whether cores and memory suffice for a second process with a broker of its own."""
    available = psutil.virtual_memory().available
    return (os.cpu_count() or 1) > 1 and available >= (brokers + 1) * BROKER_BYTES


def _check_room(run: Path, tier: Tier, brokers: int) -> None:
    """Raise if disk or memory would run out during a run that starts this number of brokers."""
    if not brokers:
        return
    disk, memory = DISK_BYTES[tier], brokers * BROKER_BYTES
    for folder, remedy in (
        (run, "or choose another folder with --into"),
        (Path(tempfile.gettempdir()), "or point TMPDIR at another disk"),
    ):
        free = shutil.disk_usage(folder).free
        if free < disk:
            raise errors.InstepError(
                f"{folder} has {free / GIB:.1f} GiB of free space, and the lab needs"
                f" {disk / GIB:.0f} GiB",
                f"free some space there, {remedy}",
            )
    available = psutil.virtual_memory().available
    if available < memory:
        raise errors.InstepError(
            f"{available / GIB:.1f} GiB of memory are available, and the lab needs"
            f" {memory / GIB:.0f} GiB for {brokers} brokers",
            "stop other programs, choose claims that need fewer brokers (see instep lab list),"
            " or use another machine",
        )


def _has_brokers(cluster: LabCluster, wanted: int) -> bool:
    """Return whether the cluster has enough brokers.

    Wait for those of the lab: a broker on a busy machine may lose its session for a moment.
    """
    patience_s = BROKERS_BACK_S if cluster.own else 0.0
    return wait_until(lambda: cluster.brokers >= wanted, patience_s)


def _commit() -> str | None:
    """Return the commit of this checkout, marked if files were changed since; None without git."""
    folder = Path(__file__).parent
    found = _git(folder, "rev-parse", "HEAD")
    if not found:
        return None
    if _git(folder, "status", "--porcelain", "--untracked-files=no"):
        return f"{found} with local changes"
    return found


def _git(folder: Path, *arguments: str) -> str:
    program = shutil.which("git")
    if program is None:
        return ""
    done = subprocess.run(
        [program, "-C", folder, *arguments], capture_output=True, text=True, check=False, timeout=20
    )
    return done.stdout.strip()


def _machine() -> dict[str, str]:
    return {
        "system": platform.system(),
        "release": platform.release(),
        "cores": str(os.cpu_count() or "unknown"),
        "memory": f"{psutil.virtual_memory().total / GIB:.0f} GiB",
    }


def _releases(cluster: str | None) -> dict[str, str]:
    """Return the releases of clients and servers, as far as they are known before the run."""
    found = {
        "instep": instep.__version__,
        "python": platform.python_version(),
        "librdkafka": defaults.of_librdkafka(())[0],
    }
    for package in ("confluent-kafka", "kafka-python", *QUEUE_CLIENTS):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    if cluster is None:
        found |= {"kafka": artifacts.KAFKA_VERSION, "java": str(java.find_version()[1])}
        found["activemq"] = artifacts.ACTIVEMQ_VERSION
        # without the jars, the experiments that need them say what is missing
        with contextlib.suppress(errors.InstepError):
            found["kafka-clients (Java)"] = java_client.release()
    return found
