"""Every exception of the project, as one tree.

PhpmqError
├── ProtocolError
│   ├── RemoteProtocolError   the peer broke the grammar: close, log, count
│   └── LocalProtocolError    we would break it: a defect of the caller
├── TransitionError           a late or foreign command: ignore and count
├── RefusedError              a publish or action that is not taken now: 007 with the reason
├── StorageError
│   ├── StorageFullError      known outcome: rolled back
│   ├── NotWritableError      known outcome: rolled back; fail-stop where it lasts, exit 74
│   ├── OutcomeUnknownError   fail-stop, exit 74
│   │   └── DatabaseReplacedError  the files are not those that were opened
│   └── DataDamagedError      start refused, exit 65
├── SettingsError             start refused, exit 78
├── StartRefusedError         start refused, exit 1: a second broker, a newer database
├── EnvelopeError             an envelope cannot be made, written or read; nothing was sent
└── ClientError
    ├── ConnectionLostError   the broker is gone: what was unanswered is unknown
    └── PublishRefusedError   the broker answered a confirmed publish with a reason

A message names the thing and the bound: ``content is 9000000 bytes, the limit is 8388608``.
Raise or handle; never log and go on.
"""

import os
import re
from typing import Final

_TLS: Final = {"WRONG_VERSION_NUMBER": "it does not speak TLS"}


def os_reason(error: OSError) -> str:
    """Return why the system or TLS failed, without numbers and Python's own words."""
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
    """Root of all errors that this project raises on purpose."""


class ProtocolError(PhpmqError):
    """Something is not PHPMQ."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that the grammar does not allow; close without a reply.

    ``code`` is one of the short names of ``protocol/frames.py``, for counters;
    ``offset`` counts the bytes of the connection before the first wrong one.
    """

    def __init__(self, code: str, detail: str, offset: int = 0) -> None:
        super().__init__(f"{code} at byte {offset}: {detail}")
        self.code = code
        self.detail = detail
        self.offset = offset


class LocalProtocolError(ProtocolError):
    """Our side was asked to send what the grammar does not allow; nothing was sent."""


class TransitionError(PhpmqError):
    """A message cannot take this turn: it is settled, or somebody else holds it."""


class RefusedError(PhpmqError):
    """The broker does not take this now; ``code`` is a short reason for counters and receipts."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class StorageError(PhpmqError):
    """The store cannot do what was asked."""


class StorageFullError(StorageError):
    """No space for the batch; it was rolled back and nothing of it is stored."""


class NotWritableError(StorageError):
    """Nobody can write now; nothing is stored.  Try again, and stop where it lasts."""


class ReadTooLongError(StorageError):
    """A read passed its time limit and was stopped; narrow it or continue from a cursor."""


class OutcomeUnknownError(StorageError):
    """A commit failed in a way that leaves open what is on disk: stop at once, answer nobody."""


class DatabaseReplacedError(OutcomeUnknownError):
    """The database or its log was unlinked or replaced while it was open: touch neither."""


class DataDamagedError(StorageError):
    """The files are damaged or are not what they should be; the originals are untouched."""


class EnvelopeError(PhpmqError):
    """An envelope cannot be made, written or read; the message has the JSON pointer."""


class SettingsError(PhpmqError):
    """A setting is unknown, malformed or unsafe; the message names it."""


class StartRefusedError(PhpmqError):
    """The broker cannot start on this data folder; the message says why and what to do."""


class ClientError(PhpmqError):
    """Root of what the clients raise."""


class ConnectionLostError(ClientError):
    """The connection to the broker ended; an unanswered publish may or may not be stored."""


class PublishRefusedError(ClientError):
    """The broker refused a confirmed publish and stored nothing; ``reason`` is its text."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"publish refused: {reason}")
        self.reason = reason
