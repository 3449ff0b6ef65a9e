"""docs/reference/protocol.md agrees with the code: frames, limits, codes and states."""

import re
from collections import Counter
from functools import partial
from itertools import chain
from xml.etree import ElementTree

import pytest

from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.reasons import SHORTAGE_REFUSALS
from phpmq_lite.broker.state_table import TRANSITIONS, StateEvent
from phpmq_lite.errors import KEY_CONFLICT
from phpmq_lite.model import QueueRow, State
from phpmq_lite.protocol import frames
from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import Dispatch, ReceiptFrame, WireLimits
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server import admission, backpressure
from tests.docs import pages
from tests.docs.pages import ROOT

NAME = "docs/reference/protocol.md"
PAGE = pages.text_of(NAME)
EXAMPLES = [
    # two spaces separate the piece from its explanation
    [re.split(r" {2,}", line)[0] for line in fence.splitlines()]
    for fence in re.findall(r"^```text\n(H01.*?)^```", PAGE, re.M | re.S)
    if "…" not in fence
]
PICTURE = ElementTree.fromstring(
    (ROOT / "docs" / "images" / "life.svg").read_text(encoding="utf-8")
)
SVG = "{http://www.w3.org/2000/svg}"
NEAR = 4.0  # maximum distance between an arrow and its box


rows = partial(pages.rows, NAME)


def quoted(cells: list[list[str]]) -> set[str]:
    return set(chain.from_iterable(re.findall(r"`([^`]+)`", row[0]) for row in cells))


# -- the frames


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda lines: lines[0])
@pytest.mark.parametrize("line_break", ["", "\n", "\r\n"], ids=["compact", "LF", "CR LF"])
def test_example_is_one_whole_frame_in_both_framings(example: list[str], line_break: str) -> None:
    data = line_break.join(example).encode()
    is_from_broker = example[0][:6] in {"H01003", "H01007"}
    side = ClientSide() if is_from_broker else ServerSide(WireLimits())
    frames = list(side.receive(data))
    if isinstance(side, ServerSide):
        frames += side.release()
    assert (len(frames), side.error, side.parser.partial_bytes) == (1, None, 0)


def test_examples_have_every_frame_there_is() -> None:
    shown = Counter(example[0].encode() for example in EXAMPLES)
    assert shown == dict.fromkeys(frames.FROM_CLIENT | frames.FROM_BROKER, 1)


def test_broker_writes_the_bytes_of_the_examples() -> None:
    for example in EXAMPLES:
        data = "".join(example).encode()
        for frame in ClientSide().receive(data) if example[0][3:6] in {"003", "007"} else ():
            assert written(frame) == data


def written(frame: Dispatch | ReceiptFrame) -> bytes:
    parts: list[bytes] = []
    if isinstance(frame, ReceiptFrame):
        side = ServerSide(WireLimits())
        side.append_receipts(parts, frame.queue, (frame.key,), frame.reason)
    else:
        side = ServerSide(WireLimits(), revision="legacy" if frame.ttl_s is None else "ttl")
        side.append_dispatch(parts, frame.queue, frame.content, frame.message_id, frame.ttl_s or 0)
    return b"".join(parts)


def test_table_of_frames_has_their_packets_in_order() -> None:
    told = {int(row[0]): list(map(int, re.findall(r"\b0\d\b", row[3]))) for row in rows("| type |")}
    longest: dict[int, tuple[int, ...]] = {}
    for header, packets in (frames.FROM_CLIENT | frames.FROM_BROKER).items():
        kind = int(header[3:6])
        longest[kind] = max(longest.get(kind, ()), packets, key=len)
    assert told == {kind: list(packets) for kind, packets in longest.items()}


def test_table_of_packets_has_their_limits() -> None:
    told = {int(row[0]): int(re.findall(r"\d+", row[2])[-1]) for row in rows("| packet |")}
    limits = WireLimits().by_packet()
    assert told == limits | {frames.CONTENT: limits[frames.CONTENT] >> 20}


# -- what closes, what refuses, what is ignored


def test_codes_are_those_of_the_grammar() -> None:
    named = [name for name in vars(frames) if name.isupper() and not name.startswith("_")]
    codes = {value for name in named if isinstance(value := getattr(frames, name), str)}
    assert quoted(rows("| code |")) == codes


def test_limits_that_close_are_those_of_the_code() -> None:
    assert quoted(rows("| reason | setting |")) == {
        backpressure.TOO_SLOW, backpressure.NOT_READ, backpressure.NOT_TAKEN, backpressure.SILENT,
        admission.NOT_ALLOWED, admission.TOO_MANY, admission.TOO_MANY_OF_ADDRESS,
    }  # fmt: skip


def test_refusals_are_those_of_a_queue_and_of_the_disk() -> None:
    settings = ({"publishing_paused": True}, {"max_messages": 1}, {"max_bytes": 1})
    refusals = set()
    for own in settings:
        row = QueueRow(1, "orders", 0, dict(own), live_count=1, live_bytes=1)
        refusal = Queue(row, QueueSettings()).refusal()
        refusals.add(None if refusal is None else refusal.reason)
    shut = {kind.reason for kind in SHORTAGE_REFUSALS}
    told = quoted(rows("| reason | what to do |"))
    others = {"too many queues", "dead-letter queue …", KEY_CONFLICT}
    assert told == refusals | shut | others


# -- the life of a message


def states() -> dict[str, tuple[float, float, float, float]]:
    """Return the boxes of the picture: left, top, right, bottom."""
    boxes = {}
    for box in PICTURE.iter(f"{SVG}rect"):
        if "id" in box.attrib:
            x, y, width, height = (float(box.attrib[at]) for at in ("x", "y", "width", "height"))
            boxes[box.attrib["id"]] = (x, y, x + width, y + height)
    return boxes


def arrows() -> list[ElementTree.Element]:
    return [path for path in PICTURE.iter(f"{SVG}path") if "data-events" in path.attrib]


def words() -> set[str]:
    """Return the words in the labels of the picture, without notes."""
    labels = [text for text in PICTURE.iter(f"{SVG}text") if "note" not in text.get("class", "")]
    said = (label.text or "" for label in labels)
    return {word.strip() for text in said for word in text.split(",") if word.strip()}


def test_picture_has_every_transition_and_no_other() -> None:
    drawn = [
        (arrow.get("data-from"), event, arrow.get("data-to"))
        for arrow in arrows()
        for event in arrow.attrib["data-events"].split()
    ]
    told = [(state.name.lower(), event, to.name.lower()) for (state, event), to in
            TRANSITIONS.items()]  # fmt: skip
    assert Counter(drawn) == Counter([(None, "publish", "ready"), *told])


def test_arrows_of_the_picture_lead_from_box_to_box() -> None:
    boxes = states()
    assert boxes.keys() == {state.name.lower() for state in State}
    for arrow in arrows():
        numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", arrow.attrib["d"])]
        if (start := arrow.get("data-from")) is not None:
            assert touches(boxes[start], *numbers[:2]), arrow.attrib
        assert touches(boxes[arrow.attrib["data-to"]], *numbers[-2:]), arrow.attrib


def touches(box: tuple[float, float, float, float], x: float, y: float) -> bool:
    """Return whether a point is on the border of a box."""
    left, top, right, bottom = box
    is_within = left - NEAR <= x <= right + NEAR and top - NEAR <= y <= bottom + NEAR
    return is_within and min(x - left, right - x, y - top, bottom - y) <= NEAR


def test_words_of_the_picture_are_states_and_events() -> None:
    events = {event.value.replace("_", " ") for event in StateEvent}
    assert words() == events | {"publish"} | {state.name.lower() for state in State}


def test_table_of_transitions_has_every_event_once() -> None:
    told = [row[0] for row in rows("| transition |")]
    assert sorted(told) == sorted(
        ["publish", *(event.value.replace("_", " ") for event in StateEvent)]
    )
