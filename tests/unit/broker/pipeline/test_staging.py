"""Staging in memory: counters, the copy by the writer, and the windows."""

from typing import Any

from phpmq_lite.broker.pipeline.staging import TOKEN, StagedPublishResult, StagingStatus
from phpmq_lite.broker.pipeline.state import STAGE_KEPT_MS, parse_sealed_token, sealed_token
from phpmq_lite.model import Batch
from phpmq_lite.writes import (
    CopyStagedRows,
    CreateStage,
    DropStage,
    RecordPublishedVersion,
    UpdateStage,
)
from tests.support.core_rig import STEADY_MS, WALL_MS, CoreRig


def stage(rig: CoreRig, token: str, *bodies: bytes, ttl_s: int | None = None) -> Batch:
    rows = [("orders", body, ttl_s) for body in bodies]
    return rig.pipeline("stage", token, rows, after=0, is_whole=True)


def writes(batch: Batch, of_type: type[Any]) -> list[Any]:
    return [write for write in batch.writes if isinstance(write, of_type)]


def test_only_sealed_tokens_are_parsed_as_such() -> None:
    tokens = [sealed_token("cafe", 1 << 62, number) for number in (2, 9, 10_000)]
    assert [parse_sealed_token(token) for token in tokens] == [("cafe", 1 << 62)] * 3
    assert sorted(tokens) == tokens
    assert not any(map(TOKEN.fullmatch, tokens))
    assert parse_sealed_token("cafe-1-2") is None


def test_staged_rows_are_numbered_under_their_token(rig: CoreRig) -> None:
    stage(rig, "t", b"a")
    batch = stage(rig, "u", b"b", b"cc", ttl_s=9)
    rows = batch.staged_rows
    assert [(row.row_id, row.queue_id, row.ttl_s, row.content) for row in rows] == [
        (2 << 17, 1, 9, b"b"), (2 << 17 | 1, 1, 9, b"cc"),
    ]  # fmt: skip
    assert writes(batch, CreateStage) == [(2, "u", WALL_MS, STEADY_MS + STAGE_KEPT_MS)]
    assert writes(batch, UpdateStage) == [(2, 3, 1, 2)]
    assert rig.answers == [StagingStatus(1, 1), StagingStatus(2, 3)]
    assert (rig.core.staging.bytes, rig.queue().row.live_count) == (4, 0)


def test_publish_reserves_numbers_and_leaves_the_copy_to_the_writer(rig: CoreRig) -> None:
    rig.publish(b"first")
    stage(rig, "t", b"a", b"b", ttl_s=9)
    batch = rig.pipeline("publish_staged", "app", 3, ["t"])
    [given] = writes(batch, CopyStagedRows)
    first_row, client = 1 << 17, rig.core.batch.opened_clients[0]
    assert given == (2 - first_row, WALL_MS, STEADY_MS, client, first_row, first_row + 2)
    assert batch.counters["next_number"] == 4
    assert batch.created == []
    assert writes(batch, RecordPublishedVersion) == [("app", 3, WALL_MS, 2, None, STEADY_MS, 0)]
    assert rig.answers[-1] == StagedPublishResult(2, False, 0)
    queue = rig.queue()
    assert (queue.row.live_count, queue.row.live_bytes, queue.counters.published) == (3, 7, 3)
    assert queue.counters.published_ui == 2
    assert rig.core.next_wake_ms == STEADY_MS + 9_000


def test_window_does_not_reach_the_end_after_a_staged_publish(rig: CoreRig) -> None:
    rig.consumer(credit=1)
    rig.publish(b"a")
    stage(rig, "t", b"b")
    batch = rig.pipeline("publish_staged", "app", 1, ["t"])
    window = rig.window()
    assert (window.reaches_end, window.is_loading) == (False, True)
    assert [request.after for request in batch.windows] == [1]
    assert rig.publish(b"c").sends == {}
    assert 3 not in rig.core.messages  # it follows messages on disk


def test_repeated_version_only_drops_its_tokens(rig: CoreRig) -> None:
    stage(rig, "t", b"a")
    rig.pipeline("publish_staged", "app", 1, ["t"])
    stage(rig, "t", b"a")
    batch = rig.pipeline("publish_staged", "app", 1, ["t", "unknown"])
    assert rig.answers[-1] == StagedPublishResult(0, True, 0)
    assert (writes(batch, CopyStagedRows), writes(batch, DropStage)) == ([], [(2,)])
    assert (rig.core.staging.stages, rig.core.staging.bytes) == ({}, 0)


def test_token_is_dropped_when_it_expires(rig: CoreRig) -> None:
    stage(rig, "t", b"a")
    rig.steady_ms += STAGE_KEPT_MS - 1
    assert writes(rig.run(), DropStage) == []
    rig.steady_ms += 1
    assert rig.core.next_wake_ms == rig.steady_ms
    assert writes(rig.run(), DropStage) == [(1,)]
    assert rig.core.next_wake_ms is None
