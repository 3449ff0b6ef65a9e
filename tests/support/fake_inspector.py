"""A core whose inspector of contents is a fake, without the code of envelopes."""

import json
from typing import Any

from phpmq_lite.model import (
    DeadLetterCause,
    EnvelopeInspection,
    Indexed,
    Limits,
    Message,
    RecordSource,
)
from phpmq_lite.queue_settings import QueueSettings
from tests.support.core_rig import CoreRig

GOOD = b'{"urn":"urn:a"}'
BAD = b'{"bad":"invalid_data"}'


class FakeInspector:
    """JSON objects: ``urn`` is indexed, ``bad`` is the reason of the verdict."""

    def __init__(self) -> None:
        self.looks = 0

    def index(self, content: bytes) -> Indexed | None:
        self.looks += 1
        try:
            return json.loads(content).get("urn"), "t", "i", 3
        except ValueError:
            return None

    def validate(self, content: bytes, settings: QueueSettings) -> EnvelopeInspection:
        indexed = self.index(content) or (None, "t", "i", 3)
        reason = "poison"
        if content.startswith(b"{"):
            reason = json.loads(content).get("bad")
        return EnvelopeInspection(indexed, reason, "because" if reason else "")

    def with_attempt_added(self, content: bytes) -> bytes | None:
        return None

    def read_only_reason(self, content: bytes) -> str | None:
        reason: str | None = json.loads(content).get("unread")
        return reason

    def make_record(self, content: bytes, settings: QueueSettings, death: DeadLetterCause) -> bytes:
        read = {"raw": content.decode(), "dead_letter": {
            "reason": death.reason, "error": death.detail, "original_queue": death.queue,
            "message_id": death.message_id.decode(), "at": death.at_ms,
        }}  # fmt: skip
        return json.dumps(read).encode()

    def record_source(self, content: bytes) -> RecordSource | None:
        block = json.loads(content).get("dead_letter") or {}
        if "message_id" not in block:
            return None
        return RecordSource(block["message_id"].encode(), block["reason"], block.get("error"))

    def redrive_content(self, content: bytes) -> bytes:
        raw: str = json.loads(content).get("raw", content.decode())
        return raw.encode()

    def origin_queue(self, content: bytes) -> str | None:
        name: str | None = (json.loads(content).get("dead_letter") or {}).get("original_queue")
        return name


def rig_with_inspector(limits: Limits | None = None, **settings: Any) -> CoreRig:
    return CoreRig(limits or Limits(), QueueSettings(**settings), envelopes=FakeInspector())


def rig_with_strict_queue(limits: Limits | None = None, **settings: Any) -> CoreRig:
    return rig_with_inspector(limits, payload_policy="envelope", **settings)


def indexed_fields(given: Message) -> tuple[Any, ...]:
    return given.indexed


def inspection_count(rig: CoreRig) -> int:
    envelopes = rig.core.inspector
    assert isinstance(envelopes, FakeInspector)
    return envelopes.looks


def block_of(content: bytes) -> dict[str, Any]:
    block: dict[str, Any] = json.loads(content)["dead_letter"]
    return block


def expected_record(rig: CoreRig, made: Message, **changes: Any) -> bytes:
    """Return the record that a worker would write about a message."""
    block = {"reason": "no stock", "message_id": made.message_id.decode()} | changes
    return json.dumps({"urn": "urn:a", "dead_letter": block}).encode()
