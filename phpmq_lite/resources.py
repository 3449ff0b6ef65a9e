"""Where migrations and templates lie: at the top of a checkout, inside the package in a wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def _find(name: str) -> Path:
    inside = _PACKAGE / "_data" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def migrations_folder() -> Path:
    """Return the folder of the numbered ``.sql`` files."""
    return _find("migrations")


def templates_folder() -> Path:
    """Return the folder of the jinja2 pages; ``static/`` is in it."""
    return _find("templates")
