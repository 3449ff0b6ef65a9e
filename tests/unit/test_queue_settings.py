"""Names and settings of queues, and the form that edits the settings."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from phpmq_lite.admin.queues.settings import (
    SettingField,
    changed_settings,
    default_settings,
    form_fields_of,
)
from phpmq_lite.errors import BadSettingError, RefusedError
from phpmq_lite.queue_settings import (
    DEFINITIONS,
    LONGEST_NAME,
    QueueSettings,
    check_name,
    check_settings,
)
from tests.unit.admin.cases import queue_status

DEFAULTS = {"max_deliveries": 20, "ack_timeout_s": 1_800}
OWN = QueueSettings(max_deliveries=5, on_expire="forward:late", pinned=True, note="a\nb")


def shown(settings: QueueSettings = OWN, name: str = "orders") -> dict[str, SettingField]:
    queue = queue_status(name, settings=settings)
    groups = form_fields_of(queue, default_settings(queue, DEFAULTS))
    return {field.setting.name: field for _, group in groups for field in group}


def typed(**changed: str) -> Callable[[str], str]:
    """Return a reader of the form as shown, with some fields changed."""
    values = {name: one.value for name, one in shown().items()} | {"forward_to": "late"} | changed
    return lambda name: values.get(name, "")


def changed(read: Callable[[str], str]) -> dict[str, Any]:
    queue = queue_status(settings=OWN)
    return changed_settings(queue, default_settings(queue, DEFAULTS), read)


def test_form_shows_own_settings_and_defaults() -> None:
    form = shown()
    assert [name for name, one in form.items() if one.is_own] == [
        "note", "on_expire", "max_deliveries", "pinned"
    ]  # fmt: skip
    assert (form["on_expire"].value, form["on_expire"].target) == ("forward", "late")
    assert form["ack_timeout_s"].default == "1800 (30 min)"
    assert form["ack_timeout_s"].amount == "30 min"


def test_fields_accept_the_longest_names() -> None:
    form = shown()
    lengths = {name: form[name].setting.max_length for name in ("on_expire", "dead_letter_queue")}
    assert lengths == dict.fromkeys(lengths, LONGEST_NAME)


def test_default_follows_from_the_name() -> None:
    retry = shown(QueueSettings(on_expire="forward:mail"), "mail.retry")
    assert retry["on_expire"].default == "forward to mail"
    assert not retry["on_expire"].is_own


def test_unchanged_form_changes_nothing() -> None:
    assert changed(typed()) == {}


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
def test_changed_field_is_the_only_change(field: str, value: str, expected: object) -> None:
    made = changed(typed(**{field: value}))
    assert made == {field: expected}


@pytest.mark.parametrize("value", ["many", "-1", "1.5", "²", "9" * 19])
def test_invalid_number_is_refused(value: str) -> None:
    with pytest.raises(BadSettingError) as caught:
        changed(typed(max_deliveries=value))
    assert caught.value.setting == "max_deliveries"


def test_every_setting_has_its_check() -> None:
    assert {field.name for field in fields(QueueSettings)} == DEFINITIONS.keys()
    defaults = QueueSettings()
    check_settings("orders", {name: getattr(defaults, name) for name in DEFINITIONS})
    check_settings("orders", dict.fromkeys(DEFINITIONS))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_deliveries", 10**12),
        ("default_ttl_s", 100 * 365 * 86_400),
        ("max_bytes", 1 << 50),
        ("on_expire", "dead_letter"),
        ("on_expire", "forward:orders.retry/é"),
        ("payload_policy", "opaque"),
        ("pinned", True),
        ("note", "x" * 2_000),
        ("link", "https://wiki/orders"),
        ("link", ""),
    ],
)
def test_valid_setting_is_accepted(name: str, value: Any) -> None:
    check_settings("orders", {name: value})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("max_deliveries", -1, "from 0 to 1000000000000"),
        ("max_messages", 10**12 + 1, "from 0 to"),
        ("max_messages", True, "a number"),
        ("ack_timeout_s", 1.5, "a number"),
        ("ack_timeout_s", "5", "a number"),
        ("default_ttl_s", 100 * 365 * 86_400 + 1, "3153600000"),
        ("pinned", 1, "true or false"),
        ("payload_policy", "strict", "opaque, observe, envelope"),
        ("payload_policy", ["opaque"], "opaque, observe, envelope"),
        ("on_expire", "forward", "forward:QUEUE"),
        ("on_expire", "", "forward:QUEUE"),
        ("on_expire", 5, "must be one of"),
        ("on_expire", "forward:", "0 bytes"),
        ("on_expire", "forward:a\0b", "control character"),
        ("on_expire", "forward:" + "x" * 256, "256 bytes"),
        ("on_expire", "forward:\ud800", "UTF-8"),
        ("on_expire", "forward:" + "x" * 250 + ".retry", "256 bytes long; it must be 1 to 255"),
        ("dead_letter_queue", "x" * 256, "256 bytes long; it must be 1 to 255"),
        ("dead_letter_queue", "x" * 250 + ".retry", "256 bytes long; it must be 1 to 255"),
        ("dead_letter_queue", "x" * 252 + ".dlq.dlq", "260 bytes long; it must be 1 to 259"),
        ("on_expire", "forward:orders", "the queue itself"),
        ("note", "x" * 2_001, "the limit is 2000"),
        ("note", "\ud800", "UTF-8"),
        ("owner", None.__class__, "text"),
        ("link", "javascript:alert(1)", "https://"),
    ],
)
def test_invalid_setting_is_refused(name: str, value: Any, text: str) -> None:
    with pytest.raises(RefusedError, match=text) as caught:
        check_settings("orders", {name: value})
    assert caught.value.code == "bad_setting"
    assert str(caught.value).startswith(f"{name} ")


@pytest.mark.parametrize(
    "name", ["a", "é" * 127, "a\nb", "..", "a/b", "~x", " ", "x" * 255, "x" * 255 + ".dlq"]
)
def test_valid_name_is_accepted(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "é" * 128, "a\0", "a\tb", "a\x7f", "a\x85", "\udc80"])
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(RefusedError) as caught:
        check_name(name)
    assert caught.value.code == "bad_name"
