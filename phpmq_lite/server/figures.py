"""Counts of what happens around the core, kept by sessions and listeners, read by the admin."""

from collections import Counter
from dataclasses import dataclass, field

from phpmq_lite.server.inspector import Inspector


@dataclass(slots=True)
class Figures:
    """Since the broker started; they never fall."""

    clients_opened: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    protocol_errors: Counter[str] = field(default_factory=Counter)  # by code of the grammar
    closed: Counter[str] = field(default_factory=Counter)  # by reason
    late: int = 0  # dispatches not sent, because their deadline passed while they were stored
    inspector: Inspector = field(default_factory=Inspector)
