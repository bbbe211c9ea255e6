"""Optional parts of instep, and the command that installs what each needs.

instep may be installed from a checkout or a wheel; it is on no package index. So a command names
the packages themselves, which always works, and not `instep[extra]`, which never does.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec

from instep import errors

# for an installation whose metadata cannot be read; each requirement as the metadata spells it
PACKAGES = {
    "spark": ("pyspark==4.2.0", "pyarrow>=18"),
    "postgres": ("psycopg[binary]>=3.2",),
    "mysql": ("pymysql[rsa]<1.3,>=1.2.4",),
    "poll": ("httpx<1,>=0.28",),
    "report": ("jinja2>=3.1", "matplotlib>=3.10"),
    "archive": ("deltalake<2,>=1.1",),
    "console": ("argon2-cffi>=25.1", "jinja2>=3.1", "starlette>=0.46", "uvicorn>=0.34"),
    "lab": ("instep[report]", "pika>=1.3.2", "pyzmq>=26", "redis>=5.2"),
    "bench": ("instep[report,spark,postgres,mysql]",),
}


def packages(extra: str) -> list[str]:
    """Return the packages of an extra, as this installation declares them."""
    try:
        declared = metadata.requires("instep") or []
    except metadata.PackageNotFoundError:
        declared = []
    found = [line.partition(";")[0].strip() for line in declared if _is_of(line, extra)]
    return list(dict.fromkeys(_without_references(found or PACKAGES[extra])))


def _without_references(requirements: Iterable[str]) -> Iterator[str]:
    """Yield the packages, with those of other extras in place of `instep[extra]`."""
    for requirement in requirements:
        reference = re.fullmatch(r"instep\[(.+)\]", requirement)
        if reference is None:
            yield requirement
            continue
        for extra in reference[1].split(","):
            yield from packages(extra.strip())


def command(extra: str) -> str:
    """Return the command that installs an extra's packages into instep's environment."""
    quoted = " ".join(f"'{package}'" for package in packages(extra))
    python = shlex.quote(sys.executable)
    # an environment that uv created has no pip
    installer = (
        f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    )
    return f"{installer} {quoted}"


def missing(what: str, extra: str) -> errors.MissingPart:
    """Return the error for a part whose extra is not installed."""
    return errors.MissingPart(f"{what} is not installed", command(extra))


def require_spark() -> None:
    """Raise an error if the packages of the extra `spark` are missing."""
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise missing(package, "spark")


def require_console() -> None:
    """Raise an error if the packages of the extra `console` are missing."""
    for package in ("starlette", "uvicorn", "jinja2", "argon2"):
        if find_spec(package) is None:
            raise missing(package, "console")


def _is_of(requirement: str, extra: str) -> bool:
    return re.search(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""", requirement) is not None
