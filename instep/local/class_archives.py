"""Class-data archives: a JVM maps one into memory instead of loading thousands of classes.

There is one archive for Spark and one for Kafka brokers, each with a note of the Java and the jars
that it was created for. It is created again when these change. The files `*-classes.xz` list the
classes to archive. They are recorded by running the program with
JDK_JAVA_OPTIONS=-XX:DumpLoadedClassList=FILE. A JVM ignores an archive that does not fit.

    python -m instep.local.class_archives     create the archives now
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from instep import errors, spark_options
from instep.local import artifacts, ivy, java, keeper_client, paths
from instep.waiting import wait_until

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class JavaProgram:
    """A Java program whose classes are archived."""

    title: str
    classes: Path
    home: Callable[[], Path]
    class_path: Callable[[], str]

    def archive(self) -> Path:
        """Return the path of the archive; each installation of the program has its own."""
        home = hashlib.sha256(str(self.home()).encode()).hexdigest()[:12]
        return paths.cache() / "classes" / f"{self.title.lower()}-{home}.jsa"

    def jvm_flags(self) -> list[str]:
        """Return the JVM flags that use the archive, if it exists, without any warnings."""
        archive = self.archive()
        if not archive.exists():
            return []
        return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:class+path=off"]


def spark_home() -> Path:
    """Return the folder of the installed Spark."""
    return ivy.find().parent.parent


def spark_class_path() -> str:
    """Return the class path as Spark's own scripts build it."""
    home = spark_home()
    configuration = os.environ.get("SPARK_CONF_DIR") or str(home / "conf")
    first = [str(jar) for jar in sorted((home / "jars").glob("slf4j-api-*.jar"))]
    return os.pathsep.join([configuration, *first, str(home / "jars" / "*")])


def spark_files(*, queries: bool) -> spark_options.SparkFiles:
    """Return what a Spark session needs; for queries, fetch the Kafka connector if necessary."""
    archive = SPARK.archive()
    return spark_options.SparkFiles(
        jars=tuple(artifacts.jars("spark-kafka")) if queries else (),
        archive=archive if archive.exists() else None,
    )


def kafka_home() -> Path:
    """Return the folder of Kafka's jars."""
    return artifacts.jars("kafka")[0].parent


def kafka_class_path() -> str:
    """Return the class path of a broker.

    It names each jar, because an archive fits only the same jars in the same order.
    """
    return os.pathsep.join(map(str, artifacts.jars("kafka")))


SPARK = JavaProgram(
    "Spark", Path(__file__).with_name("spark-classes.xz"), spark_home, spark_class_path
)
KAFKA = JavaProgram(
    "Kafka", Path(__file__).with_name("kafka-classes.xz"), kafka_home, kafka_class_path
)
PROGRAMS = (SPARK, KAFKA)


def prepare_in_background(
    program: JavaProgram, say: Callable[[str], None]
) -> subprocess.Popen[bytes] | None:
    """Start a process that creates a missing archive and outlives this one."""
    if _is_current(program.archive(), _current_note(program)):
        return None
    say(
        f"preparing {program.title}'s classes in the background for faster starts:"
        f" once for this Java and this {program.title}"
    )
    log = paths.cache() / f"{program.title.lower()}-classes.log"
    with paths.explained(log.parent), log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "instep.local.class_archives", program.title],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=paths.python_environment(),
        )


def prepare(program: JavaProgram, say: Callable[[str], None]) -> bool:
    """Create the archive if necessary; return whether it exists.

    A failure is only reported, because everything works without the archive.
    """
    archive, wanted = program.archive(), _current_note(program)
    if _is_current(archive, wanted):
        return True
    archive.parent.mkdir(exist_ok=True)
    with (archive.parent / f"{program.title.lower()}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False  # another process is creating it
        say(
            f"archiving {program.title}'s classes for faster starts:"
            f" once for this Java and this {program.title}, about 20 s"
        )
        try:
            _sweep(archive.parent)
            _make(program, archive, wanted)
        except (errors.InstepError, OSError) as error:
            say(
                f"{program.title}'s classes could not be archived,"
                f" so each start takes some seconds longer: {error}"
            )
            return False
    return True


def _is_current(archive: Path, wanted: dict[str, str]) -> bool:
    return archive.is_file() and _note(archive) == wanted


def _note(archive: Path) -> dict[str, str]:
    """Return the note of what an archive was created for."""
    try:
        noted: dict[str, str] = json.loads(archive.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return noted


def _sweep(folder: Path) -> None:
    """Remove the archives of installations that no longer exist."""
    for archive in folder.glob("*.jsa"):
        if not Path(_note(archive).get("home", "")).is_dir():
            archive.unlink(missing_ok=True)
            archive.with_suffix(".json").unlink(missing_ok=True)


def _current_note(program: JavaProgram) -> dict[str, str]:
    java_program = java.find().resolve()
    release = java_program.parent.parent / "release"
    home = program.home()
    facts = (
        (jar.name, jar.stat()) for jar in sorted([*home.glob("*.jar"), *home.glob("jars/*.jar")])
    )
    version = str(java_program.stat().st_mtime_ns)
    if release.is_file():
        version = release.read_text(encoding="utf-8", errors="replace")
    return {
        "java": version,
        "program": str(java_program),
        "home": str(home),
        # With their times, because the JVM ignores an archive if its jars were installed again.
        "jars": " ".join(f"{name}:{of.st_size}:{of.st_mtime_ns}" for name, of in facts),
        "classes": artifacts.sha256(program.classes),
    }


def _make(program: JavaProgram, archive: Path, wanted: dict[str, str]) -> None:
    """Create the archive in a temporary folder, and move it into place when it is complete."""
    with artifacts.work_folder(archive.parent.parent, f"{program.title.lower()}-classes") as (
        keeper,
        work,
    ):
        names, new, note = work / "classes.list", work / "new.jsa", work / "new.json"
        names.write_bytes(lzma.decompress(program.classes.read_bytes()))
        options = [f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={new}"]
        _dump(keeper, options, program.class_path(), work / "java.log")
        if not new.is_file():
            raise errors.InstepError("the JVM wrote no archive")
        new.replace(archive)
        note.write_text(json.dumps(wanted), encoding="utf-8")
        note.replace(archive.with_suffix(".json"))


def _dump(
    keeper: keeper_client.KeeperClient, options: list[str], class_path: str, log: Path
) -> None:
    arguments = [
        str(java.find()),
        "-Xshare:dump",
        "-XX:+UseSerialGC",
        "-Xlog:disable",
        *options,
        "-cp",
        class_path,
    ]
    keeper.launch(arguments, log=log)
    if not wait_until(lambda: keeper.poll() is not None, TIMEOUT_S, interval_s=0.1):
        raise errors.InstepError(f"the JVM did not write its archive within {TIMEOUT_S:.0f} s")
    status = keeper.poll()
    if status != 0:
        reason = f"exit status {status}"
        if lines := log.read_text(encoding="utf-8", errors="replace").strip().splitlines():
            reason = lines[-1]
        raise errors.InstepError(f"the JVM could not write its archive: {reason}")


if __name__ == "__main__":
    try:
        for chosen in PROGRAMS:
            if chosen.title in sys.argv[1:] or not sys.argv[1:]:
                prepare(chosen, lambda line: print(line, file=sys.stderr))  # noqa: T201
    except errors.InstepError as error:
        sys.exit(str(error))
