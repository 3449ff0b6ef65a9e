"""Settings: their sources, and the messages for invalid values."""

from ipaddress import ip_network
from pathlib import Path

import pytest
from pydantic import SecretStr

from phpmq_lite import settings
from phpmq_lite.errors import SettingsError


def write_file(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(flags: dict[str, object] | None = None, config: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        settings.load(flags, config)
    return str(caught.value)


def test_settings_are_the_defaults_if_none_is_given() -> None:
    effective = settings.load()
    assert effective.settings == settings.Settings()
    assert set(effective.sources.values()) == {"default"}
    assert effective.sources.keys() == settings.SETTINGS.keys()
    assert effective.warnings == []


def test_every_default_is_within_its_bounds() -> None:
    flags = {name: settings.as_text(s.default) for name, s in settings.SETTINGS.items()}
    given = {name: value for name, value in flags.items() if value}
    assert settings.load(given).settings == settings.Settings()


def test_every_setting_has_a_help_text() -> None:
    assert [s.name for s in settings.SETTINGS.values() if not s.help] == []


def test_flag_with_the_value_none_is_ignored() -> None:
    assert settings.load({"limits.credit": None}).sources["limits.credit"] == "default"


def test_file_is_found_in_the_configuration_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_file(tmp_path, "data = '/srv/mq'\n")
    monkeypatch.setenv("CONFIGURATION_DIRECTORY", f"/nowhere:{tmp_path}")
    effective = settings.load()
    assert effective.settings.data == Path("/srv/mq")
    assert effective.sources["data"] == f"file {path}"


def test_system_file_is_read_when_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        settings.loading, "SYSTEM_FILE", write_file(tmp_path, "[log]\nlevel = 'error'\n")
    )
    assert settings.load().settings.log.level == "error"


def test_environment_may_set_lists_sizes_and_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHPMQ_TCP__LISTEN", "0.0.0.0:1, unix:/run/mq.sock")
    monkeypatch.setenv("PHPMQ_TCP__ALLOW", "10.0.0.0/8,fd00::/8")
    monkeypatch.setenv("PHPMQ_LIMITS__MAX_CONTENT", "2 MiB")
    monkeypatch.setenv("PHPMQ_TCP__OPEN", "yes")
    found = settings.load().settings
    assert found.tcp.listen == ["0.0.0.0:1", "unix:/run/mq.sock"]
    assert found.tcp.allow == [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]
    assert found.limits.max_content == 2 << 20
    assert found.tcp.open is True


def test_empty_variable_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHPMQ_TCP__TLS_CERT", "")
    assert settings.load().settings.tcp.tls_cert is None


def test_warning_suggests_the_variable_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PHPMQ_LIMITS__MAX_CONTNT", "PHPMQ_OUTPUT"):
        monkeypatch.setenv(name, "3")
    assert settings.load().warnings == [
        "PHPMQ_LIMITS__MAX_CONTNT in the environment is not a setting and is ignored. "
        "Did you mean PHPMQ_LIMITS__MAX_CONTENT?"
    ]


@pytest.mark.parametrize("name", ["PHPMQ_PORT", "PHPMQ_TCP", "PHPMQ_SERVICE_HOST"])
def test_unknown_variable_only_warns(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:9100")
    monkeypatch.setenv("PHPMQ_TCP__OPEN", "true")
    effective = settings.load()
    assert effective.settings.tcp.open is True
    assert effective.warnings == [f"{name} in the environment is not a setting and is ignored"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[limits]\nmax_contents = 1", "limits.max_contents in {} is not a setting. "
         "Did you mean limits.max_content?"),
        ("max_content = 1", "max_content in {} is not a setting. Did you mean limits.max_content?"),
        ("xyzzy = 1", "xyzzy in {} is not a setting"),
        ("tcp = 1", "tcp in {} is a section, not a setting. Use one of its settings, tcp.NAME."),
        ("[tcp.listen]\na = 1", "tcp.listen.a in {} is not a setting. Did you mean tcp.listen?"),
    ],
)  # fmt: skip
def test_unknown_key_in_the_file_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = write_file(tmp_path, text)
    assert refusal(config=path) == expected.format(path)


def test_file_may_have_empty_sections(tmp_path: Path) -> None:
    assert settings.load(config=write_file(tmp_path, "[tcp]\n")).settings == settings.Settings()


@pytest.mark.parametrize(
    "text", ["[tcp]\n[admin]\n[tcp]\n", "[tcp]\nlisten = []\n\n[tcp]\nlisten = []"]
)
def test_section_that_was_pasted_below_its_own_is_explained(tmp_path: Path, text: str) -> None:
    said = refusal(config=write_file(tmp_path, text))
    assert "('tcp',) twice (at line " in said
    assert said.endswith("). Keep the settings of a section below one heading")


def test_broken_or_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    path = write_file(tmp_path, "[tcp")
    assert refusal(config=path).startswith(f"{path} is not valid TOML: ")
    missing = tmp_path / "no.toml"
    assert refusal(config=missing).startswith(f"cannot read settings from {missing}: ")


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("limits.credit", "0", "at least 1, at most 1000000000"),
        ("limits.max_content", "1 GiB", "at least 1, at most 512 MiB"),
        ("history.days", 0, "above 0, at most 36500"),
        ("queues.on_expire", "forward:", "history, dead_letter or forward:QUEUE"),
        ("queues.on_expire", "history:x", "history, dead_letter or forward:QUEUE"),
        ("log.level", "loud", "'debug', 'info', 'warning' or 'error'"),
    ],
)
def test_invalid_value_is_refused_with_name_bound_and_source(
    name: str, value: object, bound: str
) -> None:
    expected = f"{name} is {value!r}: the value must be {bound} (from flag)"
    assert refusal({name: value}) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("limit.credit", 1, "limit.credit in a flag is not a setting. Did you mean limits.credit?"),
        ("tcp.tls_cert", "a.pem", "tcp: tls_cert and tls_key must be set together"),
        ("tcp.tls_client_ca", "a.pem", "tcp: tls_client_ca requires tls_cert and tls_key"),
    ],
)
def test_unknown_flag_or_incomplete_tls_is_refused(name: str, value: object, expected: str) -> None:
    assert refusal({name: value}) == expected


def test_all_invalid_values_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHPMQ_LIMITS__HELD", "many")
    text = refusal({"limits.credit": 0})
    assert "limits.credit is 0" in text
    assert "limits.held is 'many'" in text
    assert "(from environment PHPMQ_LIMITS__HELD)" in text


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("tcp.packet_header", "32", "32"),
        ("tcp.packet_header", 32, "32"),
        ("admin.base_path", "", ""),
        ("admin.base_path", "/", ""),
        ("admin.base_path", "mq", "/mq"),
        ("admin.base_path", "/a/b/", "/a/b"),
        ("queues.on_expire", "history", "history"),
        ("queues.on_expire", "dead_letter", "dead_letter"),
        ("queues.on_expire", "forward:orders.late", "forward:orders.late"),
    ],
)
def test_value_is_normalized(name: str, given: object, expected: str) -> None:
    assert settings.all_values(settings.load({name: given}).settings)[name] == expected


def test_values_are_written_in_an_accepted_form() -> None:
    values = settings.all_values(settings.Settings())
    shown = {name: settings.as_text(value) for name, value in values.items()}
    assert shown["limits.max_content"] == "8 MiB"
    assert shown["history.bytes"] == "2 GiB"
    assert shown["tcp.open"] == "false"
    assert shown["tcp.tls_cert"] == ""
    assert shown["tcp.listen"] == "127.0.0.1:9100"
    assert settings.as_json(values["limits.max_content"]) == 8 << 20
    assert settings.as_json(ip_network("10.0.0.0/8")) == "10.0.0.0/8"


def test_secret_is_masked() -> None:
    secret = SecretStr("canary")
    assert "canary" not in settings.as_text(secret)
    assert "canary" not in str(settings.as_json(secret))


def test_empty_path_in_a_file_is_no_path(tmp_path: Path) -> None:
    """TOML has no null; an empty path does not mean the folder ``.``."""
    path = write_file(tmp_path, '[backups]\nfolder = ""\n[tcp]\ntls_cert = ""\n')
    found = settings.load(config=path).settings
    assert (found.backups.folder, found.tcp.tls_cert) == (None, None)
