"""Whether the broker is in order: the checks behind ``/readyz`` and the system page."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phpmq_lite.admin import formats
from phpmq_lite.admin.context import Context
from phpmq_lite.server.status import BrokerStatus
from phpmq_lite.settings import Settings

# How far a start has come, by its steps; the rest of the time is the next step's.
_STEPS: Final = {
    "starting": 0,
    "checking the write-ahead log": 10,
    "checking the database": 20,
    "migrating": 40,
    "recovering": 60,
    "ready": 100,
}


@dataclass(slots=True, frozen=True)
class Check:
    """One thing that should be in order."""

    name: str
    is_good: bool
    text: str
    is_needed: bool = True  # to be ready; else the broker is degraded without it


def percent(step: str) -> int:
    """Say how far a start has come."""
    return _STEPS.get(step, 80)


async def checks(context: Context, status: BrokerStatus) -> list[Check]:
    """Look at all that being ready needs, and at the room: nothing of it asks the database."""
    settings = context.settings
    disk = await asyncio.to_thread(_disk, context.readers.path.parent, status)
    is_started = context.is_ready() or status.is_draining
    return [
        Check("migrated", is_started, "the schema is up to date" if is_started else status.step),
        *disk,
        _listeners(settings, status),
        Check("not draining", not status.is_draining,
              "draining" if status.is_draining else "takes messages"),
    ]  # fmt: skip


def _disk(folder: Path, status: BrokerStatus) -> list[Check]:
    """Look at the data folder, in a thread.

    Short of room the broker is ready all the same: consumers must reach it, to make some.
    """
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return [Check("writable", is_good=False, text=f"the data folder: {error.strerror}")]
    is_writable = not found.f_flag & os.ST_RDONLY and os.access(folder, os.W_OK)
    says = "the data folder can be written" if is_writable else "the data folder cannot be written"
    free = formats.size(found.f_bavail * found.f_frsize)
    short = status.shortage
    return [
        Check("writable", is_writable and not status.trouble, status.trouble or says),
        Check("disk", short is None, f"{free} free" if short is None else short.detail,
              is_needed=False),
    ]  # fmt: skip


def _listeners(settings: Settings, status: BrokerStatus) -> Check:
    wanted = [
        text for text in (*settings.tcp.listen, *settings.tcp.legacy_listen) if text != "none"
    ]
    count = len(status.listeners)
    is_good = status.is_draining or count >= len(wanted)
    return Check("listeners", is_good, f"{count} of {len(wanted)} open")
