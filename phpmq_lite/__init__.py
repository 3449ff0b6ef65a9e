"""PHPMQ Lite: a message broker for one machine that keeps every message in SQLite.

``phpmq-lite serve`` runs it: PHPMQ on TCP, an admin web UI, one process, one data folder.
What is confirmed is on disk, and a consumer never sees a message that is not.

Client code needs two names, loaded when they are first used::

    async with phpmq_lite.connect("127.0.0.1:9100") as client: ...        # asyncio
    with phpmq_lite.connect_blocking("127.0.0.1:9100") as client: ...     # threads, scripts

The way in for readers of the code: ``service.py``, ``server/engine.py``, ``broker/broker.py``.
"""

from typing import TYPE_CHECKING

from phpmq_lite.lazy_imports import names_of

if TYPE_CHECKING:
    from phpmq_lite.client import BlockingClient, Client, Delivery, connect, connect_blocking

__version__ = "0.1.0"

__all__ = ["BlockingClient", "Client", "Delivery", "__version__", "connect", "connect_blocking"]

if not TYPE_CHECKING:  # which knows the names, and what is no name
    __getattr__, __dir__ = names_of(
        __name__, {name: "client" for name in __all__ if name != "__version__"}
    )
