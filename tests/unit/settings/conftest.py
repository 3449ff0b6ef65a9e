"""Fixtures of the tests of settings."""

import os
from pathlib import Path

import pytest

from phpmq_lite import settings


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("PHPMQ_") or name.endswith("_DIRECTORY"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(settings.loading, "SYSTEM_FILE", tmp_path / "none.toml")
