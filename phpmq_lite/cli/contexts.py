"""Contexts: brokers by name, in a file of this user; one of them may be the one in use."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from phpmq_lite.cli.main import CommandError


@dataclass(slots=True, frozen=True)
class Context:
    """Where a broker is: its data folder, or its URL with the file of an API token.

    ``connect`` is the URL of its PHPMQ listener, where ``publish``, ``consume`` and their like are
    not to learn it from the admin.
    """

    name: str
    data: Path | None = None
    url: str | None = None
    token_file: Path | None = None
    connect: str | None = None


def file() -> Path:
    """Say where contexts are kept."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "phpmq-lite" / "contexts.json"


def load() -> tuple[str | None, dict[str, Context]]:
    """Give the name of the context in use, and all of them by name.

    Raises:
        CommandError: the file is not what this program writes.
    """
    try:
        document = json.loads(file().read_text(encoding="utf-8"))
        found = {
            name: Context(
                name,
                Path(one["data"]) if one.get("data") else None,
                one.get("url"),
                Path(one["token_file"]) if one.get("token_file") else None,
                one.get("connect"),
            )
            for name, one in document["contexts"].items()
        }
        return document.get("current"), found
    except FileNotFoundError:
        return None, {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandError(f"{file()} cannot be read: {error}") from None


def save(current: str | None, contexts: dict[str, Context]) -> None:
    """Write all contexts; the old file stays whole until the new one is."""
    path = file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    rows = {name: _row(context) for name, context in sorted(contexts.items())}
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(json.dumps({"current": current, "contexts": rows}, indent=2), encoding="utf-8")
    new.replace(path)


def current() -> Context | None:
    """Give the context in use, None where there is none."""
    name, contexts = load()
    return contexts.get(name) if name else None


def _row(context: Context) -> dict[str, str]:
    return {key: str(value) for key, value in asdict(context).items() if value and key != "name"}
