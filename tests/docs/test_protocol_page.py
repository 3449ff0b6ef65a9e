"""docs/reference/protocol.md agrees with the code: frames, limits, codes and states."""

import json
import re
from collections import Counter
from functools import partial
from itertools import chain
from xml.etree import ElementTree

import pytest

from phpmq_lite import frame_options
from phpmq_lite.broker import reasons
from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.reasons import SHORTAGE_REFUSALS
from phpmq_lite.broker.state_table import TRANSITIONS, StateEvent
from phpmq_lite.errors import KEY_CONFLICT
from phpmq_lite.frame_options import (
    PublishOptions,
    consume_problem,
    facts_of,
    read_options,
    read_settlement,
)
from phpmq_lite.model import QueueRow, State
from phpmq_lite.protocol import frames
from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import Dispatch, WireLimits
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server import admission, backpressure
from tests.docs import pages
from tests.docs.pages import ROOT
from tests.support.frame_bytes import append_broker_frame

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
FROM_BROKER = {f"{header[3:6].decode()}" for header in frames.FROM_BROKER}
NEAR = 4.0  # maximum distance between an arrow and its box


rows = partial(pages.rows, NAME)


def quoted(cells: list[list[str]]) -> set[str]:
    return set(chain.from_iterable(re.findall(r"`([^`]+)`", row[0]) for row in cells))


# -- the frames


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda lines: lines[0])
@pytest.mark.parametrize("line_break", ["", "\n", "\r\n"], ids=["compact", "LF", "CR LF"])
def test_example_is_one_whole_frame_in_both_framings(example: list[str], line_break: str) -> None:
    data = line_break.join(example).encode()
    is_from_broker = example[0][3:6] in FROM_BROKER
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
        for frame in ClientSide().receive(data) if example[0][3:6] in FROM_BROKER else ():
            is_legacy = isinstance(frame, Dispatch) and frame.ttl_s is None
            parts: list[bytes] = []
            side = ServerSide(WireLimits(), revision="legacy" if is_legacy else "ttl")
            append_broker_frame(side, parts, frame)
            assert b"".join(parts) == data


def test_clients_write_the_bytes_of_the_examples() -> None:
    for example in EXAMPLES:
        data = "".join(example).encode()
        if (
            int(example[0][3:6]) >= frames.PUBLISH_WITH_OPTIONS
            and example[0][3:6] not in FROM_BROKER
        ):
            [frame] = ServerSide(WireLimits(), http_guard=False).receive(data)
            assert written(frame) == data


def written(frame: frames.ClientFrame) -> bytes:
    client = ClientSide()
    match frame:
        case frames.PublishWithOptions(queue, content, options, key):
            return client.publish_with_options(queue, content, options, key)
        case frames.Settle(queue, message_id, options, new):
            return client.settle(queue, message_id, options, new)
        case frames.ConsumeWithOptions(queue, count, options):
            return client.consume_with_options(queue, count, options)
        case frames.Hello(key, options):
            return client.hello(key, options)
    raise AssertionError(frame)


def test_options_of_the_examples_are_valid() -> None:
    found = [
        ServerSide(WireLimits(), http_guard=False).receive("".join(example).encode())
        for example in EXAMPLES
        if example[0][3:6] not in FROM_BROKER
    ]
    for (frame,) in found:
        match frame:
            case frames.PublishWithOptions():
                PublishOptions.of(read_options(frame.options, frame_options.PUBLISH))
            case frames.Settle():
                has_content = frame.content is not None
                assert not read_settlement(frame.options, has_content=has_content).problem
            case frames.ConsumeWithOptions():
                assert not consume_problem(frame.options)
            case frames.Hello():
                assert facts_of(frame.options).keys() == frame_options.HELLO.keys()


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        ("| option of 010 |", frame_options.PUBLISH),
        ("| option of 012 |", frame_options.CONSUME),
        ("| option of 014 |", frame_options.HELLO),
        *((f"| option of `{action}` |", fields) for action, fields in frame_options.SETTLE.items()),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_tables_of_options_have_every_option_with_its_bounds(
    head: str, fields: frame_options.Fields
) -> None:
    """The table of each frame; those of an action are in the order of the code."""
    cells = rows(head)
    assert [row[0].strip("`") for row in cells] == list(fields)
    for (name, value, _), field in zip(cells, fields.values(), strict=True):
        match field.kind:
            case "seconds":
                expected = f"seconds from {field.lowest:.0f} to {field.highest:.0f}"
            case "whole" if field.highest > 10**9:
                expected = f"whole number from {field.lowest:.0f}"
            case "whole":
                expected = f"whole number from {field.lowest:.0f} to {field.highest:.0f}"
            case "text" if field.is_cut:
                expected = f"text, cut after {field.highest:.0f} bytes"
            case "text":
                expected = f"text of {field.lowest:.0f} to {field.highest:.0f} bytes"
            case "choice":
                expected = " or ".join(f"`{choice}`" for choice in field.choices)
            case "date":
                expected = "date up to 2100"
            case _:
                expected = "true or false"
        assert value == expected, name


def test_info_of_a_dispatch_is_described() -> None:
    [example] = [example for example in EXAMPLES if example[0].startswith("H01013")]
    names = [row[0].strip("`") for row in rows("| info |")]
    assert [*json.loads(example[-1]), "group"] == names


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
    others = {"too many queues", "dead-letter queue …", KEY_CONFLICT, reasons.UNIQUE_KEY_HELD}
    others.add(f"{reasons.BAD_OPTION}: …")
    assert told == refusals | shut | others


def test_reasons_of_ignored_commands_are_those_of_the_code() -> None:
    source = (ROOT / "phpmq_lite" / "broker" / "commands.py").read_text(encoding="utf-8")
    literals = set(re.findall(r'ignore\(core, "(\w+)"\)', source))
    assert quoted(rows("| reason | the command named |")) == literals | {reasons.INVALID}


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
    new = [(None, "publish", state) for state in ("ready", "scheduled", "blocked")]
    assert Counter(drawn) == Counter([*new, *told])


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
