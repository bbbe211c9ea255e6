"""Resolve modules with Ivy, which is part of pyspark, and fetch their jars from Maven Central."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from xml.sax import saxutils

from instep import errors, extras, terminal
from instep.local import java, keeper_client, paths

DESCRIPTION = """<ivy-module version="2.0">
  <info organisation="instep" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
DEPENDENCY = (
    "    <dependency org={org} name={name} rev={revision} conf={conf} transitive={transitive}/>"
)


def retrieve(
    keeper: keeper_client.KeeperClient,
    work: Path,
    name: str,
    modules: Sequence[str],
    *,
    transitive: bool = False,
) -> list[Path]:
    """Fetch the jars of modules (ORG:NAME:REVISION) to work/jars/ORG/NAME/REVISION/.

    With `transitive`, fetch their dependencies too.
    """
    description, log, jars = work / "ivy.xml", work / "ivy.log", work / "jars"
    description.write_text(describe(name, modules, transitive=transitive), encoding="utf-8")
    arguments = [
        "-cache",
        str(work / "ivy"),
        "-ivy",
        str(description),
        "-confs",
        "default",
        "-types",
        "jar",
        "bundle",
        "maven-plugin",
    ]
    pattern = f"{jars}/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"
    keeper.launch(
        [str(java.find()), "-jar", str(find()), *arguments, "-retrieve", pattern, "-warn"], log=log
    )
    with IvyProgress(f"fetching {name}", work / "ivy") as progress:
        while (status := keeper.poll()) is None:
            progress.show()
            time.sleep(0.1)
        if status != 0:
            raise refusal(name, log.read_text(encoding="utf-8", errors="replace"), work)
        progress.done()
    return sorted(jars.rglob("*.jar"))


def find() -> Path:
    """Return Ivy's jar, without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    found = sorted(jar for place in places or () for jar in Path(place, "jars").glob("ivy-*.jar"))
    if not found:
        raise errors.MissingPart(
            "pyspark, whose Ivy resolves the jars of the local servers, is missing",
            extras.command("spark"),
        )
    return found[-1]


def describe(name: str, modules: Sequence[str], *, transitive: bool) -> str:
    """Return the description file for Ivy.

    The `master` configuration is a module's own jar without its dependencies.
    """
    conf = "default->default" if transitive else "default->master"
    lines = []
    for module in modules:
        org, artifact, revision = (saxutils.quoteattr(part) for part in module.split(":"))
        fields = {"org": org, "name": artifact, "revision": revision}
        lines.append(
            DEPENDENCY.format(
                **fields, conf=saxutils.quoteattr(conf), transitive=f'"{str(transitive).lower()}"'
            )
        )
    return DESCRIPTION.format(name=name, dependencies="\n".join(lines))


def refusal(name: str, log: str, work: Path) -> errors.InstepError:
    """Return the error for a failed fetch, with the reason from Ivy's log."""
    if paths.tells_full_disk(log):
        return errors.InstepError(
            f"no space left below {work.parent} to fetch {name}",
            "free some space, or set INSTEP_HOME",
        )
    lines = [
        line.strip() for line in log.splitlines() if line.strip() and not line.startswith("..")
    ]
    refused = [line for line in lines if "access error" in line]
    missing = [line for line in lines if "not found" in line]
    reason = next(iter(refused or missing or lines), "Ivy gave no reason")
    return errors.MissingPart(
        f"{name} could not be fetched from Maven Central: {reason}",
        "check the network (behind a proxy: "
        "export JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'), then try again",
    )


class IvyProgress:
    """Shows the fetched megabytes: a live line on a terminal, elsewhere a line at the start."""

    def __init__(self, what: str, folder: Path) -> None:
        self._what = what
        self._folder = folder
        self._line = terminal.ProgressLine(sys.stderr)
        self._started = time.monotonic()

    def __enter__(self) -> IvyProgress:
        if not terminal.is_live(sys.stderr):
            self._say(f"{self._what} …")
        return self

    def __exit__(self, *failure: object) -> None:
        self._line.clear()

    def show(self) -> None:
        """Update the live line."""
        self._line.update(self._what, self._fetched_mb(), None, "MB")

    def done(self) -> None:
        """Print the summary."""
        self._line.clear()
        self._say(
            f"{self._what}: {self._fetched_mb():.0f} MB in {time.monotonic() - self._started:.0f} s"
        )

    def _say(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def _fetched_mb(self) -> float:
        total = 0
        for file in self._folder.rglob("*.jar*"):
            try:
                total += file.stat().st_size
            except FileNotFoundError:
                continue
        return total / 1e6
