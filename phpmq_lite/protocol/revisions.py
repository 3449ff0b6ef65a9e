"""The two revisions of PHPMQ: the newer has a TTL in publishes and dispatches, the older has none.

The first frame that differs between them shows which one a client speaks (R7).  A client that only
consumes sends no such frame, so the listener that it connected to decides.
"""

from typing import Final, Literal

from phpmq_lite.protocol import frames
from phpmq_lite.protocol.frames import message_header

Revision = Literal["ttl", "legacy"]

# Headers of frames from clients; 002 and 004 are the same in both revisions.
REVISION_OF_HEADER: Final[dict[bytes, Revision]] = {
    message_header(frames.PUBLISH, 2): "legacy",
    message_header(frames.PUBLISH, 3): "ttl",
    message_header(frames.PUBLISH, 4): "ttl",
    message_header(frames.REQUEUE, 3): "ttl",
    message_header(frames.DEAD_LETTER, 2): "ttl",
}

DISPATCH_HEADERS: Final[dict[Revision, bytes]] = {
    "ttl": message_header(frames.DISPATCH, 4),  # queue, content, id, TTL
    "legacy": message_header(frames.DISPATCH, 3),
}

DESCRIPTIONS: Final[dict[Revision | None, str]] = {
    "ttl": "newer: with TTL; dispatches have 4 packets",
    "legacy": "older: without TTL; dispatches have 3 packets",
    None: "unknown: the listener decides; tcp.listen is for newer clients, tcp.legacy_listen for "
    "older ones",
}

# For a consumer that left after its first dispatch, as a client of the other revision does.
LISTENER_HINT: Final = (
    "if the client speaks the older revision, connect it to a listener of tcp.legacy_listen; "
    "if it speaks the newer one, to tcp.listen"
)
