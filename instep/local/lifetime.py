"""What runs from `start` to `close`, as a context manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Lifetime(ABC):
    """Something that `with` starts and closes. It is also closed if its start fails."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
