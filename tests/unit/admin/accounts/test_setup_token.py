"""The setup token before, during and after its life."""

from pathlib import Path

from phpmq_lite.admin.accounts.setup_token import SetupToken


def test_token_is_right_from_its_creation_until_it_is_spent(tmp_path: Path) -> None:
    setup = SetupToken(tmp_path)
    assert not setup.is_right("")
    token = setup.make()
    assert setup.path.read_text(encoding="utf-8") == f"{token}\n"
    assert setup.path.stat().st_mode & 0o777 == 0o600
    assert setup.is_right(f" {token}\n")
    assert not setup.is_right(token[:-1])
    assert not setup.is_right("\ud800")
    assert setup.make() != token
    assert not setup.is_right(token)
    setup.spend()
    assert not setup.is_right("")
    assert not setup.path.exists()
