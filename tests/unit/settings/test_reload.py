"""Settings that a running broker can reload."""

from phpmq_lite.settings import Settings
from phpmq_lite.settings.reload import reload_settings


def test_reloadable_settings_change_and_others_are_pending() -> None:
    now = Settings.model_validate({"log": {"level": "info"}})
    wanted = Settings.model_validate(
        {
            "log": {"level": "debug", "access": True},
            "history": {"days": 1},
            "tcp": {"listen": ["127.0.0.1:1"]},
        }
    )
    result = reload_settings(now, wanted)
    assert set(result.changed) == {"log.level", "log.access", "history.days"}
    assert result.pending == ("tcp.listen",)
    assert (result.settings.log.level, result.settings.log.access) == ("debug", True)
    assert result.settings.history.days == 1
    assert result.settings.tcp == now.tcp
    assert now.log.level == "info"


def test_equal_settings_change_nothing() -> None:
    now = Settings()
    result = reload_settings(now, Settings())
    assert (result.settings, result.changed, result.pending) == (now, (), ())
