"""The concept pages agree with the broker: tests execute their tables and compare figures."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pytest

from phpmq_lite.broker import commands, transitions
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Connection
from phpmq_lite.broker.retries import RetryRequest
from phpmq_lite.model import Message
from phpmq_lite.queue_settings import LONGEST_TTL_S
from phpmq_lite.settings import SETTINGS, Settings, as_text
from phpmq_lite.storage.statements import load
from tests.docs import pages
from tests.support.core_rig import CoreRig

TTL_S: Final = 60
DELAY_S: Final = 5
DEFAULT_S: Final = 7  # of the queue that is forwarded or moved to
RETRY: Final = "docs/concepts/retry.md"
TTL: Final = "docs/concepts/ttl.md"


@dataclass
class Scene:
    """A consumer that holds two messages of ``orders`` with a TTL of a minute."""

    rig: CoreRig = field(default_factory=CoreRig)

    def __post_init__(self) -> None:
        self.consumer: Connection = self.rig.consumer()
        self.rig.publish(b"{}", queue="elsewhere")
        self.rig.configure("elsewhere", {"default_ttl_s": DEFAULT_S})
        batch = self.rig.publish(b"first", b"second", ttl_s=TTL_S)
        self.first, self.second = batch.dispatched
        self.deadline_ms = self.first.deadline_ms

    @property
    def core(self) -> Broker:
        return self.rig.core

    def at_end(self, message: Message) -> bool:
        return message.position > self.second.seq

    # -- events of the first message

    def requeue(self) -> None:
        self.rig.advance(1)
        message_id = self.first.message_id
        self.rig.run(
            lambda: commands.requeue(self.core, self.consumer, "orders", message_id, 2 * TTL_S)
        )

    def retry(self) -> None:
        self.rig.advance(1)
        message_id, request = self.first.message_id, RetryRequest.of({"delay_s": DELAY_S}, None)
        self.rig.run(
            lambda: commands.retry(self.core, self.consumer, "orders", message_id, request)
        )

    def disconnect(self) -> None:
        self.rig.run(lambda: commands.disconnect(self.core, self.consumer, None, None, "closed"))

    def time_out(self) -> None:
        self.rig.advance(Settings().queues.ack_timeout_s)
        self.rig.run()

    def consume_again(self) -> None:
        self.rig.run(lambda: commands.consume(self.core, self.consumer, "orders", 0))

    def release(self) -> None:
        self.rig.run(lambda: transitions.release(self.core, self.first, ""))

    def requeue_by_operator(self) -> None:
        self.rig.run(lambda: transitions.requeue_uncharged(self.core, self.first, None, ""))

    def move(self) -> None:
        target = self.rig.queue("elsewhere")
        self.consume_again()
        self.rig.run(lambda: transitions.move(self.core, self.first, target, None))

    def forward(self) -> None:
        target = self.rig.queue("elsewhere")
        self.consume_again()
        self.rig.run(lambda: transitions.forward(self.core, self.first, target, None))


def place_after(happens: Callable[[Scene], None]) -> tuple[str, str]:
    """Return the new place of the first message, and which messages were charged a failure."""
    scene = Scene()
    happens(scene)
    charged = [message.charged for message in (scene.first, scene.second)]
    place = "end" if scene.at_end(scene.first) else "old place"
    return place, {(0, 0): "no", (1, 0): "first", (1, 1): "yes"}[charged[0], charged[1]]


@pytest.mark.parametrize(
    ("row", "happens", "expected"),
    [
        ("its consumer requeues it (005)", [Scene.requeue], "first"),
        ("its consumer retries it (011)", [Scene.retry], "no"),
        ("the connection ends", [Scene.disconnect], "first"),
        (
            "its consumer does not settle it within `ack_timeout_s` (30 minutes)",
            [Scene.time_out],
            "yes",
        ),
        ("its consumer changes its credit (another 002), or stops", [Scene.consume_again], "no"),
        ("an operator releases or requeues it", [Scene.release, Scene.requeue_by_operator], "no"),
    ],
)
def test_message_returns_as_the_page_says(
    row: str, happens: list[Callable[[Scene], None]], expected: str
) -> None:
    told = {cells[0]: cells[1:] for cells in pages.rows(RETRY, "| what happened |")}
    place, failure = told[row]
    assert failure.startswith("no") is (expected == "no")
    for each in happens:
        where, charged = place_after(each)
        assert where in place
        assert charged == expected


def test_start_returns_messages_without_a_charge() -> None:
    """The row of the killed broker: the start changes only the state."""
    (changed,) = re.findall(
        r"UPDATE message SET (.*)", load("batch", "sqlite")["release_dispatched"]
    )
    assert changed == "state = 0"
    told = {cells[0]: cells[1:] for cells in pages.rows(RETRY, "| what happened |")}
    assert told["the broker is killed or restarted"] == ["to its old place", "no"]


@pytest.mark.parametrize(
    ("row", "happens", "left_s"),
    [
        ("returned, released, moved", Scene.consume_again, TTL_S),
        ("returned, released, moved", Scene.release, TTL_S),
        ("returned, released, moved", Scene.move, TTL_S),
        ("requeued by its consumer (005)", Scene.requeue, 2 * TTL_S + 1),
        ("[retried](retry.md#a-workers-retry)", Scene.retry, TTL_S + DELAY_S),
        ("requeued by an operator", Scene.requeue_by_operator, TTL_S),
        ("forwarded", Scene.forward, DEFAULT_S),
    ],
)
def test_deadline_becomes_what_the_page_says(
    row: str, happens: Callable[[Scene], None], left_s: int
) -> None:
    told = {cells[0]: cells[1] for cells in pages.rows(TTL, "| a message is |")}
    scene = Scene()
    happens(scene)
    assert scene.deadline_ms is not None
    published_ms = scene.deadline_ms - TTL_S * 1_000
    assert scene.first.deadline_ms == published_ms + left_s * 1_000
    assert told[row].startswith("stays") is (left_s == TTL_S)


def test_figures_of_the_pages_are_the_defaults() -> None:
    settings = Settings()
    queues, history, storage = settings.queues, settings.history, settings.storage
    for page, figures in {
        RETRY: [f"**`max_deliveries`** ({queues.max_deliveries})",
                f"`ack_timeout_s` ({queues.ack_timeout_s // 60} minutes)"],
        TTL: [f"| `{queues.on_expire}` (default) |", f"{LONGEST_TTL_S // 365 // 86_400} years"],
        "docs/concepts/history.md": [
            f"| `history.days` | {history.days:g} |", f"| `history.rows` | {history.rows:,} |",
            f"| `history.bytes` | {history.bytes >> 30} GiB |",
            f"| `history.deleted_share` | {history.deleted_share} |",
            f"| `history.clients` | {history.clients:,} |",
        ],
        "docs/concepts/durability.md": [
            f"within {settings.receipts.window_s // 60} minutes (`receipts.window_s`)",
            f"{settings.receipts.limit:,} keys (`receipts.limit`)",
            f"`storage.free_bytes` ({storage.free_bytes >> 20} MiB)",
            f"({storage.max_bytes >> 30} GiB) in use",
            f"A file of {storage.ballast_bytes >> 20} MiB",
        ],
    }.items():  # fmt: skip
        text = " ".join(pages.text_of(page).split())
        assert [figure for figure in figures if figure not in text] == [], page


DESCRIBED: Final = {  # page -> its settings
    TTL: {"queues.on_expire", "queues.default_ttl_s"},
    "docs/concepts/delay.md": {"queues.default_ttl_s"},
    "docs/concepts/priority.md": set(),
    "docs/concepts/limits.md": {"queues.max_rate", "queues.max_burst", "queues.max_in_flight"},
    RETRY: {"queues.max_deliveries", "queues.ack_timeout_s", "limits.max_hold_s"},
    "docs/concepts/dead-letters.md": {
        "queues.max_deliveries", "queues.on_expire", "queues.payload_policy",
    },
    "docs/concepts/history.md": {name for name in SETTINGS if name.startswith("history.")},
    "docs/concepts/durability.md": {"receipts.window_s", "receipts.limit", "storage.free_bytes"},
    "docs/concepts/schedules.md": set(),
}  # fmt: skip


def test_every_concept_page_names_its_settings_with_their_defaults() -> None:
    folder = pages.ROOT / "docs" / "concepts"
    assert set(DESCRIBED) == {f"docs/concepts/{path.name}" for path in folder.glob("*.md")}
    for page, names in DESCRIBED.items():
        text = (pages.ROOT / page).read_text(encoding="utf-8")
        rows = dict(re.findall(r"^\| `(\w+\.\w+)` \| ([^|]+) \|", text, re.MULTILINE))
        assert set(rows) == names, page
        for name, shown in rows.items():
            assert shown.replace(",", "") == as_text(SETTINGS[name].default), (page, name)
        assert not names or "](../reference/settings.md)" in text
        assert not names or "`config.toml`" in text
