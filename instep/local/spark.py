"""Spark's classes, kept ready: an archive that the JVM maps into memory instead of reading and checking thousands of classes.

It lies beside the jars of Spark's Kafka connector, where a session looks for it, one for each installed Spark, with a note
of what it was made for; it is made anew when Java, Spark or those jars are others. `spark-classes.xz` lists the classes that a
pipeline loads; it is recorded by running one with JDK_JAVA_OPTIONS=-XX:DumpLoadedClassList=FILE.

    python -m instep.local.spark     make the archive now
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
from pathlib import Path

import instep
from instep import errors
from instep.local import artifacts, ivy, java, keeping, places

CLASSES = Path(__file__).with_name("spark-classes.xz")
TIMEOUT_S = 300.0


def prepare_in_background(say: Callable[[str], None]) -> subprocess.Popen[bytes] | None:
    """Have the archive made by a process that outlives this one, unless it is there; nobody waits for it."""
    if artifacts.is_kept("spark-kafka"):
        archive, wanted = _archive(artifacts.jars("spark-kafka"))
        if _is_there(archive, wanted):
            return None
    say("preparing Spark's classes in the background for quicker starts: once for this Java and this Spark")
    log = places.cache() / "spark-classes.log"
    package_root = str(Path(instep.__file__).parent.parent)
    with places.explained(log.parent), log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "instep.local.spark"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))},
        )


def prepare(say: Callable[[str], None]) -> bool:
    """Make the archive unless it is there; whether it is. Nothing depends on it, so a failure is told and no more."""
    jars = artifacts.jars("spark-kafka")
    folder = jars[0].parent
    archive, wanted = _archive(jars)
    if _is_there(archive, wanted):
        return True
    with (folder / "classes.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False  # another process is at it
        say("keeping Spark's classes ready for quicker starts: once for this Java and this Spark, half a minute")
        try:
            _sweep(folder)
            _make(archive, jars, wanted)
        except (errors.InstepError, OSError) as error:
            say(f"that failed, and starts take some seconds longer: {error}")
            return False
    return True


def _archive(jars: list[Path]) -> tuple[Path, dict[str, str]]:
    """Where the archive for this Spark lies, and what it must have been made for."""
    wanted = _made_for(jars)
    return jars[0].with_name(f"classes-{hashlib.sha256(wanted['spark'].encode()).hexdigest()[:12]}.jsa"), wanted


def _is_there(archive: Path, wanted: dict[str, str]) -> bool:
    return archive.is_file() and _note(archive) == wanted


def _note(archive: Path) -> dict[str, str]:
    """What an archive was made for."""
    try:
        noted: dict[str, str] = json.loads(archive.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return noted


def _sweep(folder: Path) -> None:
    """Remove the archives of Sparks that are no longer there."""
    for archive in folder.glob("classes-*.jsa"):
        if not Path(_note(archive).get("spark", "")).is_dir():
            archive.unlink(missing_ok=True)
            archive.with_suffix(".json").unlink(missing_ok=True)


def _made_for(jars: list[Path]) -> dict[str, str]:
    program = java.find().resolve()
    release = program.parent.parent / "release"
    spark = ivy.find().parent.parent
    facts = ((jar.name, jar.stat()) for jar in [*jars, *sorted(spark.glob("jars/*.jar"))])
    return {
        "java": release.read_text(encoding="utf-8", errors="replace") if release.is_file() else str(program.stat().st_mtime_ns),
        "program": str(program),
        "spark": str(spark),
        # with their times: the JVM passes over an archive of jars that were installed again
        "jars": " ".join(f"{name}:{of.st_size}:{of.st_mtime_ns}" for name, of in facts),
        "classes": artifacts.sha256(CLASSES),
    }


def _make(archive: Path, jars: list[Path], wanted: dict[str, str]) -> None:
    """In a folder of its own, and put in place when it is whole."""
    with artifacts.workshop(archive.parent.parent, "spark-classes") as (keeper, work):
        names, made, note = work / "classes.list", work / "made.jsa", work / "made.json"
        names.write_bytes(lzma.decompress(CLASSES.read_bytes()))
        _dump(keeper, [f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={made}"], _class_path(jars), work / "java.log")
        if not made.is_file():
            raise errors.InstepError("the JVM made no archive of its classes")
        made.replace(archive)
        note.write_text(json.dumps(wanted), encoding="utf-8")
        note.replace(archive.with_suffix(".json"))


def _dump(keeper: keeping.Keeper, options: list[str], class_path: str, log: Path) -> None:
    arguments = [str(java.find()), "-Xshare:dump", "-XX:+UseSerialGC", "-Xlog:disable", *options, "-cp", class_path]
    keeper.launch(arguments, log=log)
    deadline = time.monotonic() + TIMEOUT_S
    while (status := keeper.poll()) is None:
        if time.monotonic() > deadline:
            raise errors.InstepError(f"the JVM did not put its classes away within {TIMEOUT_S:.0f} s")
        time.sleep(0.1)
    if status != 0:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise errors.InstepError(f"the JVM could not put its classes away: {said[-1] if said else f'exit status {status}'}")


def _class_path(jars: list[Path]) -> str:
    """As Spark's own scripts put it together, with our jars in front."""
    home = ivy.find().parent.parent
    configuration = os.environ.get("SPARK_CONF_DIR") or str(home / "conf")
    first = [str(jar) for jar in sorted((home / "jars").glob("slf4j-api-*.jar"))]
    return os.pathsep.join([*map(str, jars), configuration, *first, str(home / "jars" / "*")])


if __name__ == "__main__":
    try:
        prepare(lambda line: print(line, file=sys.stderr))  # noqa: T201 - a program of its own
    except errors.InstepError as error:
        sys.exit(str(error))
