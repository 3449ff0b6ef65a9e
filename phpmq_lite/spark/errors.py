"""What goes wrong between Spark and the broker, under ``PhpmqError``.

PipelineError
├── OptionError      an option is unknown, malformed or out of place: correct the call
├── BrokerError      the broker refused a request or cannot be reached; has status and code
├── DataLossError    rows that were asked for are gone: decide, then ``failOnDataLoss=false``
├── ShortReadError   rows came that do not add up to the count announced: read again
└── JavaError        no Java that Spark can use: install one of the two ways it names

Raised in a worker process, such an error reaches the driver as text in Spark's own exception.
"""

from phpmq_lite.errors import PhpmqError


class PipelineError(PhpmqError):
    """Root of what the Spark side raises on purpose."""


class OptionError(PipelineError):
    """An option of the data source is unknown, malformed or not for this use; nothing was read."""


class BrokerError(PipelineError):
    """The broker refused a request, or does not answer.

    ``status`` is the HTTP status and ``code`` the short name in the answer; 0 and ``unreachable``
    where there was none.
    """

    def __init__(self, detail: str, status: int = 0, code: str = "unreachable") -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


class DataLossError(PipelineError):
    """Rows of the range are gone, or the history is another one since the last read."""


class ShortReadError(PipelineError):
    """The rows that came are not as many as the broker announced; the range must be read again."""


class JavaError(PipelineError):
    """There is no Java that Spark can use; the message says what was found and what to do."""
