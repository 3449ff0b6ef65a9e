"""Brokers of tests: no two of them are given the same port, started or not."""

import secrets
from pathlib import Path

import pytest

from phpmq_lite.testing import broker_process


def test_stopped_broker_keeps_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter([7, 7, 8])
    monkeypatch.setattr(secrets, "randbelow", lambda _: next(asked))
    first, second = broker_process(tmp_path / "first"), broker_process(tmp_path / "second")
    assert "127.0.0.1:20007" in first.command
    assert "127.0.0.1:20008" in second.command


def test_port_is_reused_after_its_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbelow", lambda _: 9)
    broker = broker_process(tmp_path / "first")
    del broker
    assert "127.0.0.1:20009" in broker_process(tmp_path / "second").command
