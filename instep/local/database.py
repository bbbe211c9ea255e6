"""A local database server: the default version, or another that an environment variable names.

Each version keeps its data in its own folder, because no database opens the files of a newer
version.
"""

from __future__ import annotations

import abc
import os
from pathlib import Path
from typing import ClassVar

from instep import errors
from instep.local import artifacts, keeper_client, paths, server


class Database(server.Server):
    """The common part of the local databases."""

    default_version: ClassVar[str]
    version_variable: ClassVar[str]  # the environment variable that selects another version

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """Return the URL with user and database, as in the settings."""

    @property
    def address(self) -> str:
        return self.url

    @property
    def user(self) -> keeper_client.User | None:
        return paths.database_user()

    @property
    def version(self) -> str:
        """Return the version to run, such as 17 or 11.4."""
        chosen = os.environ.get(self.version_variable) or self.default_version
        others = [
            bundle.removeprefix(f"{self.name}-")
            for bundle in artifacts.BUNDLES
            if bundle.startswith(f"{self.name}-")
        ]
        if chosen not in (self.default_version, *others):
            raise errors.SettingsError(
                f"{self.version_variable}={chosen}: instep has no such version of {self.name}",
                f"choose one of {', '.join(sorted((self.default_version, *others)))},"
                f" or unset {self.version_variable}",
            )
        return chosen

    @property
    def home(self) -> Path:
        """Return the folder of the programs; fetch them if they are not in the cache."""
        if self._is_default:
            return artifacts.unpacked(self.name)
        return artifacts.unpacked(f"{self.name}-{self.version}")

    @property
    def data(self) -> Path:
        """Return the folder of the data."""
        if self._is_default:
            return self.root / "data"
        return self.root / f"data-{self.version}"

    @property
    def _is_default(self) -> bool:
        return self.version == self.default_version
