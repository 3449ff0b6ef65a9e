"""The form of a queue's settings: what it shows, and what its fields mean."""

from collections.abc import Callable

import pytest

from phpmq_lite.admin.views.queue_settings_form import (
    BadFieldError,
    SettingField,
    changed_settings,
    form_fields_of,
)
from phpmq_lite.queue_settings import QueueSettings
from tests.unit.admin.cases import queue_status

DEFAULTS = {"max_deliveries": 20, "ack_timeout_s": 1_800}
OWN = QueueSettings(max_deliveries=5, on_expire="forward:late", pinned=True, note="a\nb")


def shown(settings: QueueSettings = OWN, name: str = "orders") -> dict[str, SettingField]:
    queue = queue_status(name, settings=settings)
    return {one.name: one for _, group in form_fields_of(queue, DEFAULTS) for one in group}


def typed(**changed: str) -> Callable[[str], str]:
    """Read the form as it is shown, with some fields changed."""
    values = {name: one.value for name, one in shown().items()} | {"forward_to": "late"} | changed
    return lambda name: values.get(name, "")


def test_form_shows_what_is_set_here_and_the_defaults() -> None:
    form = shown()
    assert [name for name, one in form.items() if one.is_own] == [
        "note", "on_expire", "max_deliveries", "pinned"
    ]  # fmt: skip
    assert (form["on_expire"].value, form["on_expire"].target) == ("forward", "late")
    assert form["ack_timeout_s"].default == "1800 (30 min)"
    assert form["ack_timeout_s"].shown == "30 min"


def test_default_follows_from_the_name() -> None:
    retry = shown(QueueSettings(on_expire="forward:mail"), "mail.retry")
    assert retry["on_expire"].default == "forward to mail"
    assert not retry["on_expire"].is_own


def test_form_sent_back_as_it_stands_changes_nothing() -> None:
    assert changed_settings(queue_status(settings=OWN), DEFAULTS, typed()) == {}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("max_deliveries", "", None),
        ("max_deliveries", "20", None),
        ("max_deliveries", "1,000", 1_000),
        ("on_expire", "dead_letter", "dead_letter"),
        ("on_expire", "history", None),
        ("pinned", "", None),
        ("note", "a\r\nb\r\nc", "a\nb\nc"),
        ("note", "  ", None),
    ],
)
def test_field_that_was_changed_is_the_only_change(
    field: str, value: str, expected: object
) -> None:
    made = changed_settings(queue_status(settings=OWN), DEFAULTS, typed(**{field: value}))
    assert made == {field: expected}


@pytest.mark.parametrize("value", ["many", "-1", "1.5", "²", "9" * 19])
def test_number_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(BadFieldError) as caught:
        changed_settings(queue_status(settings=OWN), DEFAULTS, typed(max_deliveries=value))
    assert caught.value.field == "max_deliveries"
