"""Counts of what happens around the core, kept by sessions and listeners, read by the admin."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from phpmq_lite.server.inspector import Inspector

# Why a connection was closed, where it passed a limit.
TOO_SLOW: Final = "a message took too long to arrive"
NOT_READ: Final = "it does not read what is sent"
NOT_TAKEN: Final = "it does not take the rest"
SILENT: Final = "silent, and places are short"
SILENT_S: Final = 10  # then, once four fifths of the places are taken


@dataclass(slots=True)
class Figures:
    """Since the broker started; they never fall."""

    clients_opened: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    protocol_errors: Counter[str] = field(default_factory=Counter)  # by code of the grammar
    closed: Counter[str] = field(default_factory=Counter)  # by reason
    paused: Counter[str] = field(default_factory=Counter)  # times a peer was not read, by reason
    late: int = 0  # dispatches not sent, because their deadline passed while they were stored
    inspector: Inspector = field(default_factory=Inspector)
