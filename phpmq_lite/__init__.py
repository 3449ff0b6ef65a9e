"""PHPMQ Lite, a message broker that stores every message in SQLite, or in PostgreSQL.

``phpmq-lite serve`` runs it in one process, with PHPMQ over TCP, an admin web UI and a data folder.
A confirmed message is on disk, and consumers receive a message only once it is stored.

Client code needs two names, which are loaded on first use::

    async with phpmq_lite.connect("127.0.0.1:9100") as client: ...        # asyncio
    with phpmq_lite.connect_blocking("127.0.0.1:9100") as client: ...     # threads, scripts

To read the code, start with ``service/``, ``server/engine.py`` and ``broker/commands.py``.
"""

from typing import TYPE_CHECKING

from phpmq_lite.lazy_imports import names_of

if TYPE_CHECKING:
    from phpmq_lite.client import BlockingClient, Client, Delivery, connect, connect_blocking

__version__ = "0.2.0"

__all__ = ["BlockingClient", "Client", "Delivery", "__version__", "connect", "connect_blocking"]

if not TYPE_CHECKING:  # type checkers use the imports above instead
    __getattr__, __dir__ = names_of(
        __name__, {name: "client" for name in __all__ if name != "__version__"}
    )
