"""The ``context`` command group, and the file in which it stores a user's named brokers."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from phpmq_lite.cli.errors import NOT_FOUND, CommandError
from phpmq_lite.cli.output import SPARE, columns, output_option, print_message, write_rows
from phpmq_lite.cli.parameters import (
    EXISTING_FILE,
    FOLDER,
    broker_url,
    ca_option,
    cert_options,
    is_phpmq_url,
    option,
    repeatable,
)
from phpmq_lite.text_files import TextFileError, read_text


@dataclass(slots=True, frozen=True)
class BrokerContext:
    """The way to reach a broker: its data folder, or its URL, an API token file and TLS files.

    ``connect`` is the URL of the PHPMQ listener; if it is None, the admin is asked for the URL.
    """

    name: str
    data: Path | None = None
    url: str | None = None
    token_file: Path | None = None
    connect: str | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None


_TYPES: Final[dict[str, Any]] = {"url": str, "connect": str} | dict.fromkeys(
    ("data", "token_file", "tls_ca", "tls_cert", "tls_key"), Path
)


def contexts_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "phpmq-lite" / "contexts.json"


def load_contexts() -> tuple[str | None, dict[str, BrokerContext]]:
    """Return the name of the current context, and all contexts keyed by name."""
    path = contexts_file()
    try:
        document = json.loads(read_text(path))
        contexts = {
            name: BrokerContext(name, **{key: _TYPES[key](row[key]) for key in _TYPES.keys() & row})
            for name, row in document["contexts"].items()
        }
        return document.get("current"), contexts
    except (FileNotFoundError, NotADirectoryError):
        return None, {}
    except TextFileError as error:
        raise CommandError(f"the contexts file {path} {error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandError(f"cannot read the contexts file {path}: {error}") from None


def save_contexts(current: str | None, contexts: dict[str, BrokerContext]) -> None:
    """Atomically replace the file that contains the contexts."""
    path = contexts_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    rows = {
        name: {key: str(value) for key, value in asdict(broker).items() if value and key != "name"}
        for name, broker in sorted(contexts.items())
    }
    text = json.dumps({"current": current, "contexts": rows}, indent=2)
    temporary = path.with_suffix(".new")
    temporary.touch(mode=0o600)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def current_context() -> BrokerContext | None:
    """Return the current context, or None if none is selected or, with a warning, readable."""
    try:
        name, contexts = load_contexts()
    except CommandError as error:
        print_message(f"warning: {error}; no context is used")
        return None
    return contexts.get(name) if name else None


COLUMNS: Final = (
    *columns("name", "in_use", "where"),
    *columns(connect="PHPMQ", fit=SPARE),
    *columns("token_file", "tls_ca", fit=SPARE),
)


@click.group()
def context() -> None:
    """Name brokers and choose which one commands use.

    publish, consume, worker and outbox relay ask the admin for the PHPMQ listener; if clients reach
    it at another address, add a second --url phpmq://HOST:PORT. A flag that names a broker (--url,
    --data, --config) overrides the current context.
    """


@context.command()
@click.argument("name")
@repeatable(
    ("--url", "urls"),
    "Admin address, http://HOST:9101, or a PHPMQ listener, phpmq://HOST:9100. Repeatable.",
    broker_url,
    metavar="URL",
)
@option("--data", "The broker's data folder.", FOLDER)
@option("--token-file", "File that contains an API token.", EXISTING_FILE)
@ca_option
@cert_options
def create(name: str, urls: tuple[str, ...], data: Path | None, **files: Path | None) -> None:
    """Save a broker under a name. The first context becomes the current one."""
    phpmq = [
        f"unix:{Path(url[5:]).absolute()}" if url.startswith("unix:") else url
        for url in urls
        if is_phpmq_url(url)
    ]
    admin = [url for url in urls if not is_phpmq_url(url)]
    if not (urls or data) or (admin and data):
        raise click.UsageError("specify either --url or --data")
    if len(phpmq) > 1 or len(admin) > 1:
        raise click.UsageError("use at most one --url for the admin and one for the PHPMQ listener")
    in_use, contexts = load_contexts()
    contexts[name] = BrokerContext(
        name,
        data.absolute() if data else None,
        admin[0] if admin else None,
        connect=phpmq[0] if phpmq else None,
        **{key: path.absolute() for key, path in files.items() if path},
    )
    save_contexts(in_use or name, contexts)
    print_message(f"saved context {name}" + ("" if in_use else ", which is now in use"))


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Choose the broker that commands use. Pass - to use no broker."""
    _, contexts = load_contexts()
    if name != "-" and name not in contexts:
        raise CommandError(f"there is no context {name!r}", NOT_FOUND)
    save_contexts(None if name == "-" else name, contexts)
    print_message("no context is in use" if name == "-" else f"context {name} is in use")


@context.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete a context without changing the broker."""
    in_use, contexts = load_contexts()
    if contexts.pop(name, None) is None:
        raise CommandError(f"there is no context {name!r}", NOT_FOUND)
    save_contexts(None if in_use == name else in_use, contexts)
    print_message(f"deleted context {name}")


@context.command("list")
@output_option
def list_(output: str | None) -> None:
    """List the contexts."""
    in_use, contexts = load_contexts()
    rows = [
        {
            "name": broker.name,
            "in_use": broker.name == in_use,
            "where": str(broker.url or broker.data or broker.connect),
            "connect": broker.connect,
            "token_file": str(broker.token_file) if broker.token_file else None,
            "tls_ca": str(broker.tls_ca) if broker.tls_ca else None,
        }
        for broker in contexts.values()
    ]
    empty = "no contexts; create one with `phpmq-lite context create NAME --url URL`"
    write_rows(rows, COLUMNS, output, empty)
