"""Base classes of the models of requests, and the field types that several of them share."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from phpmq_lite.admin.http.input import REASON_MAX, InUnits, InUtc, Untrimmed
from phpmq_lite.frame_options import (
    GROUP_BYTES,
    HIGHEST_PRIORITY,
    LONGEST_DELAY_S,
    LOWEST_PRIORITY,
    read_date,
)
from phpmq_lite.queue_settings import LONGEST_NAME, LONGEST_TTL_S

LIMIT_MAX: Final = 200

OutputFormat = Annotated[
    Literal["html", "json", "jsonl", "csv"],
    Field(description="response format; html returns the page"),
]
LimitParameter = Annotated[int, Field(ge=1, le=LIMIT_MAX, description="maximum number of items")]
CursorParameter = Annotated[
    str | None, Field(max_length=2_000, description="value of next from the previous page")
]

AppIdParameter = Annotated[str, Field(min_length=1, max_length=256, description="publisher name")]
AuditReason = Annotated[
    str, Field(max_length=REASON_MAX, description="reason to store in the audit log")
]
BodySize = Annotated[int, Field(description="body size in bytes")]
Delay = Annotated[
    float,
    Field(ge=0, le=LONGEST_DELAY_S, description="seconds until the message is ready"),
    InUnits(),
]
DeliverAt = Annotated[
    int | None,
    BeforeValidator(read_date),
    Field(description="when the message is ready: Unix ms, or a time with UTC offset (RFC 3339)"),
    InUtc(),
]
Deliveries = Annotated[int, Field(description="number of deliveries")]
EnvelopeUrn = Annotated[str | None, Field(description="URN of the envelope; null if it has none")]
_OF_GROUP: Final = "of which one message at a time is delivered"
GroupName = Annotated[
    str | None, Field(min_length=1, max_length=GROUP_BYTES, description=_OF_GROUP)
]
MessageId = Annotated[str, Field(description="message id, 32 hex digits")]
RedriveTarget = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=LONGEST_NAME,
        description="target queue; null redrives each message to its original queue",
    ),
]
SubscriptionName = Annotated[
    str, Field(min_length=1, max_length=255, description="subscription name")
]
Priority = Annotated[int, Field(ge=HIGHEST_PRIORITY, le=LOWEST_PRIORITY, description="0 is first")]
QueueTarget = Annotated[
    str, Field(min_length=1, max_length=LONGEST_NAME, description="target queue"), Untrimmed()
]
TraceId = Annotated[str | None, Field(description="trace id of the envelope; null if it has none")]
TtlSeconds = Annotated[
    int | None,
    Field(ge=0, le=LONGEST_TTL_S, description="seconds to live (0: forever; null: queue default)"),
]
Ttl = Annotated[TtlSeconds, InUnits()]
NewTtl = Annotated[
    int | None,
    Field(
        ge=0, le=LONGEST_TTL_S, description="seconds to live; 0 for no limit, null for no change"
    ),
    InUnits(),
]
UndoToken = Annotated[
    str | None,
    Field(description="token for POST /undo/{token}, valid for an hour; null if there is none"),
]


class QueryModel(BaseModel):
    """Base class of query models, which ignore empty values and unknown keys."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class FormatQuery(QueryModel):
    """The output format of an unpaginated list."""

    format: OutputFormat = "html"


class JsonFormatQuery(FormatQuery):
    """The output format of an unpaginated list in the API."""

    format: OutputFormat = "json"


class ListQuery(FormatQuery):
    """The output format and page of a paginated list."""

    limit: LimitParameter = 50
    cursor: CursorParameter = None


class StrictInput(BaseModel):
    """Base class of models for JSON bodies, which refuse unknown members."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_options: Any) -> None:
        """Raise TypeError for a time in seconds whose name does not end with the unit."""
        for name, field in cls.model_fields.items():
            if not name.endswith("_s") and any(
                isinstance(mark, InUnits) for mark in field.metadata
            ):
                raise TypeError(f"{cls.__name__}.{name} is InUnits but is not named {name}_s")


class EmptyInput(StrictInput):
    """An empty JSON object."""


class ActionInput(StrictInput):
    """The body of an action: an optional reason."""

    reason: AuditReason = ""
