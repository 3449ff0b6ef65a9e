"""Which settings change while the broker runs."""

from phpmq_lite.settings import SETTINGS, Settings
from phpmq_lite.settings.reload import RELOADABLE, reloaded


def test_what_can_change_changes_and_the_rest_waits() -> None:
    now = Settings.model_validate({"log": {"level": "info"}})
    wanted = Settings.model_validate(
        {
            "log": {"level": "debug", "access": True},
            "history": {"days": 1},
            "tcp": {"listen": ["127.0.0.1:1"]},
        }
    )
    told = reloaded(now, wanted)
    assert set(told.changed) == {"log.level", "log.access", "history.days"}
    assert told.waiting == ("tcp.listen",)
    assert (told.settings.log.level, told.settings.log.access) == ("debug", True)
    assert told.settings.history.days == 1
    assert told.settings.tcp == now.tcp
    assert now.log.level == "info"


def test_nothing_changes_where_nothing_is_different() -> None:
    now = Settings()
    told = reloaded(now, Settings())
    assert (told.settings, told.changed, told.waiting) == (now, (), ())


def test_every_name_is_a_setting() -> None:
    assert set(SETTINGS) >= RELOADABLE
