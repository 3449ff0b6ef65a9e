"""Making, encoding and decoding envelopes: the SDK's codec behind strict checks."""

from collections.abc import Mapping
from typing import Any

from phpmq_lite.errors import PhpmqError


class EnvelopeError(PhpmqError):
    """An envelope cannot be made, written or read; the message has the JSON pointer."""


def make(
    urn: str,
    data: Mapping[str, Any],
    *,
    queue: str = "default",
    trace_id: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make an envelope with a new ``meta.id``; without a ``trace_id`` a new trace begins.

    Raises:
        EnvelopeError: the URN is blank, or ``meta`` has a reserved member.
    """
    raise NotImplementedError


def from_message(message: Any, *, queue: str = "default") -> dict[str, Any]:
    """Make the envelope of an object with ``get_babel_urn`` and ``to_payload``.

    Its trace goes on where ``get_babel_trace_id`` gives one.

    Raises:
        EnvelopeError: as ``make``; a method is missing.
    """
    raise NotImplementedError


def encode(envelope: Mapping[str, Any]) -> bytes:
    """Write compact UTF-8; NaN, lone surrogates and what JSON has not are refused.

    Raises:
        EnvelopeError: the message names the member by its JSON pointer.
    """
    raise NotImplementedError


def decode(content: bytes) -> dict[str, Any]:
    """Read an envelope that layers A and B accept: ``urn`` folded into ``job``, all else kept.

    Raises:
        EnvelopeError: the message has the reason of the verdict.
    """
    raise NotImplementedError
