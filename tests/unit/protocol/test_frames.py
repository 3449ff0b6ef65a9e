"""Frames, their tables, and the names of queues."""

from typing import Any

import pytest

from phpmq_lite.protocol import frames
from phpmq_lite.protocol.fast_path import FastBrokerFrames, FastClientFrames
from phpmq_lite.protocol.frames import (
    REVISION_OF_HEADER,
    Acknowledge,
    Dispatch,
    Publish,
    WireLimits,
    decode_queue,
    message_header,
)
from phpmq_lite.protocol.parser import Parser
from phpmq_lite.server.frame_recorder import DissectedFrame, Dissector


def test_frames_are_slotted_values() -> None:
    assert not hasattr(Publish("orders", b"x", None, None), "__dict__")
    assert Acknowledge("orders", b"a") == Acknowledge("orders", b"a")
    assert Acknowledge("orders", b"a") != Acknowledge("orders", b"b")
    match Dispatch("orders", b"x", b"id", 5):
        case Dispatch(queue, content, message_id, ttl_s):
            assert (queue, content, message_id, ttl_s) == ("orders", b"x", b"id", 5)


def test_message_tables_are_consistent() -> None:
    assert message_header(frames.PUBLISH, 3) == b"H0100103"
    assert frames.FROM_CLIENT.keys() & frames.FROM_BROKER.keys() == set()
    shapes = {**frames.FROM_CLIENT, **frames.FROM_BROKER}
    without_queue = {header for header, packets in shapes.items() if packets[0] != frames.QUEUE}
    assert without_queue == {message_header(frames.HELLO, 2), message_header(frames.WELCOME, 2)}
    assert REVISION_OF_HEADER.keys() <= frames.FROM_CLIENT.keys()


def test_published_frames_keep_their_packets() -> None:
    """Only frames of types 007 and above, and a 001 with a key, are ours."""
    shapes = {**frames.FROM_CLIENT, **frames.FROM_BROKER}
    published = {header: packets for header, packets in shapes.items() if header < b"H01007"}
    assert published == {
        b"H0100102": (1, 2), b"H0100103": (1, 2, 5), b"H0100104": (1, 2, 5, 3),
        b"H0100202": (1, 4),
        b"H0100303": (1, 2, 3), b"H0100304": (1, 2, 3, 5),
        b"H0100402": (1, 3), b"H0100503": (1, 3, 5), b"H0100602": (1, 3),
    }  # fmt: skip
    assert {int(header[3:6]) for header in shapes.keys() - published.keys()} == {*frames.OUR_FRAMES}
    assert [kind for kind in range(20) if kind not in {int(header[3:6]) for header in shapes}] == [
        0, 8, 9, 16, 17, 18, 19
    ]  # fmt: skip


def test_options_are_part_of_our_frames_only_and_show_the_newer_revision() -> None:
    """R7; a 013 and a 015 come from the broker."""
    for header, packets in frames.FROM_CLIENT.items():
        assert (frames.OPTIONS in packets) == (header >= b"H01010")
        if frames.OPTIONS in packets:
            assert REVISION_OF_HEADER[header] == "ttl"


@pytest.mark.parametrize(
    ("table", "fast_path"),
    [(frames.FROM_CLIENT, FastClientFrames), (frames.FROM_BROKER, FastBrokerFrames)],
    ids=["client", "broker"],
)
def test_parser_and_dissector_know_every_message(table: frames.Shapes, fast_path: Any) -> None:
    for header, packets in table.items():
        frame = header + b"".join(b"P%02d%029d1" % (packet, 1) for packet in packets)
        kept: list[DissectedFrame] = []
        parser = Parser(WireLimits(), table, fast_path)
        parser.observe(Dissector(kept.append).see)
        parsed = parser.feed(frame)
        [dissected] = kept
        assert (header, len(parsed), dissected.kind != "unknown") == (header, 1, True)


def test_limits_have_an_entry_for_every_packet() -> None:
    assert WireLimits(max_content=5).by_packet() == {1: 259, 2: 5, 3: 64, 4: 19, 5: 19, 6: 16_384}


@pytest.mark.parametrize("name", ["orders", "é", "a b", "\nq", "日本語"])
def test_queue_name_is_decoded(name: str) -> None:
    assert decode_queue(name.encode()) == name


@pytest.mark.parametrize(
    "raw", [b"\x00", b"a\tb", b"a\r", b"\x1b[31m", b"\x7f", "\x85".encode(), b"\xff", b"\xc3\x28"]
)
def test_queue_name_is_refused_when_it_is_not_text(raw: bytes) -> None:
    assert decode_queue(raw) is None
