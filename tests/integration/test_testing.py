"""Brokers of tests: no two share a port, and the memory of the tests slows none."""

import asyncio
import secrets
from pathlib import Path

import pytest

from phpmq_lite.client.async_client import connect
from phpmq_lite.server import watchdog
from phpmq_lite.testing import broker_process, running_service


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


async def test_publisher_does_not_wait_for_the_memory_of_the_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = 64 << 30
    monkeypatch.setattr(watchdog, "resident_bytes", lambda: resident)
    async with running_service(tmp_path) as running:
        brake = running.service.handle.memory_limiter
        async with connect(running.host, running.port) as client:
            while brake.resident_bytes != resident:
                await client.publish_confirmed("orders", b"1")
                await asyncio.sleep(0.01)
        assert brake.limit_hits == 0
