"""PHPMQ clients: :func:`connect` for asyncio; :func:`connect_blocking` for threads and scripts.

:class:`Admin` cancels and reschedules messages by their unique keys.
"""

from typing import TYPE_CHECKING

from phpmq_lite.lazy_imports import names_of

if TYPE_CHECKING:
    from phpmq_lite.client.admin import Admin
    from phpmq_lite.client.async_client import Client, connect
    from phpmq_lite.client.blocking_client import BlockingClient, connect_blocking
    from phpmq_lite.client.delivery import Delivery

__all__ = ["Admin", "BlockingClient", "Client", "Delivery", "connect", "connect_blocking"]

if not TYPE_CHECKING:  # type checkers read the imports above instead
    __getattr__, __dir__ = names_of(
        __name__,
        {
            "Admin": "admin",
            "BlockingClient": "blocking_client",
            "Client": "async_client",
            "Delivery": "delivery",
            "connect": "async_client",
            "connect_blocking": "blocking_client",
        },
    )
