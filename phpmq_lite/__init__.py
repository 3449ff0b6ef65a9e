"""PHPMQ Lite: a message broker for one machine that keeps every message in SQLite.

``phpmq-lite serve`` runs it: PHPMQ on TCP, an admin web UI, one process, one data folder.
What is confirmed is on disk, and a consumer never sees a message that is not.

Client code needs two names, loaded when they are first used::

    async with phpmq_lite.connect("127.0.0.1:9100") as client: ...        # asyncio
    with phpmq_lite.connect_blocking("127.0.0.1:9100") as client: ...     # threads, scripts

The way in for readers of the code: ``service.py``, ``server/engine.py``, ``broker/core.py``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phpmq_lite.client import BlockingClient, Client, Delivery, connect, connect_blocking

__version__ = "0.1.0"

__all__ = ["BlockingClient", "Client", "Delivery", "__version__", "connect", "connect_blocking"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("phpmq_lite.client"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
