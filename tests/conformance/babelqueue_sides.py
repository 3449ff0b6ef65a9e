"""The two sides that the suite is put to: the package itself, and the layer around it.

Both have the same methods, so that each case is asked of both in the same words.
"""

import json
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from babelqueue import BabelQueueError, EnvelopeCodec
from babelqueue import _poison_record as sdk_record
from babelqueue.app import retry_delay
from babelqueue.dead_letter import annotate
from babelqueue.idempotency import InMemoryStore, wrap
from babelqueue.schema import validate_schema

from phpmq_lite import errors
from phpmq_lite.envelopes import codec, dead_letter_record
from phpmq_lite.envelopes.idempotency import (
    IdempotencyDecision,
    SqliteIdempotencyStore,
    idempotency_key,
)
from phpmq_lite.envelopes.payload_schema import read_schema
from phpmq_lite.envelopes.transport import RetryDelays
from phpmq_lite.envelopes.validation import validate

Refused = (errors.EnvelopeError, BabelQueueError)


class Side(Protocol):
    name: str

    def make(self, urn: str, data: Any, **options: Any) -> dict[str, Any]: ...
    def encode(self, envelope: dict[str, Any]) -> bytes: ...
    def decode(self, content: bytes) -> dict[str, Any]: ...
    def is_read(self, content: bytes) -> bool: ...
    def accepts(self, content: bytes) -> bool: ...
    def identity(self, content: bytes) -> tuple[str | None, list[str]]: ...
    def is_poison(self, content: bytes) -> bool: ...
    def record(self, content: bytes, reason: str, queue: str, attempts: int) -> bytes: ...
    def delay(self, case: Mapping[str, Any], uniform: Callable[[float, float], float]) -> float: ...
    def is_valid(self, data: Any, schema: Any) -> bool: ...
    def once(self, folder: Path) -> "Once": ...


class Once(Protocol):
    """Runs a handler once for each meta.id."""

    def handle(self, envelope: dict[str, Any], handler: Callable[[], None]) -> None: ...
    def forget(self, meta_id: str) -> None: ...


@contextmanager
def warned() -> Iterator[list[str]]:
    """Collect what the SDK's codec warns of."""
    texts: list[str] = []

    class Collector(logging.Handler):
        def emit(self, entry: logging.LogRecord) -> None:
            texts.append(entry.getMessage())

    logger = logging.getLogger("babelqueue.codec")
    collector = Collector(level=logging.WARNING)
    logger.addHandler(collector)
    try:
        yield texts
    finally:
        logger.removeHandler(collector)


class Package:
    """The SDK as it is."""

    name = "package"

    def make(self, urn: str, data: Any, **options: Any) -> dict[str, Any]:
        return EnvelopeCodec.make(urn, data, **options)

    def encode(self, envelope: dict[str, Any]) -> bytes:
        return EnvelopeCodec.encode(envelope).encode()

    def decode(self, content: bytes) -> dict[str, Any]:
        return EnvelopeCodec.decode(content.decode())

    def is_read(self, content: bytes) -> bool:
        return EnvelopeCodec.decode(content.decode()) != {}

    def accepts(self, content: bytes) -> bool:
        try:
            return EnvelopeCodec.accepts(self.decode(content))
        except BabelQueueError:
            return False

    def identity(self, content: bytes) -> tuple[str | None, list[str]]:
        with warned() as texts:
            try:
                return EnvelopeCodec.urn(self.decode(content)) or None, texts
            except BabelQueueError:
                return None, texts

    def is_poison(self, content: bytes) -> bool:
        return EnvelopeCodec.poison_cause(content.decode()) is not None

    def record(self, content: bytes, reason: str, queue: str, attempts: int) -> bytes:
        if reason != "poison":
            return self.encode(annotate(self.decode(content), reason, queue, attempts))
        block = annotate({}, reason, queue, attempts)["dead_letter"]
        text = content.decode("utf-8", "surrogateescape")
        return sdk_record.build_poison_record(text, block).encode()

    def delay(self, case: Mapping[str, Any], uniform: Callable[[float, float], float]) -> float:
        return retry_delay(
            case["n"],
            case["retry_backoff"],
            case["retry_backoff_multiplier"],
            case["retry_backoff_max"],
            case["retry_jitter"],
            uniform,
        )

    def is_valid(self, data: Any, schema: Any) -> bool:
        return validate_schema(schema, data) is None

    def once(self, folder: Path) -> Once:
        return PackageOnce()


class PackageOnce:
    """The SDK's helper round a store in memory."""

    def __init__(self) -> None:
        self._store = InMemoryStore()

    def handle(self, envelope: dict[str, Any], handler: Callable[[], None]) -> None:
        wrap(self._store, lambda _data, _meta: handler())(envelope["data"], envelope["meta"])

    def forget(self, meta_id: str) -> None:
        self._store.forget(meta_id)


class Ours:
    """The layer: verdict, codec, record, claims, delays, schemas."""

    name = "ours"

    def make(self, urn: str, data: Any, **options: Any) -> dict[str, Any]:
        return codec.make(urn, data, **options)

    def encode(self, envelope: dict[str, Any]) -> bytes:
        return codec.encode(envelope)

    def decode(self, content: bytes) -> dict[str, Any]:
        return codec.decode(content)

    def is_read(self, content: bytes) -> bool:
        return not self.is_poison(content)

    def accepts(self, content: bytes) -> bool:
        return validate(content).problem is None

    def identity(self, content: bytes) -> tuple[str | None, list[str]]:
        verdict = validate(content)
        urn = None if verdict.index is None else verdict.index.urn
        return urn, list(verdict.warnings)

    def is_poison(self, content: bytes) -> bool:
        problem = validate(content).problem
        return problem is not None and problem.reason in ("poison", "too_deep")

    def record(self, content: bytes, reason: str, queue: str, attempts: int) -> bytes:
        return dead_letter_record.build_record(
            content,
            dead_letter_record.DeadLetterBlock(
                reason=reason, original_queue=queue, failed_at=1, attempts=attempts
            ),
        )

    def delay(self, case: Mapping[str, Any], uniform: Callable[[float, float], float]) -> float:
        return RetryDelays(
            base_s=case["retry_backoff"],
            multiplier=case["retry_backoff_multiplier"],
            max_s=case["retry_backoff_max"],
            is_jittered=case["retry_jitter"] == "full",
        ).after(case["n"], uniform)

    def is_valid(self, data: Any, schema: Any) -> bool:
        return read_schema(schema).check(data) is None

    def once(self, folder: Path) -> Once:
        return OursOnce(folder)


class OursOnce:
    """Claims as the worker uses them: claim, then remember or forget."""

    def __init__(self, folder: Path) -> None:
        self._now_ms = 0
        self._claims = SqliteIdempotencyStore(
            folder / "claims.db", keep_s=60, now_ms=lambda: self._now_ms
        )
        weakref.finalize(self, self._claims.close)  # CPython 3.13 warns about an open connection

    def handle(self, envelope: dict[str, Any], handler: Callable[[], None]) -> None:
        key = idempotency_key(envelope)
        if key is None:
            handler()
            return
        if self._claims.claim(key) is not IdempotencyDecision.RUN:
            return
        try:
            handler()
        except Exception:
            self._claims.forget(key)
            raise
        self._claims.remember(key)

    def forget(self, meta_id: str) -> None:
        """Advance the clock until ``meta_id`` is forgotten, which the suite permits."""
        assert self._claims.seen(meta_id)
        self._now_ms += 60_000
        assert not self._claims.seen(meta_id)


def parsed(content: bytes) -> Any:
    """Read JSON with its literals: 1, 1.0 and true differ, nothing is too big."""
    return json.loads(
        content, parse_int=lambda text: ("int", text), parse_float=lambda text: ("float", text)
    )
