"""Secrets as systems hand them out: root owns the file, and our group may read it."""

import os
from pathlib import Path

import pytest

from phpmq_lite.admin.auth.services import initial_password
from phpmq_lite.errors import SettingsError

PASSWORD = "correct horse battery"


@pytest.mark.parametrize(
    ("mode", "is_taken"), [(0o400, True), (0o440, True), (0o640, True), (0o444, False)]
)
def test_first_password_may_be_handed_out_by_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_taken: bool
) -> None:
    file = tmp_path / "admin.initial_password_file"
    file.write_text(f"{PASSWORD}\n", encoding="utf-8")
    file.chmod(mode)
    if file.stat().st_uid != 0:
        pytest.skip("only root can make a file of root's")
    monkeypatch.setattr(os, "geteuid", lambda: 10_001)
    if is_taken:
        assert initial_password(file) == PASSWORD
    else:
        with pytest.raises(SettingsError, match=rf"mode {mode:04o}"):
            initial_password(file)
