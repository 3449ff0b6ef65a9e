"""The protocol inspector: frames of both directions and framings, cut anywhere; wrong bytes."""

import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import Revision, WireLimits
from phpmq_lite.server.frame_recorder import (
    CUT_BYTES,
    ERRORS,
    FRAMES,
    FRAMES_PER_S,
    IDLE_S,
    WATCHED,
    DissectedFrame,
    FrameRecorder,
    Inspector,
    ProtocolErrorRecord,
    RecordedSide,
    Side,
)

HOSTILE = '../<script>alert(1)</script>"é'
ID = b"%016x%016x" % (7, 9)
CLIENT = ClientSide()
LINE = b"H0100103\r\nP01%029d\r\nmail\r\nP02%029d\r\n%s\r\nP05%029d\r\n60\r\n"


@dataclass
class Peer:
    """A session as the inspector sees it."""

    side: Side


def server(*, http_guard: bool = False, revision: Revision = "ttl") -> ServerSide:
    return ServerSide(WireLimits(), http_guard=http_guard, revision=revision)


def watched() -> tuple[RecordedSide, FrameRecorder]:
    peer = Peer(server())
    recorder = Inspector().watch(1, peer, 0.0)
    assert recorder is not None
    assert isinstance(peer.side, RecordedSide)
    return peer.side, recorder


def line_publish(content: bytes) -> bytes:
    return LINE % (4, len(content), content, 2)


def meanings(frame: DissectedFrame) -> list[str]:
    return [piece.meaning for piece in frame.pieces]


# -- frames


STREAM = b"".join(
    [
        CLIENT.publish(HOSTILE, b'{"a":1}', 60, b"key-1"),
        CLIENT.consume(HOSTILE, 0),
        CLIENT.acknowledge("mail", ID),
        CLIENT.requeue("mail", ID, 0),
        CLIENT.dead_letter("mail", ID),
    ]
)


@pytest.mark.parametrize("read", [1, 7, 33, 1_000])
def test_recorder_decodes_frames_of_a_client_however_they_are_cut(read: int) -> None:
    side, recorder = watched()
    for at in range(0, len(STREAM), read):
        side.receive(STREAM[at : at + read])
    frames = [one.frame for one in recorder.frames]
    assert [frame.kind for frame in frames] == [
        "publish", "consume", "acknowledge", "requeue", "dead letter",
    ]  # fmt: skip
    assert meanings(frames[0]) == [
        "publish, 4 packets", f"queue {HOSTILE}", "content, 7 bytes", "TTL 60 s", "key key-1",
    ]  # fmt: skip
    assert meanings(frames[1])[-1] == "credit 0: returns held messages"
    assert meanings(frames[3])[-1] == "TTL 0: never expires"
    assert all(one.is_inbound for one in recorder.frames)
    assert b"".join(piece.raw for frame in frames for piece in frame.pieces) == STREAM


@pytest.mark.parametrize("read", [1, 5, 1_000])
def test_recorder_decodes_line_framing(read: int) -> None:
    side, recorder = watched()
    stream = line_publish(b"one\r\n") + b"\r\n" + line_publish("é".encode())
    for at in range(0, len(stream), read):
        side.receive(stream[at : at + read])
    frames = [one.frame for one in recorder.frames]
    assert [frame.queue for frame in frames] == ["mail", "mail"]
    assert meanings(frames[0]) == [
        "publish, 3 packets", "queue mail", "content, 5 bytes", "TTL 60 s",
    ]  # fmt: skip
    assert frames[1].pieces[2].raw.endswith("é".encode())


def test_recorder_decodes_headers_of_36_bytes() -> None:
    side, recorder = watched()
    side.receive(b"H0100202P01%033dmailP04%033d12" % (4, 2))
    assert meanings(recorder.frames[0].frame) == ["consume, 2 packets", "queue mail", "credit 12"]


@pytest.mark.parametrize("begin", [CLIENT.consume("mail", 1), line_publish(b"x")])
def test_recorder_decodes_frames_of_the_broker(begin: bytes) -> None:
    side, recorder = watched()
    side.receive(begin)
    parts: list[bytes] = []
    side.append_dispatch(parts, "mail", b"\xff\x00<b>", ID, 9)
    side.append_receipts(parts, "mail", (b"k",), None)
    side.append_receipts(parts, "mail", (b"k",), "paused")
    dispatch, stored, refused = (one.frame for one in list(recorder.frames)[1:])
    assert meanings(dispatch) == [
        "dispatch, 4 packets", "queue mail", "content, 5 bytes",
        f"message id {ID.decode()}", "TTL 9 s",
    ]  # fmt: skip
    assert dispatch.pieces[2].raw.endswith(b"\xff\x00<b>")
    assert meanings(stored)[-1] == "key k"
    assert "refused: paused" in meanings(refused)
    assert not recorder.frames[1].is_inbound
    assert len(b"".join(parts)) >= dispatch.size + stored.size + refused.size - 6


@pytest.mark.parametrize("style", [b"", b"\n"])
def test_recorder_decodes_frames_with_options(style: bytes) -> None:
    side, recorder = watched()
    pieces = b"H0101402", b"P03%029d" % 1, b"k", b"P06%029d" % 15, b'{"name":"test"}'
    side.receive(style.join(pieces) + style)
    if not style:
        side.receive(CLIENT.publish_with_options("mail", b"abc", b"{}", b"k"))
        side.receive(CLIENT.settle("mail", ID, b"\xff", b"new"))
        side.receive(CLIENT.consume_with_options("mail", 5, b"x" * 300))
    parts: list[bytes] = []
    side.append_welcome(parts, b"k", b"{}")
    side.append_dispatch_with_info(parts, "mail", b"abc", ID, 0, b'{"attempt":1}')
    frames = [one.frame for one in recorder.frames]
    assert meanings(frames[0]) == ["hello, 2 packets", "key k", 'options {"name":"test"}']
    assert frames[0].queue is None
    assert meanings(frames[-2]) == ["welcome, 2 packets", "key k", "options {}"]
    assert meanings(frames[-1]) == [
        "dispatch with info, 5 packets", "queue mail", "content, 3 bytes",
        f"message id {ID.decode()}", "TTL 0: never expires", 'info {"attempt":1}',
    ]  # fmt: skip
    assert [one.is_inbound for one in recorder.frames][-2:] == [False, False]
    if not style:
        assert meanings(frames[1])[-2:] == ["options {}", "key k"]
        assert meanings(frames[2])[-2:] == ["options \\xff", "content, 3 bytes"]
        assert frames[3].pieces[-1].cut == 300 - CUT_BYTES


def test_recorder_keeps_only_the_beginning_of_a_content() -> None:
    side, recorder = watched()
    side.receive(CLIENT.publish("mail", b"x" * 10_000))
    piece = recorder.frames[0].frame.pieces[2]
    assert len(piece.raw) == 32 + CUT_BYTES
    assert piece.cut == 10_000 - CUT_BYTES


def test_recorder_begins_with_the_next_complete_frame() -> None:
    peer = Peer(server())
    frame = CLIENT.publish("mail", b"abc")
    peer.side.receive(frame[:50])
    recorder = Inspector().watch(1, peer, 0.0)
    assert recorder is not None
    peer.side.receive(frame[50:] + CLIENT.consume("mail", 1)[:20])
    peer.side.receive(CLIENT.consume("mail", 1)[20:])
    assert [one.frame.kind for one in recorder.frames] == ["consume"]
    assert recorder.skipped == 1


def test_recorder_keeps_the_last_frames() -> None:
    side, recorder = watched()
    for _ in range(FRAMES + 10):
        side.receive(CLIENT.consume("mail", 1))
    assert len(recorder.frames) == FRAMES
    assert recorder.frames[-1].number == FRAMES + 10


def test_recorder_skips_frames_above_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [5.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    side, recorder = watched()
    for _ in range(FRAMES_PER_S + 30):
        side.receive(CLIENT.consume("mail", 1))
    assert (recorder.count, recorder.skipped) == (FRAMES_PER_S, 30)
    seconds[0] = 6.0
    side.receive(CLIENT.consume("mail", 1))  # the recorder resynchronises
    side.receive(CLIENT.consume("mail", 2))
    assert recorder.frames[-1].frame.pieces[2].meaning == "credit 2"


def test_recorder_shows_nothing_after_a_wrong_byte() -> None:
    side, recorder = watched()
    side.receive(CLIENT.consume("mail", 1) + b"H0109902" + CLIENT.consume("mail", 1))
    assert [one.frame.kind for one in recorder.frames] == ["consume"]
    assert side.error is not None


@given(
    at=st.integers(0, len(STREAM) - 1), byte=st.integers(0, 255), read=st.integers(1, 99), data=...
)
def test_recorder_shows_the_frames_before_any_wrong_byte(
    at: int, byte: int, read: int, data: bytes
) -> None:
    side, recorder = watched()
    stream = STREAM[:at] + bytes([byte]) + data + STREAM[at + 1 :]
    received = 0
    for start in range(0, len(stream), read):
        received += len(side.receive(stream[start : start + read]))
    frames = [one.frame for one in recorder.frames]
    assert len(frames) == received
    assert stream.startswith(b"".join(piece.raw for frame in frames for piece in frame.pieces))


# -- recordings


def test_recording_does_not_change_the_frames() -> None:
    plain, (recorded, _) = server(), watched()
    sides: tuple[Side, ...] = (plain, recorded)
    parts: list[list[bytes]] = [[], []]
    for side, out in zip(sides, parts, strict=True):
        side.receive(STREAM)
        side.append_dispatch(out, "mail", b"x", ID, 0)
    assert parts[0] == parts[1]
    assert recorded.parser.framing == plain.parser.framing == "compact"
    assert recorded.parser.revision_seen == plain.parser.revision_seen == "ttl"
    assert recorded.packet_header == plain.packet_header == 32
    assert recorded.parser.partial_bytes == plain.parser.partial_bytes == 0
    assert recorded.release() == []
    assert not recorded.is_waiting


def test_inspector_ends_an_unused_recording() -> None:
    side = server()
    peer, inspector = Peer(side), Inspector()
    inspector.watch(1, peer, 0.0)
    inspector.end_idle(IDLE_S)
    assert peer.side is not side
    inspector.end_idle(IDLE_S + 1)
    assert peer.side is side
    assert inspector.watched == 0


def test_inspector_continues_a_recording_in_use() -> None:
    peer, inspector = Peer(server()), Inspector()
    first = inspector.watch(1, peer, 0.0)
    assert inspector.watch(1, peer, 50.0) is first
    inspector.end_idle(IDLE_S + 10)
    assert inspector.watched == 1


def test_recording_outlives_its_connection() -> None:
    peer, inspector = Peer(server()), Inspector()
    recorder = inspector.watch(1, peer, 0.0)
    assert inspector.watch(1, None, 5.0) is recorder
    assert inspector.watch(2, None, 5.0) is None


def test_number_of_recordings_is_bounded() -> None:
    inspector = Inspector()
    peers = [Peer(server()) for _ in range(WATCHED + 1)]
    for number, peer in enumerate(peers):
        inspector.watch(number, peer, float(number))
    assert inspector.watched == WATCHED
    assert isinstance(peers[0].side, ServerSide)  # the longest unused one was ended


# -- wrong bytes


def record_error(side: ServerSide, *reads: bytes) -> ProtocolErrorRecord:
    """Receive data that ends with a wrong byte; return the error that an inspector keeps."""
    inspector = Inspector()
    for data in reads:
        side.receive(data)
    assert side.error is not None
    offset = sum(map(len, reads[:-1]))
    inspector.record_error(side.error, 7, "127.0.0.1:5", reads[-1], offset)
    return inspector.errors[0]


def test_inspector_keeps_the_wrong_byte_with_what_was_expected() -> None:
    good, bad = CLIENT.consume("mail", 1), b"GET / HTTP/1.1\r\n"
    kept = record_error(server(), good, bad)
    assert (kept.offset, kept.before, kept.received) == (len(good), b"", bad)
    assert kept.expected == "a message header: H and seven digits"
    assert "looks like HTTP" in kept.detail


def test_inspector_names_the_message_receipt_of_an_earlier_revision() -> None:
    """R18: 005 with two packets; in the newer revision it is a requeue with three."""
    data = b"H0100502P0100000000000000000000000000003FooP0300000000000000000000000000001x"
    bad = record_error(ServerSide(WireLimits()), data)
    assert (bad.code, bad.offset, bad.before) == ("bad-packet-count", 6, b"H01005")
    assert "005 must have 3 packets, not 2" in bad.detail
    assert "the message receipt of an earlier revision" in bad.detail


def test_inspector_shows_the_valid_bytes_before_the_wrong_one() -> None:
    kept = record_error(server(), CLIENT.consume("mail", 1) + b"H0100x02")
    assert kept.received == b"x02"
    assert kept.before.endswith(b"1H0100")


def test_inspector_has_no_bytes_of_an_earlier_read() -> None:
    side, inspector = server(), Inspector()
    side.receive(b"H0100202P01%029dmailP01%029d" % (4, 4))
    assert side.error is not None
    inspector.record_error(side.error, 1, "a", b"", 80)
    assert (inspector.errors[0].before, inspector.errors[0].received) == (b"", b"")


def test_inspector_keeps_the_last_errors() -> None:
    side, inspector = server(), Inspector()
    side.receive(b"x")
    assert side.error is not None
    for number in range(ERRORS + 5):
        inspector.record_error(side.error, number, "a", b"x", 0)
    assert [bad.client for bad in inspector.errors] == list(range(5, ERRORS + 5))
