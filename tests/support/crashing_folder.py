"""A results folder of a machine that goes down at a chosen change."""

from pathlib import Path

from phpmq_lite.spark.results_folder import LocalResultsFolder


class CrashError(Exception):
    """The machine went down."""


class CrashingFolder(LocalResultsFolder):
    """Files of a machine that goes down before the n-th change; without a number, it never does."""

    def __init__(self, root: Path, changes: int | None = None) -> None:
        super().__init__(root)
        self.left = changes

    def _change(self) -> None:
        if self.left is not None:
            if not self.left:
                raise CrashError
            self.left -= 1

    def write(self, path: str, content: str | bytes) -> None:
        self._change()
        super().write(path, content)

    def move(self, source: str, target: str) -> None:
        self._change()
        super().move(source, target)

    def copy(self, source: str, target: str) -> None:
        self._change()
        super().copy(source, target)

    def remove(self, path: str) -> None:
        self._change()
        super().remove(path)
