"""The models of the HTTP API: what comes in, with its bounds, and what goes out."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from phpmq_lite.admin.bodies import as_content, from_content, preview
from phpmq_lite.model import State
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.server.status import ClientStatus, QueueStatus
from phpmq_lite.storage.read.messages import Body, EventRow, MessageRow

LIMIT_MAX = 200
PUBLISH_MAX = 1_000  # messages in one request
TTL_MAX_S = 100 * 365 * 86_400

OutputFormat = Annotated[
    Literal["html", "json", "jsonl", "csv"], Field(description="how; a page where it is html")
]
QueueSort = Literal[
    "name", "-name", "ready", "-ready", "dispatched", "-dispatched", "dead", "-dead",
    "age", "-age", "in", "-in", "out", "-out", "consumers", "-consumers", "bytes", "-bytes",
]  # fmt: skip
Limit = Annotated[int, Field(ge=1, le=LIMIT_MAX, description="how many at most")]
Cursor = Annotated[
    str | None, Field(max_length=2_000, description="where to go on: next of the answer before")
]


class _Query(BaseModel):
    """A query string; empty values count as absent, unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: OutputFormat = "html"
    limit: Limit = 50
    cursor: Cursor = None


class FormatQuery(BaseModel):
    """Of a list that is given whole: as what."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: OutputFormat = "html"


class QueueQuery(_Query):
    """Filter and order of a list of queues."""

    q: str = Field("", max_length=LONGEST_NAME)
    has: Literal["backlog", "no-consumer", "paused", "dead"] | None = None
    sort: QueueSort = "name"


class MessagesQuery(_Query):
    """A page of a queue's messages, alive or settled."""

    tab: Literal["messages", "dead", "history"] = "messages"
    state: Literal["ready", "dispatched"] | None = None
    outcome: Literal["acked", "expired", "dead", "deleted"] | None = None
    confirm: Literal["purge", "redrive"] | None = None


class ClientsQuery(_Query):
    """Which connections to show."""

    queue: str = Field("", max_length=LONGEST_NAME)


class SearchQuery(BaseModel):
    """What was typed into the search field."""

    model_config = ConfigDict(extra="ignore")

    q: str = Field("", max_length=1_000)


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PublishIn(_Input):
    """One message to publish."""

    content: str
    encoding: Literal["utf-8", "base64"] = "utf-8"
    ttl_s: int | None = Field(None, ge=0, le=TTL_MAX_S)  # None: the queue's default; 0: never

    @model_validator(mode="after")
    def _is_decodable(self) -> Self:
        self.body()
        return self

    def body(self) -> bytes:
        """Give the bytes to store; raises ValueError where they cannot be made."""
        return from_content(self.content, self.encoding)


class PurgeIn(_Input):
    """What a purge takes along."""

    dispatched: bool = False  # also what consumers hold


class PauseIn(_Input):
    """Which side of a queue to stop or resume."""

    side: Literal["delivery", "publishing", "publish"] = "delivery"  # the last two are one


class RedriveIn(_Input):
    """Where dead-letter records go, and how long they live there."""

    target: str | None = Field(None, min_length=1, max_length=LONGEST_NAME)
    ttl_s: int | None = Field(None, ge=0, le=TTL_MAX_S)
    limit: int | None = Field(None, ge=1)


class QueueOut(BaseModel):
    """A queue with its live figures."""

    queue_id: int
    name: str
    ready: int
    dispatched: int
    dead: int
    bytes: int
    oldest_ready_at: int | None  # Unix ms
    oldest_age_s: float | None  # by the server's clock
    published_per_s: float
    dispatched_per_s: float
    acked_per_s: float
    consumers: int
    credit: int
    delivery_paused: bool
    publishing_paused: bool

    @classmethod
    def of(cls, queue: QueueStatus, oldest_ready_at: int | None, now_ms: int) -> Self:
        """Take over what the status says."""
        age_ms = None if oldest_ready_at is None else max(0, now_ms - oldest_ready_at)
        return cls(
            queue_id=queue.queue_id,
            name=queue.name,
            ready=queue.ready,
            dispatched=queue.dispatched,
            dead=queue.dead,
            bytes=queue.bytes,
            oldest_ready_at=oldest_ready_at,
            oldest_age_s=None if age_ms is None else age_ms / 1_000,
            published_per_s=round(queue.published_per_s, 3),
            dispatched_per_s=round(queue.dispatched_per_s, 3),
            acked_per_s=round(queue.acked_per_s, 3),
            consumers=queue.consumers,
            credit=queue.credit,
            delivery_paused=queue.delivery_paused,
            publishing_paused=queue.publishing_paused,
        )


class MessageOut(BaseModel):
    """A message without its body."""

    id: str
    queue: str | None
    state: str
    seq: int
    position: int
    published_at: int  # Unix ms, as all times
    first_dispatched_at: int | None
    last_dispatched_at: int | None
    settled_at: int | None
    ttl_s: int | None  # as published; null: never expires
    deadline_at: int | None
    deliveries: int
    size: int
    urn: str | None
    trace_id: str | None
    meta_id: str | None
    attempts: int | None  # of the envelope; deliveries are the broker's
    publisher: str | None
    holder: str | None
    reason: str | None
    offset: int | None
    origin: str | None  # dead-letter record: the queue, message and reason it is about
    origin_id: str | None
    origin_reason: str | None
    preview: str

    @classmethod
    def of(cls, row: MessageRow) -> Self:
        """Take over a stored row."""
        return cls(
            id=row.message_id,
            queue=row.queue,
            state=State(row.state).name.lower(),
            seq=row.seq,
            position=row.position,
            published_at=row.published_at,
            first_dispatched_at=row.first_dispatched_at,
            last_dispatched_at=row.last_dispatched_at,
            settled_at=row.settled_at,
            ttl_s=row.ttl_s,
            deadline_at=row.deadline_at,
            deliveries=row.deliveries,
            size=row.size,
            urn=row.urn,
            trace_id=row.trace_id,
            meta_id=row.meta_id,
            attempts=row.attempts,
            publisher=row.publisher_address,
            holder=row.consumer_address if row.state == State.DISPATCHED else None,
            reason=row.reason,
            offset=row.offset,
            origin=row.source_queue,
            origin_id=row.source_id,
            origin_reason=row.source_reason,
            preview="".join(piece.text for piece in preview(row.preview, row.size)),
        )


class EventOut(BaseModel):
    """One unusual turn of a life."""

    at: int
    kind: str
    detail: str | None

    @classmethod
    def of(cls, event: EventRow) -> Self:
        """Take over a stored row."""
        return cls(at=event.at_ms, kind=event.kind, detail=event.detail)


class BodyOut(BaseModel):
    """A body: ``content`` is text where it is UTF-8, else base64."""

    content: str
    encoding: str
    size: int
    is_whole: bool

    @classmethod
    def of(cls, body: Body) -> Self:
        """Take over a body that was read."""
        content, encoding = as_content(body.content)
        return cls(content=content, encoding=encoding, size=body.size, is_whole=body.is_whole)


class ClientOut(BaseModel):
    """A connection that is open."""

    client: int
    kind: str
    address: str
    opened_at: int
    queues: dict[str, Any]  # name -> {credit, held}
    framing: str | None
    revision: str | None
    published: int
    acked: int
    bytes_in: int
    bytes_out: int
    paused_reason: str | None

    @classmethod
    def of(cls, client: ClientStatus) -> Self:
        """Take over what the status says."""
        return cls(
            client=client.client,
            kind=client.kind,
            address=client.address,
            opened_at=client.opened_at,
            queues={
                name: {"credit": credit, "held": held}
                for name, (credit, held) in client.queues.items()
            },
            framing=client.framing,
            revision=client.revision,
            published=client.published,
            acked=client.acked,
            bytes_in=client.bytes_in,
            bytes_out=client.bytes_out,
            paused_reason=client.paused_reason,
        )
