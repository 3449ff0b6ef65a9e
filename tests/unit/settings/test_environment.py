"""Values in files: named by variables, or as systemd credentials."""

from pathlib import Path

import pytest

from phpmq_lite import settings
from phpmq_lite.errors import SettingsError


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder of systemd credentials."""
    folder = tmp_path / "credentials"
    folder.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    return folder


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_variable_may_name_a_file_with_the_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PHPMQ_LIMITS__CREDIT_FILE", write(tmp_path / "credit", "7\n"))
    effective = settings.load()
    assert effective.settings.limits.credit == 7
    assert effective.sources["limits.credit"] == "environment PHPMQ_LIMITS__CREDIT_FILE"
    assert effective.warnings == []


def test_file_of_a_path_setting_is_the_value(
    monkeypatch: pytest.MonkeyPatch, credentials: Path
) -> None:
    key = write(credentials / "admin.tls_key", "-----BEGIN PRIVATE KEY-----\n")
    monkeypatch.setenv("PHPMQ_ADMIN__TLS_CERT_FILE", "/run/secrets/cert.pem")
    effective = settings.load()
    assert effective.settings.admin.tls_key == Path(key)
    assert effective.settings.admin.tls_cert == Path("/run/secrets/cert.pem")
    assert effective.sources["admin.tls_key"] == "credential admin.tls_key"


def test_setting_whose_name_ends_in_file_is_not_read_from_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PHPMQ_ADMIN__INITIAL_PASSWORD_FILE", "/run/secrets/first")
    found = settings.load().settings
    assert found.admin.initial_password_file == Path("/run/secrets/first")


def test_sources_have_an_order_of_precedence(
    monkeypatch: pytest.MonkeyPatch, credentials: Path, tmp_path: Path
) -> None:
    names = ("max_queues", "credit", "held", "window", "connections")
    (tmp_path / "config.toml").write_text("[limits]\n" + "".join(f"{n} = 1\n" for n in names))
    for name in names[:4]:
        write(credentials / f"limits.{name}", "2")
    for name in names[:3]:
        file = write(tmp_path / name, "3")
        monkeypatch.setenv(f"PHPMQ_LIMITS__{name.upper()}_FILE", file)
    for name in names[:2]:
        monkeypatch.setenv(f"PHPMQ_LIMITS__{name.upper()}", "4")
    effective = settings.load({"limits.max_queues": 5}, tmp_path / "config.toml")
    limits = effective.settings.limits
    assert [getattr(limits, name) for name in names] == [5, 4, 3, 2, 1]
    assert [effective.sources[f"limits.{name}"] for name in names] == [
        "flag",
        "environment PHPMQ_LIMITS__CREDIT",
        "environment PHPMQ_LIMITS__HELD_FILE",
        "credential limits.window",
        f"file {tmp_path / 'config.toml'}",
    ]
    assert effective.sources["limits.max_content"] == "default"


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "No such file or directory"), (b"\xff", "it is not UTF-8"), (b"\n", "is empty")],
)
def test_unreadable_file_is_refused_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "credit"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("PHPMQ_LIMITS__CREDIT_FILE", str(path))
    with pytest.raises(SettingsError, match=why) as caught:
        settings.load()
    assert str(caught.value).startswith(f"PHPMQ_LIMITS__CREDIT_FILE: {path} ")


def test_invalid_credential_is_refused_with_its_name(credentials: Path) -> None:
    write(credentials / "limits.credit", "many")
    with pytest.raises(SettingsError, match=r"from credential limits\.credit"):
        settings.load()


def test_missing_credentials_directory_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "nowhere"))
    with pytest.raises(SettingsError, match=r"CREDENTIALS_DIRECTORY .*nowhere: No such file"):
        settings.load()


def test_unknown_credential_only_warns(credentials: Path) -> None:
    write(credentials / "limits.credits", "7")
    effective = settings.load()
    assert effective.settings == settings.Settings()
    assert effective.warnings == ["credential limits.credits is not a setting and is ignored"]


def test_no_two_settings_share_a_variable() -> None:
    variables = [setting.environment for setting in settings.SETTINGS.values()]
    assert len(set(variables)) == len(variables)
    assert not {f"{variable}_FILE" for variable in variables} & set(variables)
