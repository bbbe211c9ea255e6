"""Check that this machine has the shared libraries of a fetched program."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from instep import errors

DEBIAN_PACKAGES = {
    "libaio.so.1": "libaio1",
    "libcrypt.so.1": "libcrypt1",
    "libcrypto.so.3": "libssl3",
    "libgcc_s.so.1": "libgcc-s1",
    "liblz4.so.1": "liblz4-1",
    "liblzma.so.5": "liblzma5",
    "libncurses.so.6": "libncurses6",
    "libnuma.so.1": "libnuma1",
    "libpam.so.0": "libpam0g",
    "libssl.so.3": "libssl3",
    "libstdc++.so.6": "libstdc++6",
    "libsystemd.so.0": "libsystemd0",
    "libtinfo.so.6": "libtinfo6",
    "liburing.so.2": "liburing2",
    "libz.so.1": "zlib1g",
    "libzstd.so.1": "libzstd1",
}


def check(program: Path) -> None:
    """Raise if the program lacks a library."""
    ldd = shutil.which("ldd")
    if ldd is None:
        return
    run = subprocess.run(
        [ldd, program], capture_output=True, text=True, check=False, env={"LC_ALL": "C"}
    )
    missing = parse_missing(run.stdout)
    if missing:
        packages = [
            DEBIAN_PACKAGES.get(library, f"the package of {library}") for library in missing
        ]
        raise errors.MissingPart(
            f"{program.name} cannot run here: {', '.join(missing)} missing",
            f"install it: Debian and Ubuntu `apt install {' '.join(packages)}`",
        )


def parse_missing(ldd_output: str) -> list[str]:
    """Return the libraries that ldd did not find."""
    return re.findall(r"^\s*(\S+) => not found", ldd_output, re.MULTILINE)
