"""Errors raised by the Spark data source and its jobs.

PipelineError
├── OptionError      an option is unknown, malformed or not applicable: correct the call
├── BrokerError      the broker refused a request or is unreachable; carries status and code
├── DataLossError    requested rows are gone: set ``failOnDataLoss=false`` to skip them
├── ShortReadError   the number of received rows is not the declared one: read again
│   └── BrokenStreamError  the connection broke: the client continues after the last row
└── JavaError        Spark found no usable Java: install one as the message explains

An error raised in a worker process reaches the driver as text in Spark's own exception.
"""

from enum import StrEnum

from phpmq_lite.errors import PhpmqError


class Remedy(StrEnum):
    """What an error advises, in the words of the data source; commands replace it with theirs.

    It is part of the text because an error from a worker process arrives as text.
    """

    ACCEPT_LOSS = "failOnDataLoss to false"
    SELECT_UNDELETED = "or outcomes to acked,expired,dead"
    SET_TOKEN = "(option token)"  # noqa: S105 - the name of the option
    SET_OPTION_URL = "set the option url"
    SET_URL = "set url,"
    USE_NEW_CHECKPOINT = "or a new checkpoint"
    BEGIN_NEW_CHECKPOINT = "a new checkpoint"


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
