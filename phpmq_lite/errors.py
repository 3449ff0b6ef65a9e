"""Every exception of the project, as one tree.

PhpmqError
├── ProtocolError
│   ├── RemoteProtocolError   the peer violated the grammar: close, log, count
│   └── LocalProtocolError    we would violate it: a defect of the caller
├── TransitionError           a late or foreign command: ignore and count
├── RefusedError              a publish or action is not possible now: 007 with the reason
├── StorageError
│   ├── StorageFullError      known outcome: rolled back
│   ├── NotWritableError      known outcome: rolled back; fail-stop if it persists, exit 74
│   ├── OutcomeUnknownError   fail-stop, exit 74
│   │   └── DatabaseReplacedError  the files are not those that were opened
│   └── DataDamagedError      start refused, exit 65
├── SettingsError             start refused, exit 78
├── StartRefusedError         start refused, exit 1: a second broker, a newer database
├── EnvelopeError             an envelope cannot be made, written or read; nothing was sent
└── ClientError
    ├── ConnectionLostError   the connection is lost: unanswered publishes are unknown
    └── PublishRefusedError   the broker refused a confirmed publish

A message names the thing, the value and the bound: ``content is 9000000 bytes, the limit is
8388608``.  Raise or handle; never log and continue.
"""

import os
import re
from typing import Final

_TLS: Final = {"WRONG_VERSION_NUMBER": "it does not speak TLS"}


def os_reason(error: OSError) -> str:
    """Return why the system or TLS failed, without error numbers and Python's own words."""
    if verify := getattr(error, "verify_message", None):  # of TLS
        return f"its certificate is not trusted: {verify}"
    if reason := getattr(error, "reason", None):
        return _TLS.get(reason, f"TLS failed: {reason.replace('_', ' ').lower()}")
    text = error.strerror or str(error) or type(error).__name__
    if "Connect call failed" in text or "Multiple exceptions" in text:  # of asyncio
        number = error.errno or next(map(int, re.findall(r"\[Errno (\d+)\]", text)), None)
        return text if number is None else os.strerror(number)
    return text


class PhpmqError(Exception):
    """Base of all exceptions that this project raises on purpose."""


class ProtocolError(PhpmqError):
    """Bytes that do not follow the PHPMQ protocol."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that the grammar does not allow; close without a reply.

    ``code`` is one of the short names in ``protocol/frames.py``, for counters; ``offset`` is the
    number of bytes of the connection before the first invalid one.
    """

    def __init__(self, code: str, detail: str, offset: int = 0) -> None:
        super().__init__(f"{code} at byte {offset}: {detail}")
        self.code = code
        self.detail = detail
        self.offset = offset


class LocalProtocolError(ProtocolError):
    """Our side was asked to send what the grammar does not allow; nothing was sent."""


class TransitionError(PhpmqError):
    """A message cannot change in this way: it is settled, or held by another consumer."""


class RefusedError(PhpmqError):
    """The broker refuses this now; ``code`` is a short reason for counters and receipts."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class StorageError(PhpmqError):
    """The database cannot do what was requested."""


class StorageFullError(StorageError):
    """There is no space for the batch; it was rolled back, and nothing of it is stored."""


class NotWritableError(StorageError):
    """The database cannot be written now; nothing is stored.  Retry, and stop if it persists."""


class ReadTooLongError(StorageError):
    """A read exceeded its time limit and was stopped; narrow it, or continue from a cursor."""


class OutcomeUnknownError(StorageError):
    """A commit failed with unknown outcome: stop at once and answer no client."""


class DatabaseReplacedError(OutcomeUnknownError):
    """The database or its log was removed or replaced while open: do not touch either."""


class DataDamagedError(StorageError):
    """The files are damaged or unexpected; the originals are unchanged."""


class EnvelopeError(PhpmqError):
    """An envelope cannot be made, written or read; the message has the JSON pointer."""


class SettingsError(PhpmqError):
    """A setting is unknown, malformed or unsafe; the message names it."""


class StartRefusedError(PhpmqError):
    """The broker cannot start with this data folder; the message says why and what to do."""


class ClientError(PhpmqError):
    """Base of the exceptions of the clients."""


class ConnectionLostError(ClientError):
    """The connection to the broker ended; an unanswered publish may or may not be stored."""


class PublishRefusedError(ClientError):
    """The broker refused a confirmed publish and stored nothing; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"publish refused: {reason}")
        self.reason = reason
