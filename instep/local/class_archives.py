"""Class-data archives: a JVM maps one into memory instead of reading and verifying thousands of classes.

There is one archive for Spark and one for Kafka's brokers. It lies beside the jars that it belongs to, with a note of what it
was made for, and is made again when Java or those jars change. `*-classes.xz` list the classes to archive; they are
recorded by running the program with JDK_JAVA_OPTIONS=-XX:DumpLoadedClassList=FILE. A JVM ignores an archive that does not fit.

    python -m instep.local.class_archives     make the archives now
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import lzma
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import instep
from instep import errors
from instep.local import artifacts, ivy, java, keeper_client, paths

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class JavaProgram:
    """A Java program whose classes are archived."""

    title: str
    bundle: str
    classes: Path
    home: Callable[[], Path]
    class_path: Callable[[list[Path]], str]

    def archive(self, jars: list[Path]) -> Path:
        """Return the place of the archive; there is one for each installation of the program."""
        return jars[0].with_name(
            f"classes-{hashlib.sha256(str(self.home()).encode()).hexdigest()[:12]}.jsa"
        )

    def jvm_flags(self, jars: list[Path]) -> list[str]:
        """Return the flags that let a JVM use the archive, and keep it silent about one that does not fit."""
        archive = self.archive(jars)
        return (
            [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:class+path=off"]
            if archive.exists()
            else []
        )


def spark_home() -> Path:
    return ivy.find().parent.parent


def spark_class_path(jars: list[Path]) -> str:
    """Return the class path as Spark's own scripts build it, with our jars in front."""
    home = spark_home()
    configuration = os.environ.get("SPARK_CONF_DIR") or str(home / "conf")
    first = [str(jar) for jar in sorted((home / "jars").glob("slf4j-api-*.jar"))]
    return os.pathsep.join([*map(str, jars), configuration, *first, str(home / "jars" / "*")])


def kafka_home() -> Path:
    return artifacts.jars("kafka")[0].parent


def kafka_class_path(jars: list[Path]) -> str:
    """Return the class path of a broker: each jar by name, since an archive fits only the same jars in the same order."""
    return os.pathsep.join(map(str, jars))


SPARK = JavaProgram(
    "Spark",
    "spark-kafka",
    Path(__file__).with_name("spark-classes.xz"),
    spark_home,
    spark_class_path,
)
KAFKA = JavaProgram(
    "Kafka", "kafka", Path(__file__).with_name("kafka-classes.xz"), kafka_home, kafka_class_path
)
PROGRAMS = (SPARK, KAFKA)


def prepare_in_background(
    program: JavaProgram, say: Callable[[str], None]
) -> subprocess.Popen[bytes] | None:
    """Start a process that makes the missing archive and outlives this one. Nobody waits for it."""
    if artifacts.is_kept(program.bundle):
        jars = artifacts.jars(program.bundle)
        if _is_current(program.archive(jars), _made_for(program, jars)):
            return None
    say(
        f"preparing {program.title}'s classes in the background for faster starts: once for this Java and this {program.title}"
    )
    log = paths.cache() / f"{program.title.lower()}-classes.log"
    package_root = str(Path(instep.__file__).parent.parent)
    with paths.explained(log.parent), log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "instep.local.class_archives", program.title],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    filter(None, (package_root, os.environ.get("PYTHONPATH")))
                ),
            },
        )


def prepare(program: JavaProgram, say: Callable[[str], None]) -> bool:
    """Make the archive unless it is there, and return whether it is. A failure is only reported: nothing depends on it."""
    jars = artifacts.jars(program.bundle)
    folder = jars[0].parent
    archive, wanted = program.archive(jars), _made_for(program, jars)
    if _is_current(archive, wanted):
        return True
    with (folder / "classes.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False  # another process makes it
        say(
            f"archiving {program.title}'s classes for faster starts: once for this Java and this {program.title}, about 20 s"
        )
        try:
            _sweep(folder)
            _make(program, archive, jars, wanted)
        except (errors.InstepError, OSError) as error:
            say(
                f"{program.title}'s classes could not be archived, so each start takes some seconds longer: {error}"
            )
            return False
    return True


def _is_current(archive: Path, wanted: dict[str, str]) -> bool:
    return archive.is_file() and _note(archive) == wanted


def _note(archive: Path) -> dict[str, str]:
    """Return what an archive was made for."""
    try:
        noted: dict[str, str] = json.loads(archive.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return noted


def _sweep(folder: Path) -> None:
    """Remove the archives of installations that no longer exist."""
    for archive in folder.glob("classes-*.jsa"):
        if not Path(_note(archive).get("home", "")).is_dir():
            archive.unlink(missing_ok=True)
            archive.with_suffix(".json").unlink(missing_ok=True)


def _made_for(program: JavaProgram, jars: list[Path]) -> dict[str, str]:
    java_program = java.find().resolve()
    release = java_program.parent.parent / "release"
    home = program.home()
    facts = ((jar.name, jar.stat()) for jar in [*jars, *sorted(home.glob("jars/*.jar"))])
    return {
        "java": release.read_text(encoding="utf-8", errors="replace")
        if release.is_file()
        else str(java_program.stat().st_mtime_ns),
        "program": str(java_program),
        "home": str(home),
        # with their times: the JVM ignores an archive of jars that were installed again
        "jars": " ".join(f"{name}:{of.st_size}:{of.st_mtime_ns}" for name, of in facts),
        "classes": artifacts.sha256(program.classes),
    }


def _make(program: JavaProgram, archive: Path, jars: list[Path], wanted: dict[str, str]) -> None:
    """Make the archive in a temporary folder and move it into place when it is complete."""
    with artifacts.workshop(archive.parent.parent, f"{program.bundle}-classes") as (keeper, work):
        names, made, note = work / "classes.list", work / "made.jsa", work / "made.json"
        names.write_bytes(lzma.decompress(program.classes.read_bytes()))
        options = [f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={made}"]
        _dump(keeper, options, program.class_path(jars), work / "java.log")
        if not made.is_file():
            raise errors.InstepError("the JVM wrote no archive")
        made.replace(archive)
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
    deadline = time.monotonic() + TIMEOUT_S
    while (status := keeper.poll()) is None:
        if time.monotonic() > deadline:
            raise errors.InstepError(f"the JVM did not write its archive within {TIMEOUT_S:.0f} s")
        time.sleep(0.1)
    if status != 0:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise errors.InstepError(
            f"the JVM could not write its archive: {said[-1] if said else f'exit status {status}'}"
        )


if __name__ == "__main__":
    try:
        for chosen in PROGRAMS:
            if chosen.title in sys.argv[1:] or not sys.argv[1:]:
                prepare(chosen, lambda line: print(line, file=sys.stderr))  # noqa: T201 - a program of its own
    except errors.InstepError as error:
        sys.exit(str(error))
