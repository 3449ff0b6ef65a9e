"""BabelQueue envelopes: validation for the broker, and producers and workers for programs.

The names below are loaded on first use, because the broker does not need the SDK.

Start reading at ``validation.py`` and ``dead_letter_record.py``; then ``inspector.py`` for the
broker, ``producer.py`` and ``transport.py`` for programs.
"""

from typing import TYPE_CHECKING, Final

from phpmq_lite.lazy_imports import names_of

if TYPE_CHECKING:
    from phpmq_lite.envelopes.codec import continue_trace, decode, encode, from_message, make, urn
    from phpmq_lite.envelopes.dead_letter_record import DeadLetterBlock
    from phpmq_lite.envelopes.idempotency import (
        IdempotencyDecision,
        IdempotencyStore,
        SqliteIdempotencyStore,
    )
    from phpmq_lite.envelopes.indexed_fields import IndexedFields, read_indexed_fields
    from phpmq_lite.envelopes.outbox import Outbox, SqliteOutboxStore, create_tables
    from phpmq_lite.envelopes.producer import AsyncProducer, Producer
    from phpmq_lite.envelopes.validation import EnvelopeProblem, Verdict, lint, validate
    from phpmq_lite.envelopes.worker_app import connect
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
    "lint",
    "make",
    "read_indexed_fields",
    "urn",
    "validate",
]

_MODULES: Final = {  # module -> names that it defines
    "worker_app": ("connect",),
    "codec": ("EnvelopeError", "continue_trace", "decode", "encode", "from_message", "make", "urn"),
    "idempotency": ("IdempotencyDecision", "IdempotencyStore", "SqliteIdempotencyStore"),
    "outbox": ("Outbox", "SqliteOutboxStore", "create_tables"),
    "producer": ("AsyncProducer", "Producer"),
    "dead_letter_record": ("DeadLetterBlock",),
    "indexed_fields": ("IndexedFields", "read_indexed_fields"),
    "validation": ("EnvelopeProblem", "Verdict", "validate", "lint"),
}

if not TYPE_CHECKING:  # type checkers read the imports above instead
    __getattr__, __dir__ = names_of(
        __name__, {name: module for module, names in _MODULES.items() for name in names}
    )
