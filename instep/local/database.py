"""A local database server: the usual version, or another that an environment variable names.

Each version keeps its data in a folder of its own, because no database opens the files of a newer version.
"""

from __future__ import annotations

import abc
import os
from pathlib import Path
from typing import ClassVar

from instep import errors
from instep.local import artifacts, keeper_client, paths, server


class Database(server.Server):
    """What the local databases have in common."""

    usual_version: ClassVar[str]
    version_variable: ClassVar[str]  # the environment variable that selects another version

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """The address with user and database, as settings have it."""

    @property
    def address(self) -> str:
        return self.url

    @property
    def user(self) -> keeper_client.User | None:
        return paths.database_user()

    @property
    def version(self) -> str:
        """The version to run, such as 17 or 11.4."""
        chosen = os.environ.get(self.version_variable) or self.usual_version
        others = [
            bundle.removeprefix(f"{self.name}-")
            for bundle in artifacts.BUNDLES
            if bundle.startswith(f"{self.name}-")
        ]
        if chosen not in (self.usual_version, *others):
            raise errors.SettingsError(
                f"{self.version_variable}={chosen}: no local {self.name} of this version can be fetched",
                f"choose one of {', '.join(sorted((self.usual_version, *others)))}, or unset {self.version_variable}",
            )
        return chosen

    @property
    def home(self) -> Path:
        """The folder of the programs, fetched first when they are not in the cache."""
        return artifacts.unpacked(self.name if self._is_usual else f"{self.name}-{self.version}")

    @property
    def data(self) -> Path:
        return self.root / ("data" if self._is_usual else f"data-{self.version}")

    @property
    def _is_usual(self) -> bool:
        return self.version == self.usual_version
