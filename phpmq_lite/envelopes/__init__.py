"""BabelQueue envelopes: what the broker asks of them, and producers and workers around them.

The names below are loaded when they are first used: the broker needs none of the SDK.

The way in for readers of the code: ``verdict.py`` and ``record.py``; then ``intake.py`` for the
broker, ``producer.py`` and ``transport.py`` for programs.
"""

from typing import TYPE_CHECKING, Final

from phpmq_lite.lazy_imports import names_of

if TYPE_CHECKING:
    from phpmq_lite.envelopes.app import connect
    from phpmq_lite.envelopes.codec import decode, encode, from_message, make, urn
    from phpmq_lite.envelopes.idempotency import Claim, ClaimStore, SqliteClaims
    from phpmq_lite.envelopes.index import Index, index_of
    from phpmq_lite.envelopes.outbox import Outbox, SqliteOutboxStore, create_tables
    from phpmq_lite.envelopes.producer import AsyncProducer, Producer
    from phpmq_lite.envelopes.record import Block
    from phpmq_lite.envelopes.trace import handling
    from phpmq_lite.envelopes.verdict import Problem, Verdict, judge, lint
    from phpmq_lite.errors import EnvelopeError

__all__ = [
    "AsyncProducer",
    "Block",
    "Claim",
    "ClaimStore",
    "EnvelopeError",
    "Index",
    "Outbox",
    "Problem",
    "Producer",
    "SqliteClaims",
    "SqliteOutboxStore",
    "Verdict",
    "connect",
    "create_tables",
    "decode",
    "encode",
    "from_message",
    "handling",
    "index_of",
    "judge",
    "lint",
    "make",
    "urn",
]

_PLACES: Final = {  # module -> names
    "app": ("connect",),
    "codec": ("EnvelopeError", "decode", "encode", "from_message", "make", "urn"),
    "idempotency": ("Claim", "ClaimStore", "SqliteClaims"),
    "outbox": ("Outbox", "SqliteOutboxStore", "create_tables"),
    "producer": ("AsyncProducer", "Producer"),
    "record": ("Block",),
    "trace": ("handling",),
    "verdict": ("Index", "Problem", "Verdict", "index_of", "judge", "lint"),
}

if not TYPE_CHECKING:  # which knows the names, and what is no name
    __getattr__, __dir__ = names_of(
        __name__, {name: module for module, names in _PLACES.items() for name in names}
    )
