"""What the log says to help somebody whose client does not get along with the broker."""

import asyncio
from typing import Final

from phpmq_lite.broker.queue import Connection
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.server.inspector import Side

_AT_ONCE_S: Final = 1.0
_log = get_logger(__name__)


def hint_at_revision(
    connection: Connection, side: Side, address: str, first_dispatch_at: float | None
) -> None:
    """Say how to help a consumer of the other revision, which dies of its first dispatch.

    ``first_dispatch_at`` is the loop's time.
    """
    if (
        first_dispatch_at is None
        or connection.acked
        or side.revision is not None  # it showed what it speaks
        or asyncio.get_running_loop().time() - first_dispatch_at > _AT_ONCE_S
        or is_quiet("revision_hint")
    ):
        return
    _log.warning(
        "consumer_left_after_first_dispatch",
        address=address,
        client=connection.number,
        hint="if it speaks the older revision, point it at a listener of tcp.legacy_listen; "
        "if the newer one, at tcp.listen",
    )
