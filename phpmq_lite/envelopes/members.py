"""Where the members of a JSON object lie in its bytes: one is changed, none is rewritten."""

from typing import NamedTuple


class Member(NamedTuple):
    """One top-level member: byte offsets, ends exclusive."""

    name: str
    start: int  # of the quote of its name
    value_start: int
    end: int  # of its value


def members(content: bytes) -> list[Member]:
    """Find the top-level members, in order; repeated ones too.

    Raises:
        ValueError: it is not one JSON object.
    """
    raise NotImplementedError


def with_member(content: bytes, name: str, value: bytes) -> bytes:
    """Replace the value of a member, or add it before the last brace; all else stays as it is."""
    raise NotImplementedError


def without_member(content: bytes, name: str) -> bytes:
    """Take a member out, with its comma; all else stays as it is."""
    raise NotImplementedError
