"""The project's exception hierarchy.

PhpmqError
├── ProtocolError
│   ├── RemoteProtocolError   the peer violated the grammar: close, log and count
│   └── LocalProtocolError    our side would violate it: a defect in the caller
├── TransitionError           the command is late, or not the holder's: ignore and count
├── RefusedError              a publish or action is refused for now: reply 007 with the reason
├── StorageError
│   ├── StorageFullError      known outcome: rolled back
│   ├── BatchRefusedError     known outcome: rolled back; the core loads its state again
│   ├── NotWritableError      known outcome: rolled back; fail-stop if it persists, exit 74
│   ├── OutcomeUnknownError   fail-stop, exit 74
│   │   ├── DatabaseReplacedError  the files are no longer those that were opened
│   │   └── EpochEndedError        another broker is active now: close, send nothing
│   └── DataDamagedError      start refused, exit 65
├── SettingsError             start refused, exit 78
├── StartRefusedError         start refused, exit 1: a second broker, a newer database
│   └── UnreleasedDataError   the data was made before the first release
├── SearchError               a search is not in the search language; nothing was read
├── EnvelopeError             an envelope cannot be created, written or read; nothing was sent
├── JobTimeoutError           a handler ran longer than its time limit: its job is retried
├── ClientError
│   ├── ConnectionLostError   unanswered publishes may or may not be stored
│   └── PublishRefusedError   the broker refused a confirmed publish
└── PipelineError             of the Spark data source, in whose text a worker's error arrives
    ├── OptionError           an option is unknown, malformed or not applicable: correct the call
    ├── BrokerError           the broker refused a request or is unreachable
    ├── DataLossError         requested rows are gone: set ``failOnDataLoss=false`` to skip them
    ├── ShortReadError        the number of received rows is not the declared one: read again
    │   └── BrokenStreamError the connection broke: the client continues after the last row
    └── JavaError             Spark found no usable Java: install one as the message explains

A message names the thing, the value and the bound: ``content is 9000000 bytes; the limit is
8388608``.  Raise or handle an error; never log it and continue.
"""

import os
import re
from typing import Final


def os_reason(error: OSError) -> str:
    """Describe a system error without its error number or Python's own wording."""
    text = error.strerror or str(error) or type(error).__name__
    if "Connect call failed" in text or "Multiple exceptions" in text:  # asyncio's own messages
        number = error.errno or next(map(int, re.findall(r"\[Errno (\d+)\]", text)), None)
        return text if number is None else os.strerror(number)
    return text


class PhpmqError(Exception):
    """Base class of all exceptions that this project raises deliberately."""


class ProtocolError(PhpmqError):
    """Received or outgoing bytes violate the PHPMQ protocol."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that the grammar does not allow: close the connection without replying.

    ``code`` is one of the short names in ``protocol/frames.py``, for counters; ``offset`` is the
    number of bytes in the connection before the first invalid one.
    """

    def __init__(self, code: str, detail: str, offset: int = 0) -> None:
        super().__init__(f"{code} at byte {offset}: {detail}")
        self.code = code
        self.detail = detail
        self.offset = offset


class LocalProtocolError(ProtocolError):
    """The caller asked to send bytes that the grammar does not allow; nothing was sent."""


class TransitionError(PhpmqError):
    """A state change was rejected: the message is settled, or another consumer holds it."""


class RefusedError(PhpmqError):
    """The broker refused an operation; ``code`` is a short reason for counters and receipts."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class BadSettingError(RefusedError):
    """A queue's setting has an invalid value; ``problem`` follows the setting's name."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__("bad_setting", f"{setting} {problem}")
        self.setting = setting
        self.problem = problem


class StorageError(PhpmqError):
    """A database operation failed."""


class StorageFullError(StorageError):
    """There is not enough disk space for the batch, which was rolled back completely."""


class BatchRefusedError(StorageError):
    """The database refused a value or a row; nothing was stored, and a retry would not help."""


class NotWritableError(StorageError):
    """The database is not writable; nothing was stored.  Retry, or stop if the error persists."""


class ReadTooLongError(StorageError):
    """A read was stopped at its time limit; narrow its range, or continue from a cursor."""


class OutcomeUnknownError(StorageError):
    """A commit failed with an unknown outcome; stop immediately, without replying to clients."""


class DatabaseReplacedError(OutcomeUnknownError):
    """The database or its log was removed or replaced while open; do not touch either file."""


class EpochEndedError(OutcomeUnknownError):
    """Another broker has taken over, so this one must not send any more replies."""


class DataDamagedError(StorageError):
    """The data files are damaged or not the expected ones; they have been left unchanged."""


class EnvelopeError(PhpmqError):
    """An envelope cannot be created, written or read; the error text contains the JSON pointer."""


class JobTimeoutError(PhpmqError):
    """A worker has ended a handler that ran longer than its time limit."""


class SearchError(PhpmqError):
    """A search is not in the search language; ``bound`` says what is allowed."""

    def __init__(self, detail: str, bound: str) -> None:
        super().__init__(detail)
        self.bound = bound


class SettingsError(PhpmqError):
    """A setting is unknown, malformed or unsafe; the message names it."""


class StartRefusedError(PhpmqError):
    """The broker cannot start with this data folder; the message explains why and what to do."""


class UnreleasedDataError(StartRefusedError):
    """A folder, backup, replica or database, named ``place``, was made before version 0.1.0."""

    def __init__(self, place: object) -> None:
        super().__init__(
            f"{place} was made by an unreleased version of phpmq-lite, which this version cannot "
            "read: while a broker of that version runs, run `phpmq-lite message export "
            "'state:ready state:dispatched' > messages.jsonl` and `curl "
            "http://127.0.0.1:9101/api/v1/definitions > definitions.json`, then start this version "
            "with a new folder or database and import both (`phpmq-lite docs "
            "operate/operations#data-of-an-unreleased-version`); the history, users, tokens and "
            "remaining times are not carried over"
        )


class ClientError(PhpmqError):
    """Base class of the exceptions that clients raise."""


class ConnectionLostError(ClientError):
    """The connection to the broker ended; messages without a receipt may or may not be stored."""


KEY_CONFLICT: Final = "key conflict"  # why a key is refused that was used for another body


class PublishRefusedError(ClientError):
    """The broker refused to store a message published with a key; ``reason`` states why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"publish refused: {reason}")
        self.reason = reason


class PipelineError(PhpmqError):
    """Base class of all errors that the Spark package raises deliberately."""


class OptionError(PipelineError):
    """An option of the data source is unknown, malformed or not applicable; nothing was read."""


class BrokerError(PipelineError):
    """The broker refused a request or did not reply.

    ``status`` is the HTTP status and ``code`` is the error code in the response. Without a
    response, they are 0 and ``unreachable``.
    """

    def __init__(self, detail: str, status: int = 0, code: str = "unreachable") -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


class DataLossError(PipelineError):
    """Requested rows are gone, or the broker's history was replaced since the last read."""


class ShortReadError(PipelineError):
    """The broker sent more or fewer rows than it declared; the range must be read again."""


class BrokenStreamError(ShortReadError):
    """The connection broke within the rows; reading can continue after the last one."""


class JavaError(PipelineError):
    """Spark found no usable Java; the message says what was found and how to fix it."""
