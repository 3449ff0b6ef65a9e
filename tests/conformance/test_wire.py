"""The wire cases: bytes and what they mean, whole, by bytes, and at random cuts.

``wire_cases.json`` holds the facts; names that begin with ``own-`` go beyond the published
examples (keys, receipts, names, options, line framing with 36-byte headers).
"""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

import pytest

from phpmq_lite.protocol import frames
from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import BrokerFrame, Frame, Revision, WireLimits
from tests.fuzz import grammar
from tests.support.frame_bytes import append_broker_frame

Case = dict[str, Any]

CASES: Final = json.loads((Path(__file__).parent / "wire_cases.json").read_text(encoding="utf-8"))
LIMITS: Final = WireLimits(**CASES["limits"])
ALL: Final[list[Case]] = CASES["cases"]
FROM_CLIENT: Final = [case for case in ALL if case["from"] == "client"]
FROM_BROKER: Final = [case for case in ALL if case["from"] == "broker"]
ANSWERS: Final = [case for case in FROM_BROKER if case["end"] == "ok"]
RANDOM_CUTS: Final = 25


def raw(text: str | list[Any]) -> bytes:
    """Turn the file's text, or its list of texts and [text, times], into bytes."""
    pieces = [text] if isinstance(text, str) else text
    whole = "".join(piece if isinstance(piece, str) else piece[0] * piece[1] for piece in pieces)
    return whole.encode("latin-1")


def frame_of(fact: dict[str, Any]) -> Frame:
    """Build the frame that a fact of the file describes."""
    queue = raw(fact.get("queue", "")).decode()
    identity = raw(fact.get("id", fact.get("key", "")))
    content = raw(fact.get("content", ""))
    options = raw(fact.get("options", ""))
    match fact["type"]:
        case "publish":
            return frames.Publish(queue, content, fact.get("ttl"), identity or None)
        case "consume":
            return frames.Consume(queue, fact["count"])
        case "dispatch":
            return frames.Dispatch(queue, content, identity, fact.get("ttl"))
        case "acknowledge":
            return frames.Acknowledge(queue, identity)
        case "requeue":
            return frames.Requeue(queue, identity, fact["ttl"])
        case "dead-letter":
            return frames.DeadLetter(queue, identity)
        case "publish-with-options":
            return frames.PublishWithOptions(queue, content, options, identity or None)
        case "settle":
            new = content if "content" in fact else None
            return frames.Settle(queue, identity, options, new)
        case "consume-with-options":
            return frames.ConsumeWithOptions(queue, fact["count"], options)
        case "dispatch-with-info":
            info = raw(fact["info"])
            return frames.DispatchWithInfo(queue, content, identity, fact["ttl"], info)
        case "hello":
            return frames.Hello(identity, options)
        case "welcome":
            return frames.Welcome(identity, options)
        case _:
            return frames.ReceiptFrame(queue, identity, fact.get("reason"))


def cuts_of(data: bytes, name: str) -> list[list[bytes]]:
    """Return the ways to cut: whole, by bytes, and at random places that a name always gives."""
    dice = random.Random(name)
    ways = [[data], [data[index : index + 1] for index in range(len(data))]]
    for _ in range(RANDOM_CUTS):
        places = sorted(dice.randrange(len(data) + 1) for _ in range(dice.randrange(1, 6)))
        edges = [0, *places, len(data)]
        ways.append([data[start:stop] for start, stop in pairwise(edges)])
    return ways


def end_of(side: ServerSide | ClientSide) -> str:
    if side.error is not None:
        return side.error.code
    return "incomplete" if side.parser.partial_bytes else "ok"


@pytest.mark.parametrize("guard", [False, True], ids=["", "http-guard"])
@pytest.mark.parametrize("case", FROM_CLIENT, ids=lambda case: case["name"])
def test_server_side_reads_case_at_any_cut(case: Case, guard: bool) -> None:
    """The http guard delays what a case gives and changes nothing."""
    for pieces in cuts_of(raw(case["bytes"]), case["name"]):
        side = ServerSide(LIMITS, http_guard=guard)
        got = [frame for piece in pieces for frame in side.receive(piece)]
        got += side.release()
        assert got == [frame_of(fact) for fact in case["frames"]]
        assert end_of(side) == case["end"]
        if case["end"] == "ok":
            assert (side.parser.framing, side.packet_header) == (
                case["framing"],
                case["packet_header"],
            )
            assert side.parser.revision_seen == case["shows"]


@pytest.mark.parametrize("case", FROM_CLIENT, ids=lambda case: case["name"])
def test_server_side_runs_nothing_after_an_error(case: Case) -> None:
    """R16: what follows the first wrong byte is not looked at."""
    side = ServerSide(LIMITS, http_guard=False)
    side.receive(raw(case["bytes"]))
    error = side.error
    if error is not None:
        assert side.receive(ClientSide().publish("orders", b"late")) == []
        assert side.error is error


@pytest.mark.parametrize("case", FROM_CLIENT, ids=lambda case: case["name"])
def test_server_side_names_the_same_wrong_byte_at_any_cut(case: Case) -> None:
    offsets = set()
    for pieces in cuts_of(raw(case["bytes"]), case["name"]):
        side = ServerSide(LIMITS, http_guard=False)
        for piece in pieces:
            side.receive(piece)
        offsets.add(side.error and side.error.offset)
    assert len(offsets) == 1


@pytest.mark.parametrize("case", FROM_BROKER, ids=lambda case: case["name"])
def test_client_side_reads_case_at_any_cut(case: Case) -> None:
    for pieces in cuts_of(raw(case["bytes"]), case["name"]):
        side = ClientSide(LIMITS)
        got = [frame for piece in pieces for frame in side.receive(piece)]
        assert got == [frame_of(fact) for fact in case["frames"]]
        assert end_of(side) == case["end"]


def server_side_like(case: Case) -> ServerSide:
    """Return a connection that has seen this case's framing, break and width (R9)."""
    sent = raw(case["bytes"])
    line_break = b"" if case["framing"] == "compact" else sent[8 : sent.index(b"P")]
    digits = case["packet_header"] - 3
    consume = [b"H0100202", b"P01%0*d" % (digits, 3), b"Foo", b"P04%0*d" % (digits, 1), b"5"]
    revision: Revision = "legacy" if sent.startswith(b"H0100303") else "ttl"
    side = ServerSide(LIMITS, revision=revision, http_guard=False)
    assert len(side.receive(line_break.join(consume))) == 1
    return side


@pytest.mark.parametrize("case", ANSWERS, ids=lambda case: case["name"])
def test_server_side_writes_case_byte_by_byte(case: Case) -> None:
    side = server_side_like(case)
    parts: list[bytes] = []
    for frame in map(frame_of, case["frames"]):
        append_broker_frame(side, parts, cast("BrokerFrame", frame))
    assert b"".join(parts) == raw(case["bytes"])


@pytest.mark.parametrize(
    ("cases", "table", "ours"),
    [
        (FROM_CLIENT, frames.FROM_CLIENT, grammar.FROM_CLIENT),
        (FROM_BROKER, frames.FROM_BROKER, grammar.FROM_BROKER),
    ],
    ids=["client", "broker"],
)
def test_every_message_has_a_case_and_a_second_reading(
    cases: list[Case], table: frames.Shapes, ours: dict[bytes, object]
) -> None:
    begun = {raw(case["bytes"])[: frames.HEADER_BYTES] for case in cases if case["end"] == "ok"}
    assert begun >= table.keys()
    assert {header[3:] for header in table} == ours.keys()


CODES: Final = """
bad-framing bad-header bad-number bad-packet-count bad-packet-header bad-packet-type bad-queue
bad-version duplicate-packet empty-id empty-queue too-large unexpected-type unknown-type
"""


def test_cases_have_unique_names_and_cover_every_code() -> None:
    assert len({case["name"] for case in ALL}) == len(ALL)
    codes = {case["end"] for case in ALL} - {"ok", "incomplete"}
    assert codes == set(CODES.split())
