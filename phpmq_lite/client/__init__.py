"""Clients of PHPMQ: :func:`connect` for asyncio, :func:`connect_blocking` for threads and scripts.

Names are loaded when they are first used; importing this package loads neither.
"""

from typing import TYPE_CHECKING

from phpmq_lite.lazy import names_of

if TYPE_CHECKING:
    from phpmq_lite.client.aio import Client, connect
    from phpmq_lite.client.blocking import BlockingClient, connect_blocking
    from phpmq_lite.client.session import Delivery

__all__ = ["BlockingClient", "Client", "Delivery", "connect", "connect_blocking"]

if not TYPE_CHECKING:  # which knows the names, and what is no name
    __getattr__, __dir__ = names_of(
        __name__,
        {
            "BlockingClient": "blocking",
            "Client": "aio",
            "Delivery": "session",
            "connect": "aio",
            "connect_blocking": "blocking",
        },
    )
