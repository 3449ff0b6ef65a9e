"""The two PHPMQ revisions; only the newer one has a TTL in publish and dispatch frames.

The first frame that differs between them shows which one a client speaks (R7).  A client that only
consumes sends no such frame, so the listener that it connected to decides.
"""

from typing import Final, Literal

from phpmq_lite.protocol import frames
from phpmq_lite.protocol.frames import message_header

Revision = Literal["ttl", "legacy"]

# Client frame headers that differ; 002 and 004 are the same in both revisions.
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
    "ttl": "newer, with TTL; dispatches have 4 packets",
    "legacy": "older, without TTL; dispatches have 3 packets",
    None: "unknown; the listener determines it: tcp.listen is for newer clients, tcp.legacy_listen "
    "for older ones",
}

# Logged if a consumer leaves after its first dispatch, as clients of the other revision do.
LISTENER_HINT: Final = (
    "connect clients of the older revision to a tcp.legacy_listen listener and clients of the "
    "newer revision to a tcp.listen listener"
)
