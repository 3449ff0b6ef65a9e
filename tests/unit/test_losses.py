"""Counts of dead letters by reason and URN: limited by pairs and size, with exact sums."""

import random

import pytest

from phpmq_lite.losses import (
    DEAD_LETTER,
    EXPIRED_DISPATCHED,
    EXPIRED_NEVER,
    OTHERS,
    PACKED_CHARACTERS,
    PAIRS_MAX,
    Losses,
    add_losses,
    count_loss,
    pack_losses,
    unpack_losses,
)

REST = (DEAD_LETTER, OTHERS, OTHERS)


def pairs(count: int, length: int = 1) -> Losses:
    return {(DEAD_LETTER, "failed", f"urn:{n}" + "x" * length): n + 1 for n in range(count)}


def test_pairs_beyond_the_limit_are_counted_as_others() -> None:
    losses: Losses = {}
    for number in range(PAIRS_MAX + 7):
        count_loss(losses, DEAD_LETTER, "failed", f"urn:{number}")
    count_loss(losses, DEAD_LETTER, "failed", "urn:0")  # a known one keeps its name
    assert losses[REST] == 7
    assert losses[DEAD_LETTER, "failed", "urn:0"] == 2
    assert len(losses) == PAIRS_MAX + 1


def test_expired_messages_are_counted_beside_the_pairs() -> None:
    losses = pairs(PAIRS_MAX)
    for kind in (EXPIRED_NEVER, EXPIRED_DISPATCHED, EXPIRED_NEVER):
        count_loss(losses, kind)
    assert losses[EXPIRED_NEVER, None, None] == 2
    assert unpack_losses(pack_losses(losses)) == losses


def test_sum_keeps_the_most_frequent_pairs_and_every_count() -> None:
    first, second = pairs(PAIRS_MAX), {(DEAD_LETTER, None, None): 1_000, REST: 4}
    total = add_losses(first, second)
    assert total is not None
    assert sum(total.values()) == sum(first.values()) + 1_004
    assert total[DEAD_LETTER, None, None] == 1_000
    assert total[REST] == 5  # with the rarest pair
    assert len(total) == PAIRS_MAX + 1
    assert first == pairs(PAIRS_MAX)  # unchanged


@pytest.mark.parametrize("length", [1, 100, 500, 20_000])
def test_row_is_short_whatever_the_names(length: int) -> None:
    losses = pairs(PAIRS_MAX, length)
    packed = pack_losses(losses)
    assert packed is not None
    assert len(packed) <= PACKED_CHARACTERS
    assert sum(unpack_losses(packed).values()) == sum(losses.values())


def test_nothing_is_no_row() -> None:
    assert (pack_losses(None), pack_losses({}), unpack_losses(None)) == (None, None, {})
    assert add_losses(None, None) is None


@pytest.mark.parametrize("seed", range(5))
def test_sums_are_exact_in_any_order(seed: int) -> None:
    made = random.Random(seed)
    total: Losses | None = None
    counted = 0
    for _ in range(30):
        part: Losses = {}
        for _ in range(made.randrange(200)):
            if made.random() < 0.1:
                count_loss(part, EXPIRED_NEVER)
            else:
                count_loss(part, DEAD_LETTER, made.choice((None, "a")), f"{made.randrange(120)}")
            counted += 1
        total = add_losses(total, unpack_losses(pack_losses(part)))
    assert total is not None
    assert sum(total.values()) == counted
