"""The text to type before an action on many messages."""

import pytest

from phpmq_lite.admin.http.confirmation import check_typed_text, texts_to_type
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.settings import Settings
from phpmq_lite.settings.model import UiSettings


@pytest.mark.parametrize(
    ("environment", "count", "queues", "texts"),
    [
        ("", 100, ["orders"], ()),
        ("", 101, ["orders"], ("orders", "101")),
        ("", 12_408, ["a", "b"], ("12408",)),
        ("production", 1, ["orders"], ("orders", "1")),
        (" Production ", 1, ["orders"], ("orders", "1")),
    ],
)
def test_many_messages_or_production_need_a_confirmation(
    environment: str, count: int, queues: list[str], texts: tuple[str, ...]
) -> None:
    settings = Settings(ui=UiSettings(environment=environment, confirm_count=100))
    assert texts_to_type(settings, count, queues) == texts


@pytest.mark.parametrize("typed", [None, "", "order", "orders "])
def test_another_text_is_refused(typed: str | None) -> None:
    with pytest.raises(Problem) as caught:
        check_typed_text(("orders", "101"), typed)
    assert (caught.value.status, caught.value.field) == (422, "confirm")
    assert caught.value.says_unchanged
    assert caught.value.bound == "orders or 101"


@pytest.mark.parametrize("typed", ["e\u202evil", "e\\u202evil", "5"])
def test_escapes_stand_for_characters_that_cannot_be_typed(typed: str) -> None:
    check_typed_text(("e\u202evil", "5"), typed)


def test_any_text_confirms_when_none_is_needed() -> None:
    check_typed_text((), None)
