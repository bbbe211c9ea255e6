"""Optional parts of instep, and the command that installs what each needs.

instep may come from a checkout or from a wheel, and is on no package index. So a command names the packages themselves,
which works in every case, and not `instep[extra]`, which works in none.
"""

from __future__ import annotations

import re
import shlex
import sys
from importlib import metadata
from importlib.util import find_spec

from instep import errors

# for an installation whose metadata cannot be read
PACKAGES = {
    "spark": ("pyspark==4.2.0", "pyarrow>=18"),
    "postgres": ("psycopg[binary]>=3.2",),
    "mysql": ("pymysql[rsa]>=1.2.4",),
    "lab": ("pika>=1.3.2", "pyzmq>=26", "redis>=5.2", "stomp.py>=8.2"),
}


def packages(extra: str) -> list[str]:
    """What an extra consists of, as this installation declares it."""
    try:
        declared = metadata.requires("instep") or []
    except metadata.PackageNotFoundError:
        declared = []
    found = [line.partition(";")[0].strip() for line in declared if _is_of(line, extra)]
    return found or list(PACKAGES[extra])


def command(extra: str) -> str:
    """The command that installs what an extra needs, into the environment that instep runs in."""
    quoted = " ".join(f"'{package}'" for package in packages(extra))
    python = shlex.quote(sys.executable)
    # an environment that uv made has no pip in it
    installer = (
        f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    )
    return f"{installer} {quoted}"


def missing(what: str, extra: str) -> errors.MissingPart:
    """The error for a part that needs an extra that is not installed."""
    return errors.MissingPart(f"{what} is not installed", command(extra))


def _is_of(requirement: str, extra: str) -> bool:
    return re.search(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""", requirement) is not None
