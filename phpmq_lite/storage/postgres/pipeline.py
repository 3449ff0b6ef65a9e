"""Sends the statements of a batch to the server at once, and reads the results as they arrive.

All of it takes one round trip.  It runs in the event loop, so that no batch waits for a thread:
libpq is used directly, and never waits.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final, NamedTuple

from psycopg.pq import DiagnosticField, ExecStatus

from phpmq_lite.storage.batch_sql import OPTIONAL, Step, step_statements
from phpmq_lite.storage.postgres.store import (
    BEGIN_BATCH,
    QUORUM_SQL,
    SHARD,
    ConnectionBrokenError,
    PostgresStore,
    Quorum,
    failure_of,
)
from phpmq_lite.storage.statements import compiled, postgres_value

_BYTEA_OID: Final = 17
_ARRAY: Final = struct.Struct(">IIIII")  # dimensions, has NULLs, type, length, lower bound
_LENGTH: Final = struct.Struct(">i")
_NULL: Final = _LENGTH.pack(-1)
TEXT: Final = 0
BINARY: Final = 1
_DONE: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


class PreparedStatement(NamedTuple):
    """A statement with the name under which it is prepared on each connection."""

    name: bytes
    text: bytes
    parameters: tuple[str, ...]
    width: int  # number of arrays


@cache
def prepared(text: str) -> PreparedStatement:
    query, names = compiled(text)
    name = f"b{prepared.cache_info().misses}"
    return PreparedStatement(name.encode(), query.encode(), names, query.count("[]"))


@cache
def _batch_statement(name: str) -> PreparedStatement:
    return prepared(step_statements("postgres")[name])


_BEGIN: Final = prepared("BEGIN")
_FIRST: Final = prepared(BEGIN_BATCH)
_QUORUM: Final = prepared(QUORUM_SQL)
_COMMIT: Final = prepared("COMMIT")

# -- encoding: numbers and texts as text, which Python encodes fastest; bodies as binary


class Parameters(NamedTuple):
    """Encoded parameters and the format of each, as libpq expects them."""

    values: list[bytes | None]
    formats: list[int]


def encode(values: Sequence[Any]) -> Parameters:
    encoded = Parameters([], [])
    for value in values:
        is_binary = isinstance(value, bytes)
        encoded.values.append(value if is_binary or value is None else _text(value))
        encoded.formats.append(BINARY if is_binary else TEXT)
    return encoded


def encode_rows(flat: Sequence[Any], width: int, before: Sequence[Any]) -> Parameters:
    """Encode ``before``, then an array for each of ``width`` columns of the rows in ``flat``."""
    encoded = encode(before)
    for at in range(width):
        column = flat[at::width]
        is_binary = any(isinstance(value, bytes) for value in column)
        encoded.values.append(_bytea_array(column) if is_binary else _array(column))
        encoded.formats.append(BINARY if is_binary else TEXT)
    return encoded


def _text(value: Any) -> bytes:
    if isinstance(value, str):
        return str(postgres_value(value)).encode("utf-8", "replace")  # may have lone surrogates
    return b"%d" % value


def _array(column: Sequence[Any]) -> bytes:
    try:
        return b"{%b}" % b",".join([b"%d" % value for value in column])
    except TypeError:  # texts or NULLs
        return b"{%b}" % b",".join([_element(value) for value in column])


def _element(value: Any) -> bytes:
    if isinstance(value, str):
        return b'"%b"' % _text(value).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return b"NULL" if value is None else _text(value)


def _bytea_array(column: Sequence[bytes | None]) -> bytes:
    pairs = ((_NULL, b"") if v is None else (_LENGTH.pack(len(v)), v) for v in column)
    head = _ARRAY.pack(1, None in column, _BYTEA_OID, len(column), 1)
    return head + b"".join(chain.from_iterable(pairs))


_NOTHING: Final = Parameters([], [])
# A statement and its encoded values.
EncodedStep = tuple[PreparedStatement, Parameters]


def encode_steps(steps: Sequence[Step]) -> list[EncodedStep]:
    """Encode the steps of a batch, whose messages may then change."""
    encoded: list[EncodedStep] = []
    for name, values, before in steps:
        statement = _batch_statement(name)
        if before is not None:
            encoded.append((statement, encode_rows(values, statement.width, before)))
        else:
            named = isinstance(values, dict)
            encoded.append(
                (statement, encode([values[p] for p in statement.parameters] if named else values))
            )
    return encoded


# Called once for each batch, with the error if it is not known to be stored.
Callback = Callable[[Exception | None], None]


class Pipeline:
    """Sends batches on the connection of a store, one at a time."""

    def __init__(self, store: PostgresStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._libpq = store.connection.pgconn
        self._socket = self._libpq.socket
        self._loop = loop
        self._prepared: set[bytes] = set()  # names of prepared statements
        self._results: list[Any] = []  # first rows of the results so far
        self._failure: Exception | None = None
        self._callback: Callback | None = None

    def send(self, steps: Sequence[EncodedStep], callback: Callback) -> None:
        """Send a batch; ``callback`` is called in the event loop, but not before this returns."""
        store, libpq = self._store, self._libpq
        self._callback, self._failure = callback, None
        self._results.clear()
        store.notices.clear()
        first = encode((SHARD, store.epoch, store.batch + 1, store.place))
        try:
            libpq.nonblocking = 1
            libpq.enter_pipeline_mode()
            self._send(_BEGIN, _NOTHING)
            self._send(_FIRST, first)
            for statement, parameters in steps:
                self._send(statement, parameters)
            self._send(_QUORUM, _NOTHING)
            self._send(_COMMIT, _NOTHING)
            self._send(_QUORUM, _NOTHING)
            libpq.pipeline_sync()
            self._loop.add_reader(self._socket, self._on_readable)
            self._flush()
        except Exception as error:  # the connection broke before
            self._failure = ConnectionBrokenError(str(error))
            self._loop.call_soon(self._end)

    def _send(self, statement: PreparedStatement, parameters: Parameters) -> None:
        if statement.name not in self._prepared:
            self._libpq.send_prepare(statement.name, statement.text)
            self._prepared.add(statement.name)
        self._libpq.send_query_prepared(
            statement.name, parameters.values or None, parameters.formats or None
        )

    def _flush(self) -> None:
        """Send what libpq has buffered; wait for the socket if it accepts no more."""
        try:
            if self._libpq.flush():
                self._loop.add_writer(self._socket, self._flush)
            else:
                self._loop.remove_writer(self._socket)
        except Exception as error:
            self._failure = ConnectionBrokenError(str(error))
            self._end()

    def _on_readable(self) -> None:
        libpq, is_complete = self._libpq, False
        try:
            libpq.consume_input()
            while not is_complete and not libpq.is_busy():
                result = libpq.get_result()
                if result is None:
                    continue
                if result.status == ExecStatus.PIPELINE_SYNC:
                    is_complete = True
                    if self._failure is None:
                        self._check()
                elif result.status in _DONE:
                    if result.ntuples:
                        row = [result.get_value(0, at) for at in range(result.nfields)]
                        self._results.append(row)
                elif result.status != ExecStatus.PIPELINE_ABORTED and self._failure is None:
                    self._failure = _failure(result)
                    is_complete = isinstance(self._failure, ConnectionBrokenError)
        except Exception as error:
            self._failure, is_complete = ConnectionBrokenError(str(error).strip()), True
        if is_complete:
            self._end()

    def _check(self) -> None:
        """Count the batch as stored if COMMIT, which succeeded, can be relied on."""
        self._libpq.exit_pipeline_mode()
        store = self._store
        (place,), before, after = self._results
        if problem := store.check(_quorum(before), _quorum(after), store.notices):
            raise ConnectionBrokenError(problem)
        store.place = place.decode()
        store.batch += 1

    def _end(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            callback(self._failure)


def is_optional(step: EncodedStep) -> bool:
    return any(step[0] is _batch_statement(name) for name in OPTIONAL)


_DIAGNOSTICS: Final = (
    DiagnosticField.SQLSTATE,
    DiagnosticField.MESSAGE_PRIMARY,
    DiagnosticField.TABLE_NAME,
    DiagnosticField.CONSTRAINT_NAME,
)


def _failure(result: Any) -> Exception:
    """Return the error for a failed statement, without the row that the server shows in detail."""
    fields = [result.error_field(field) for field in _DIAGNOSTICS]
    state, text, *of_what = [field and field.decode("utf-8", "replace") for field in fields]
    message = result.error_message.decode("utf-8", "replace").strip()
    return failure_of(state, text or message, *of_what)


def _quorum(row: list[bytes]) -> Quorum:
    names, loaded_at, server_ms, started_at, is_fresh = row
    return Quorum(
        names.decode(), loaded_at.decode(), int(server_ms), started_at.decode(), is_fresh == b"t"
    )
