"""Clients of PHPMQ: :func:`connect` for asyncio, :func:`connect_blocking` for threads and scripts.

Names are loaded when they are first used; importing this package loads neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phpmq_lite.client.aio import Client, connect
    from phpmq_lite.client.blocking import BlockingClient, connect_blocking
    from phpmq_lite.client.session import Delivery

_HOMES = {
    "BlockingClient": "phpmq_lite.client.blocking",
    "Client": "phpmq_lite.client.aio",
    "Delivery": "phpmq_lite.client.session",
    "connect": "phpmq_lite.client.aio",
    "connect_blocking": "phpmq_lite.client.blocking",
}

__all__ = ["BlockingClient", "Client", "Delivery", "connect", "connect_blocking"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
