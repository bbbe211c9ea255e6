"""Spark's classes, kept ready: an archive that the JVM maps into memory instead of reading and checking thousands of classes.

It lies beside the jars of Spark's Kafka connector, where a session looks for it, with a note of what it was made for; it is made
anew when Java, Spark or those jars are others. `spark-classes.xz` lists the classes that a pipeline loads; it is recorded
by running one with JDK_JAVA_OPTIONS=-XX:DumpLoadedClassList=FILE.

    python -m instep.local.spark     make the archive now
"""

from __future__ import annotations

import fcntl
import json
import lzma
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from instep import errors
from instep.local import artifacts, ivy, java, keeping

CLASSES = Path(__file__).with_name("spark-classes.xz")
ARCHIVE = "classes.jsa"  # as pipeline/session.py looks for it
NOTE = "classes.json"
TIMEOUT_S = 300.0


def prepare(say: Callable[[str], None]) -> bool:
    """Make the archive unless it is there; whether it is. Nothing depends on it, so a failure is told and no more."""
    jars = artifacts.jars("spark-kafka")
    folder = jars[0].parent
    wanted = _made_for(jars)
    if _is_there(folder, wanted):
        return True
    with (folder / f"{ARCHIVE}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False  # another process is at it
        say("keeping Spark's classes ready for quicker starts: once for this Java and this Spark, half a minute")
        try:
            _make(folder, jars, wanted)
        except (errors.InstepError, OSError) as error:
            say(f"that failed, and starts take some seconds longer: {error}")
            return False
    return True


def _is_there(folder: Path, wanted: dict[str, str]) -> bool:
    try:
        return (folder / ARCHIVE).is_file() and json.loads((folder / NOTE).read_text(encoding="utf-8")) == wanted
    except (OSError, ValueError):
        return False


def _made_for(jars: list[Path]) -> dict[str, str]:
    program = java.find().resolve()
    release = program.parent.parent / "release"
    spark = ivy.find().parent
    return {
        "java": release.read_text(encoding="utf-8", errors="replace") if release.is_file() else str(program.stat().st_mtime_ns),
        "program": str(program),
        "spark": str(spark),
        "jars": " ".join(f"{jar.name}:{jar.stat().st_size}" for jar in [*jars, *sorted(spark.glob("*.jar"))]),
        "classes": artifacts.sha256(CLASSES),
    }


def _make(folder: Path, jars: list[Path], wanted: dict[str, str]) -> None:
    """In a folder of its own, and put in place when it is whole."""
    with artifacts.workshop(folder.parent, "spark-classes") as (keeper, work):
        names, archive = work / "classes.list", work / ARCHIVE
        names.write_bytes(lzma.decompress(CLASSES.read_bytes()))
        _dump(
            keeper, [f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={archive}"], _class_path(jars), work / "java.log"
        )
        if not archive.is_file():
            raise errors.InstepError("the JVM made no archive of its classes")
        archive.replace(folder / ARCHIVE)
        (work / NOTE).write_text(json.dumps(wanted), encoding="utf-8")
        (work / NOTE).replace(folder / NOTE)


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
    prepare(lambda line: print(line, file=sys.stderr))  # noqa: T201 - a program of its own
