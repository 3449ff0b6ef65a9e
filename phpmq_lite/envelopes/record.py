"""Dead-letter records: the content that died, with a block that says why.  Pure."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Block:
    """The member ``dead_letter`` of a record."""

    reason: str  # failed, unknown_urn or poison
    original_queue: str  # where it failed
    failed_at: int  # Unix ms
    attempts: int
    error: str | None = None
    exception: str | None = None
    lang: str = "python"
    detail: str | None = None  # the exact cause: a reason of a verdict, max_deliveries, expired …
    message_id: str | None = None  # the wire id of what died


def build(content: bytes, block: Block, *, is_kept: bool = False) -> bytes:
    """Make the record of a content: spliced, replaced in place, wrapped or (``is_kept``) as it is.

    ``is_kept`` is for opaque queues; an unsupported schema_version is kept as it is too.
    """
    raise NotImplementedError


def read_block(content: bytes) -> Block | None:
    """Read the block of a record; None where there is none, or not of these types."""
    raise NotImplementedError


def revive(content: bytes) -> bytes:
    """Give what is sent again: block removed, attempts 0, a wrapper unwrapped; else unchanged."""
    raise NotImplementedError
