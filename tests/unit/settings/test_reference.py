"""The generated settings file, which sets nothing until it is edited, and what can be reloaded."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ByteSize, SecretStr

from phpmq_lite import settings
from phpmq_lite.settings.model import Section
from phpmq_lite.settings.reference import as_toml, config_file, reload_settings

_SETTING = re.compile(r"#(\w+ = )")


def load(folder: Path, text: str) -> settings.EffectiveSettings:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return settings.load(config=path)


def test_generated_file_sets_nothing(tmp_path: Path) -> None:
    effective = load(tmp_path, config_file())
    assert set(effective.sources.values()) == {"default"}


def test_file_with_every_line_enabled_equals_the_defaults(tmp_path: Path) -> None:
    effective = load(tmp_path, _SETTING.sub(r"\1", config_file()))
    assert set(effective.sources.values()) == {f"file {tmp_path / 'config.toml'}"}
    assert effective.settings == settings.Settings()


def test_any_line_may_be_enabled_alone(tmp_path: Path) -> None:
    text = config_file()
    used = []
    for line in _SETTING.finditer(text):
        one = text[: line.start()] + text[line.start() + 1 :]
        effective = load(tmp_path, one)
        used += [name for name, source in effective.sources.items() if source != "default"]
        assert effective.settings == settings.Settings()
    assert used == list(settings.SETTINGS)


def test_file_has_help_and_bounds_of_every_setting() -> None:
    text = " ".join(config_file().replace("\n# ", " ").split())
    assert [s.name for s in settings.SETTINGS.values() if s.help not in text] == []
    assert [s.name for s in settings.SETTINGS.values() if s.bounds not in text] == []
    assert [s for s in settings.SECTIONS if settings.section_help(s) == ""] == []


def test_given_values_are_set(tmp_path: Path) -> None:
    text = config_file({"data": Path('/srv/a "b"'), "admin.listen": ["none"]})
    effective = load(tmp_path, text)
    assert effective.settings.data == Path('/srv/a "b"')
    assert effective.settings.admin.listen == ["none"]
    assert {name for name, source in effective.sources.items() if source != "default"} == {
        "data",
        "admin.listen",
    }


def test_no_line_is_wide() -> None:
    assert [line for line in config_file().splitlines() if len(line) > 100] == []


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_restored(text: str) -> None:
    assert tomllib.loads(f"a = {as_toml(text)}") == {"a": text}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "true"),
        (7, "7"),
        (0.5, "0.5"),
        (ByteSize(8 << 20), '"8 MiB"'),
        (None, '""'),
        (["a", "b"], '["a", "b"]'),
        ([], "[]"),
    ],
)
def test_value_is_written_as_toml(value: object, expected: str) -> None:
    assert as_toml(value) == expected


def test_no_setting_is_a_secret() -> None:
    """Otherwise the file that ``init`` writes would have to be private."""
    kinds = [
        leaf.annotation
        for section in settings.Settings.model_fields.values()
        if isinstance(section.annotation, type) and issubclass(section.annotation, Section)
        for leaf in section.annotation.model_fields.values()
    ]
    assert [kind for kind in kinds if "Secret" in str(kind) or kind is SecretStr] == []


def test_reloadable_settings_change_and_others_are_pending() -> None:
    now = settings.Settings.model_validate({"log": {"level": "info"}})
    wanted = settings.Settings.model_validate(
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
    now = settings.Settings()
    result = reload_settings(now, settings.Settings())
    assert (result.settings, result.changed, result.pending) == (now, (), ())
