"""The reference page of the settings is what the model says."""

from pathlib import Path

from phpmq_lite.cli.config import reference_page

PAGE = Path(__file__).parent.parent.parent / "docs" / "settings.md"


def test_page_is_what_the_command_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), (
        "run: phpmq-lite config reference > docs/settings.md"
    )
