"""Counts of dead letters by reason and URN, and of expired messages, for the row of a roll-up.

A count belongs to a loss: its kind and, of a dead letter, the reason and the envelope's URN.  Dead
letters that exceed the limits are counted under ``OTHERS``, so that sums stay exact.
"""

import json
from collections.abc import Mapping
from typing import Final

DEAD_LETTER: Final = "dead"
EXPIRED_DISPATCHED: Final = "expired"  # after a dispatch
EXPIRED_NEVER: Final = "never"  # expired without a dispatch
OTHERS: Final = "(others)"
PAIRS_MAX: Final = 50  # pairs of reason and URN that a queue's row counts by name
PACKED_CHARACTERS: Final = 8_000  # of a row; fewer pairs if their names are long

Loss = tuple[str, str | None, str | None]  # kind, reason and URN
Losses = dict[Loss, int]


def count_loss(
    losses: Losses, kind: str, reason: str | None = None, urn: str | None = None
) -> None:
    """Count a message; if there are too many pairs already, count it under ``OTHERS``."""
    loss = (kind, reason, urn)
    if kind == DEAD_LETTER and len(losses) >= PAIRS_MAX and loss not in losses:
        loss = (kind, OTHERS, OTHERS)
    losses[loss] = losses.get(loss, 0) + 1


def add_losses(first: Losses | None, second: Mapping[Loss, int] | None) -> Losses | None:
    """Return the sum, with the ``PAIRS_MAX`` most frequent pairs; arguments stay unchanged."""
    if not second:
        return first
    total = dict(first or {})
    for loss, count in second.items():
        total[loss] = total.get(loss, 0) + count
    return limit_losses(total) if len(total) > PAIRS_MAX else total


def limit_losses(losses: Losses, characters: int = 1 << 62) -> Losses:
    """Return the most frequent pairs that fit into both limits, and the rest under ``OTHERS``."""
    named: Losses = {}
    others = size = pairs = 0
    for loss, count in sorted(losses.items(), key=lambda item: -item[1]):
        kind, reason, urn = loss
        size += len(reason or "") + len(urn or "") + 40
        if kind != DEAD_LETTER:
            named[loss] = count
        elif reason == OTHERS or pairs >= PAIRS_MAX or size > characters:
            others += count
        else:
            pairs += 1
            named[loss] = count
    return named | {(DEAD_LETTER, OTHERS, OTHERS): others} if others else named


def pack_losses(losses: Losses | None) -> str | None:
    """Encode counts as JSON, at most ``PAIRS_MAX`` pairs and about 8,000 characters."""
    if not losses:
        return None
    limited = limit_losses(losses, PACKED_CHARACTERS)
    return json.dumps([[*loss, count] for loss, count in limited.items()])


def unpack_losses(packed: str | None) -> Losses:
    """Decode counts; damaged input raises ValueError."""
    rows = json.loads(packed) if packed else []
    return {(kind, reason, urn): count for kind, reason, urn, count in rows}
