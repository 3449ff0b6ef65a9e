"""Frames are plain slotted objects."""

import pytest

from phpmq_lite.protocol.frames import Acknowledge, Dispatch, Publish


def test_frame_has_no_dict() -> None:
    with pytest.raises(AttributeError):
        Publish("orders", b"x", None, None).colour = 1  # type: ignore[attr-defined]


def test_frames_are_equal_when_their_fields_are() -> None:
    assert Acknowledge("orders", b"a") == Acknowledge("orders", b"a")
    assert Acknowledge("orders", b"a") != Acknowledge("orders", b"b")


def test_frame_can_be_taken_apart_by_match() -> None:
    match Dispatch("orders", b"x", b"id", 5):
        case Dispatch(queue, content, message_id, ttl_s):
            assert (queue, content, message_id, ttl_s) == ("orders", b"x", b"id", 5)
