"""The fail-stop stores its reason first: the end of the writer process is not another one."""

import os

import pytest

from phpmq_lite.errors import OutcomeUnknownError
from phpmq_lite.service import active


class Folder:
    """Records what a fail-stop does with a data folder."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def write_last_error(self, error: BaseException, _at_ms: int) -> bool:
        self.calls.append(str(error))
        return True

    def kill_writer(self, *, waits: bool) -> None:
        self.calls.append("kill, and wait" if waits else "kill")


class ExitedError(Exception):
    """The process would have ended."""


def test_reason_is_written_before_the_writer_process_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(code: int) -> None:
        raise ExitedError(code)

    monkeypatch.setattr(active, "LOG_REASON_S", 1e6)
    monkeypatch.setattr(os, "_exit", end)
    folder = Folder()
    with pytest.raises(ExitedError, match="74"):
        active.fail_stop(folder, OutcomeUnknownError("disk I/O error"))  # type: ignore[arg-type]
    assert folder.calls == ["disk I/O error", "kill, and wait"]
