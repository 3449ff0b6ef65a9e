"""The text to type before an action on many messages."""

import pytest

from phpmq_lite.admin.actions.confirmation import check_typed_text, texts_to_type
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.settings import Settings
from phpmq_lite.settings.model import UiSettings


def settings(environment: str = "") -> Settings:
    return Settings(ui=UiSettings(environment=environment, confirm_count=100))


def test_few_messages_need_no_typing() -> None:
    assert texts_to_type(settings(), 100, ["orders"]) == ()


def test_many_messages_of_one_queue_take_its_name_or_the_count() -> None:
    assert texts_to_type(settings(), 101, ["orders"]) == ("orders", "101")


def test_many_messages_of_several_queues_take_the_count() -> None:
    assert texts_to_type(settings(), 12_408, ["a", "b"]) == ("12408",)


@pytest.mark.parametrize("name", ["production", " Production "])
def test_production_always_asks(name: str) -> None:
    assert texts_to_type(settings(name), 1, ["orders"]) == ("orders", "1")


@pytest.mark.parametrize("typed", [None, "", "order", "orders "])
def test_another_text_is_refused(typed: str | None) -> None:
    with pytest.raises(Problem) as caught:
        check_typed_text(("orders", "101"), typed)
    assert (caught.value.status, caught.value.field) == (422, "confirm")
    assert caught.value.bound == "orders or 101"


@pytest.mark.parametrize("typed", ["e\u202evil", "e\\u202evil", "5"])
def test_escapes_stand_for_what_nobody_can_type(typed: str) -> None:
    check_typed_text(("e\u202evil", "5"), typed)


def test_nothing_to_type_takes_anything() -> None:
    check_typed_text((), None)
