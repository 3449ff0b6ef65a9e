"""BabelQueue envelopes: what the broker asks of them, and producers and workers around them.

The names below are loaded when they are first used: the broker needs none of the SDK.

The way in for readers of the code: ``verdict.py`` and ``record.py``; then ``intake.py`` for the
broker, ``producer.py`` and ``transport.py`` for programs.
"""

from typing import TYPE_CHECKING, Final

from phpmq_lite.lazy_imports import names_of

if TYPE_CHECKING:
    from phpmq_lite.envelopes.app import connect
    from phpmq_lite.envelopes.codec import continue_trace, decode, encode, from_message, make, urn
    from phpmq_lite.envelopes.dead_letter_record import DeadLetterBlock
    from phpmq_lite.envelopes.idempotency import (
        IdempotencyDecision,
        IdempotencyStore,
        SqliteIdempotencyStore,
    )
    from phpmq_lite.envelopes.indexed_fields import IndexedFields, index_of
    from phpmq_lite.envelopes.outbox import Outbox, SqliteOutboxStore, create_tables
    from phpmq_lite.envelopes.producer import AsyncProducer, Producer
    from phpmq_lite.envelopes.verdict import EnvelopeProblem, Verdict, judge, lint
    from phpmq_lite.errors import EnvelopeError

__all__ = [
    "AsyncProducer",
    "DeadLetterBlock",
    "EnvelopeError",
    "EnvelopeProblem",
    "IdempotencyDecision",
    "IdempotencyStore",
    "IndexedFields",
    "Outbox",
    "Producer",
    "SqliteIdempotencyStore",
    "SqliteOutboxStore",
    "Verdict",
    "connect",
    "continue_trace",
    "create_tables",
    "decode",
    "encode",
    "from_message",
    "index_of",
    "judge",
    "lint",
    "make",
    "urn",
]

_PLACES: Final = {  # module -> names
    "app": ("connect",),
    "codec": ("EnvelopeError", "continue_trace", "decode", "encode", "from_message", "make", "urn"),
    "idempotency": ("IdempotencyDecision", "IdempotencyStore", "SqliteIdempotencyStore"),
    "outbox": ("Outbox", "SqliteOutboxStore", "create_tables"),
    "producer": ("AsyncProducer", "Producer"),
    "dead_letter_record": ("DeadLetterBlock",),
    "indexed_fields": ("IndexedFields", "index_of"),
    "verdict": ("EnvelopeProblem", "Verdict", "judge", "lint"),
}

if not TYPE_CHECKING:  # which knows the names, and what is no name
    __getattr__, __dir__ = names_of(
        __name__, {name: module for module, names in _PLACES.items() for name in names}
    )
