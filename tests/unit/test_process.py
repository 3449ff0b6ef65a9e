"""Notifications of systemd, and their interval."""

import asyncio
import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from phpmq_lite import process
from phpmq_lite.process import SystemdNotifier
from phpmq_lite.storage.backend import StoreStatus
from tests.unit.admin.cases import broker_status

PID = 7


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234"])
def test_no_manager_is_notified_without_a_socket(address: str) -> None:
    assert SystemdNotifier.from_environment({"NOTIFY_SOCKET": address}, PID) is None
    assert SystemdNotifier.from_environment({}, PID) is None


@pytest.mark.parametrize(
    ("environment", "each_s"),
    [
        ({}, 5.0),
        ({"WATCHDOG_USEC": "2000000"}, 0.5),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "7"}, 0.5),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "8"}, 5.0),  # of another process
        ({"WATCHDOG_USEC": "3600000000"}, 5.0),
        ({"WATCHDOG_USEC": "0"}, 5.0),
        ({"WATCHDOG_USEC": "soon"}, 5.0),
    ],
)
def test_interval_fits_the_watchdog_of_the_manager(
    environment: dict[str, str], each_s: float
) -> None:
    manager = SystemdNotifier.from_environment({"NOTIFY_SOCKET": "/run/notify"} | environment, PID)
    assert manager is not None
    assert manager.each_s == each_s


def test_missing_manager_is_ignored() -> None:
    SystemdNotifier("@phpmq-lite-test-nobody-listens").notify(READY=1)


def test_notification_is_dropped_if_no_socket_can_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exception would end the broker; the next notification may succeed."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("phpmq_lite.process.socket.socket", refuse)
    SystemdNotifier("/run/notify").notify(WATCHDOG=1)


async def test_manager_hears_that_the_broker_is_a_standby() -> None:
    store = StoreStatus(engine="PostgreSQL", is_active=False, active_broker="db2")
    listening, heard = asyncio.Event(), asyncio.Queue[dict[str, object]]()
    listening.set()
    manager: Any = SimpleNamespace(each_s=60, notify=lambda **given: heard.put_nowait(given))
    service: Any = SimpleNamespace(
        state=SimpleNamespace(listening=listening),
        has_progressed=lambda: True,
        handle=SimpleNamespace(summary=lambda: broker_status(store=store)),
    )
    reporting = asyncio.create_task(process._notify_manager(manager, service))
    message = await heard.get()
    while "READY" not in message:
        message = await heard.get()
    reporting.cancel()
    assert message["STATUS"] == "standby: 127.0.0.1:9100, 127.0.0.1:9102"
