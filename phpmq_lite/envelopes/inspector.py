"""The broker's content inspector: indexing, validation, dead-letter records and redrives."""

import re
from typing import Final, cast

import msgspec

from phpmq_lite.envelopes import dead_letter_record, indexed_fields, validation
from phpmq_lite.envelopes.schema_registry import ActiveSchemas
from phpmq_lite.model import DeadLetterCause, EnvelopeInspection, Indexed, RecordSource
from phpmq_lite.protocol.frames import DEFAULT_MAX_CONTENT
from phpmq_lite.queue_settings import QueueSettings

_REASON_CHARACTERS: Final = 200
_WORKER_REASONS: Final = ("failed", "unknown_urn")  # of a block, as a worker gives them
# Matches control characters, including those that change the direction of text.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_NOTHING: Final = indexed_fields.IndexedFields(None, None, None, None)


class _Meta(msgspec.Struct):
    queue: str | None = None


class _Origin(msgspec.Struct):
    meta: _Meta | None = None


_ORIGIN: Final = msgspec.json.Decoder(_Origin)


class BabelQueueInspector:
    """``EnvelopeInspector`` for BabelQueue; its methods never raise and can run in any thread.

    ``schemas`` holds the payload schemas by URN; None disables schema checks.  ``max_content`` is
    the size of the largest content that clients accept.
    """

    def __init__(
        self, schemas: ActiveSchemas | None = None, max_content: int = DEFAULT_MAX_CONTENT
    ) -> None:
        self._schemas = schemas or ActiveSchemas(None)
        self._max_content = max_content

    def index(self, content: bytes) -> Indexed | None:
        """Return the indexed fields, or None if the content is too long or not a JSON object."""
        return indexed_fields.read_indexed(content)

    def validate(self, content: bytes, settings: QueueSettings) -> EnvelopeInspection:
        """Check layers A and B, and the payload schema unless the queue's schema mode is off."""
        is_checked = settings.schema_mode != "off"
        indexed = validation.fast_verdict(content)
        if indexed is None:
            mode = cast(validation.EmptyListData, settings.empty_list_data)
            verdict = validation.validate(content, mode)
        elif is_checked:
            verdict = validation.Verdict(None, indexed_fields.IndexedFields(*indexed))
        else:
            return EnvelopeInspection(indexed)
        fields, problem = verdict.index or _NOTHING, verdict.problem
        urn = fields.urn or ""
        if problem is None and is_checked and self._schemas.is_registered(urn):
            mismatch = self._schemas.check(
                urn, {} if verdict.is_tolerated else validation.data_of(content)
            )
            if settings.schema_mode == "quarantine":
                problem = mismatch  # in other modes, the mismatch is only counted
        if problem is None:
            return EnvelopeInspection(fields)
        return EnvelopeInspection(fields, problem.reason, problem.detail)

    def with_attempt_added(self, content: bytes) -> bytes | None:
        """Return an envelope with ``attempts`` one higher, or None if it must not be changed."""
        if self.read_only_reason(content) is not None:
            return None
        try:
            return dead_letter_record.with_attempt_added(content)
        except ValueError:
            return None

    def read_only_reason(self, content: bytes) -> str | None:
        """Return ``unsupported_schema_version`` if validation finds this problem, or None."""
        problem = validation.validate(content).problem
        is_unsupported = problem is not None and problem.reason == validation.UNSUPPORTED
        return validation.UNSUPPORTED if is_unsupported else None

    def make_record(self, content: bytes, settings: QueueSettings, death: DeadLetterCause) -> bytes:
        """Return a dead-letter record, with reason ``poison`` if the content failed validation.

        If it is larger than ``max_content``, no client could receive it: it refers to the content.
        """
        keeps_content = settings.payload_policy == "opaque"
        if death.exception is not None and not keeps_content:  # a worker's last attempt has failed
            content = self.with_attempt_added(content) or content
        fields = indexed_fields.read_indexed_fields(content)
        reason = "poison" if death.reason in validation.REASONS else "failed"
        if death.reason == "unknown_urn":
            reason = death.reason
        block = dead_letter_record.DeadLetterBlock(
            reason=reason,
            original_queue=death.queue,
            failed_at=death.at_ms,
            attempts=(fields.attempts if fields is not None else None) or 0,
            error=death.detail or None,
            exception=death.exception,
            detail=None if death.reason in _WORKER_REASONS else death.reason,
            message_id=death.message_id.decode(),
        )
        record = dead_letter_record.build_record(content, block, keeps_content=keeps_content)
        if len(record) <= self._max_content or record is content:
            return record
        return dead_letter_record.build_reference(content, block)

    def record_source(self, content: bytes) -> RecordSource | None:
        """Return the message id and the cause from a record's block, or None if it has no id."""
        block = dead_letter_record.read_block(content)
        if block is None or not block.message_id:
            return None
        cause = (block.detail or block.reason or "client")[:_REASON_CHARACTERS]
        cause = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", cause)
        return RecordSource(block.message_id.encode(), cause, block.error)

    def redrive_content(self, content: bytes) -> bytes:
        """Return the content to redrive: without its block, with attempts reset to 0."""
        return dead_letter_record.redrive_content(content)

    def origin_queue(self, content: bytes) -> str | None:
        """Return ``dead_letter.original_queue``, or ``meta.queue`` if it is missing."""
        block = dead_letter_record.read_block(content)
        if block is not None and block.original_queue:
            return block.original_queue
        try:
            meta = _ORIGIN.decode(content).meta
        except (ValueError, RecursionError):
            return None
        return None if meta is None else meta.queue or None
