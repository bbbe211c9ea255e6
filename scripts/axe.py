"""axe checks pages for accessibility: from a pinned npm package, kept in the cache."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from instep import errors
from instep.local import artifacts, paths

PACKAGE = "axe-core@4.14.0"
MEMBER = "package/axe.min.js"
SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
TIMEOUT_S = 60.0


def script() -> str:
    """Return the script; fetch it with npm if it is not in the cache. Raise MissingPart if not."""
    kept = paths.cache() / f"{PACKAGE}-{SHA256[:12]}.js"
    if not kept.exists() or artifacts.sha256(kept) != SHA256:
        _fetch(kept)
    return kept.read_text(encoding="utf-8")


def _fetch(kept: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise errors.MissingPart(f"{PACKAGE} can only be fetched with npm", "install npm")
    with tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
        try:
            subprocess.run(
                [npm, "pack", PACKAGE],
                cwd=temporary,
                check=True,
                capture_output=True,
                timeout=TIMEOUT_S,
            )
        except (subprocess.SubprocessError, OSError) as error:
            raise errors.MissingPart(f"{PACKAGE} could not be fetched", "check npm") from error
        [archive] = Path(temporary).glob("*.tgz")
        with tarfile.open(archive) as opened:
            member = opened.extractfile(MEMBER)
            assert member is not None
            unpacked = Path(temporary) / "axe.js"
            unpacked.write_bytes(member.read())
        if artifacts.sha256(unpacked) != SHA256:
            raise errors.MissingPart(
                f"{PACKAGE} has the wrong checksum", "the file was not used: fetch it elsewhere"
            )
        unpacked.replace(kept)
