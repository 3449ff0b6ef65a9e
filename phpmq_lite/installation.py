"""Details of this installation: its kind of build, its folders, and how to reinstall it."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from importlib.metadata import Distribution

NAME: Final = "phpmq-lite"
_EXTRA: Final = re.compile(r"""extra == ["']([\w-]+)["']""")
_OWN: Final = re.compile(rf"{NAME}\[([\w,-]+)\]")  # matches this package's extras in a requirement


_SAFE_SQLITE: Final = (3, 51, 3)  # in older versions, two writers can damage the WAL


def build_kind() -> str:
    """Return ``compiled`` or ``pure Python``."""
    spec = find_spec("phpmq_lite.model")  # not imported; an extension module if compiled
    is_source = spec is None or (spec.origin or "").endswith(".py")
    return "pure Python" if is_source else "compiled"


def commit() -> str:
    """Return the commit that was built or is checked out; empty for a release, or if unknown."""
    import subprocess  # slow, and rarely needed

    if (commit_file := _PACKAGE / "_data" / "commit").is_file():
        return commit_file.read_text(encoding="utf-8").strip()
    command = ["git", "-C", str(_PACKAGE.parent), "describe", "--always", "--dirty", "--exclude=*"]
    with suppress(OSError):
        if (_PACKAGE.parent / ".git").exists():
            return subprocess.run(
                command, capture_output=True, text=True, check=False
            ).stdout.strip()
    return ""


def sqlite_note(version: tuple[int, ...]) -> str:
    """Return a note if the SQLite version is old, otherwise an empty string."""
    if version >= _SAFE_SQLITE:
        return ""
    return "older than 3.51.3, which is safe here because only one connection writes"


def install_command(*extras: str, flags: str = "") -> str:
    """Return a command that reinstalls this package with ``extras`` into the running Python.

    The command names the checkout or wheel that the package was installed from.  If that is unknown
    or gone, it names the packages that the extras require, because this package is in no index.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # slow, and rarely needed

    try:
        installed = distribution(NAME)
    except PackageNotFoundError:
        installed = None
    source, options = _source(installed)
    pip = " ".join(filter(None, (shlex.quote(sys.executable), "-m pip install", flags, options)))
    if source is not None:
        suffix = f"[{','.join(extras)}]" if extras else ""
        return f"{pip} {shlex.quote(f'{source}{suffix}')}"
    requirements = sorted({name for extra in extras for name in _requirements(installed, extra)})
    if requirements:
        return f"{pip} {' '.join(map(shlex.quote, requirements))}"
    return f"{pip} phpmq_lite-VERSION-py3-none-any.whl"


def _source(installed: "Distribution | None") -> tuple[Path | None, str]:
    """Return a pair: the checkout or wheel (None if it is gone), and pip options to install it."""
    from urllib.request import url2pathname

    if installed is None:  # the program runs from a checkout that is not installed
        checkout = Path(__file__).resolve().parent.parent
        return (checkout, "-e") if (checkout / "pyproject.toml").is_file() else (None, "")
    try:
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        return None, ""
    url = urlsplit(origin.get("url", ""))
    path = Path(url2pathname(url.path))
    if url.scheme != "file" or not path.exists():
        return None, ""
    return path, "-e" if origin.get("dir_info", {}).get("editable") else ""


def _requirements(installed: "Distribution | None", extra: str) -> Iterator[str]:
    for text in (installed.requires if installed is not None else None) or ():
        requirement, _, marker = text.partition(";")
        match = _EXTRA.search(marker)
        if match is None or match[1] != extra:
            continue
        inner = _OWN.match(requirement.strip())
        if inner is None:
            yield requirement.strip()
            continue
        for inner_extra in inner[1].split(","):
            yield from _requirements(installed, inner_extra)


_PACKAGE = Path(__file__).parent


def _find(name: str) -> Path:
    bundled = _PACKAGE / "_data" / name
    return bundled if bundled.is_dir() else _PACKAGE.parent / name


def migrations_folder() -> Path:
    """Return the migrations folder, which contains numbered ``.sql`` files."""
    return _find("migrations")


def docs_folder() -> Path:
    """Return the documentation folder, which contains Markdown pages and images."""
    return _find("docs")


def templates_folder() -> Path:
    """Return the folder that contains the Jinja templates and ``static/``."""
    return _find("templates")
