"""Write docs/reference/cli.md: every command with its usage, arguments and options."""

import re
from collections import Counter
from collections.abc import Iterator
from inspect import cleandoc
from textwrap import wrap
from typing import Final

import click

from phpmq_lite.cli.main import root_command

_HEAD: Final = """\
# Command line

Every command of `phpmq-lite`, as `--help` says it. This page is made from the code by
`python -m tests.docs.references`; a test compares.

Results go to standard output, messages to standard error. Lists are tables on a terminal and JSON
lines elsewhere; `-o` chooses another format. An earlier name of a command or an option fails with
the name that replaces it.

{epilog}

## Which broker

Every command that needs a broker finds it in the same order:

1. **A flag that names it**: `--url http://HOST:9101`, the address of its admin, with `--token-file`
   if it has users; or `--data` or `--config` with its folder or its addresses.
2. **The context in use** (`phpmq-lite context`).
3. **The settings**: `./config.toml` and the other places of [the settings](settings.md), if they
   name a folder (`data`) or an address (`admin.listen`).
4. **The folder `./phpmq-data`**, if it exists: the command talks to its `control.sock`, which needs
   no token.
5. **`http://127.0.0.1:9101`**; a line on standard error says so.

`publish`, `consume`, `worker`, `outbox relay` and the imports ask that broker for its listeners,
and use its first listener with TTL that can be reached from here, with TLS if it has TLS.
`--url phpmq://HOST:9100` names a listener without asking; `phpmqs://` is TLS, `unix:PATH` a Unix
socket.
"""
_SHARED_BY: Final = 12  # commands: an option of at least as many is described once

Option = tuple[str, str]  # as in the help: names with their values, and the effect


def page() -> str:
    found = list(every_command())
    counts = Counter(option for _, context in found for option in _options(context))
    shared = {option: None for option, count in counts.items() if count >= _SHARED_BY}
    parts = [_HEAD.format(epilog="\n".join(wrap(root_command.epilog or "", 100)))]
    parts += ["| command | does |\n|---|---|"]
    for path, context in found:
        if path.count(" ") == 1:
            name, first = context.info_name, next(_paragraphs(context.command.help))
            parts.append(f"| [{name}](#phpmq-lite-{name}) | {cell(first)} |")
    parts.append("")
    parts += ["## Options that many commands have\n", _table(list(shared))]
    parts += [_described(path, context, set(shared)) for path, context in found]
    return "\n".join(parts)


def every_command() -> Iterator[tuple[str, click.Context]]:
    return _commands("phpmq-lite", root_command, None)


def _commands(
    path: str, command: click.Command, parent: click.Context | None
) -> Iterator[tuple[str, click.Context]]:
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent)
    yield path, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, name
            if not found.hidden:
                yield from _commands(f"{path} {name}", found, context)


def _options(context: click.Context) -> list[Option]:
    """Return the options of a command as its help shows them, without ``--help``."""
    return [
        record
        for option in context.command.params
        if isinstance(option, click.Option)
        if (record := option.get_help_record(context)) is not None
    ]


def _described(path: str, context: click.Context, shared: set[Option]) -> str:
    command = context.command
    depth = "##" if path.count(" ") < 2 else "###"
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    parts = [f"{depth} {path}\n", f"```text\n{usage}\n```\n"]
    parts += [f"{paragraph}\n" for paragraph in _paragraphs(command.help)]
    options = _options(context)
    if own := [option for option in options if option not in shared]:
        parts.append(_table(own))
    if others := [_flag(option) for option in options if option in shared]:
        parts.append(f"Also: {', '.join(others)}.\n")
    if command.epilog and command is not root_command:
        parts.append(f"{command.epilog.removeprefix(chr(8)).strip()}\n")
    return "\n".join(parts)


def _flag(option: Option) -> str:
    found = re.search(r"--[\w-]+", option[0])
    assert found is not None, option
    return f"`{found[0]}`"


def _paragraphs(text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a help text; those that click does not wrap are kept as written."""
    for paragraph in cleandoc(text or "").strip().split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield f"```text\n{paragraph[2:]}\n```"
        else:
            yield " ".join(paragraph.split())


def _table(options: list[Option]) -> str:
    rows = [f"| `{cell(names)}` | {cell(text)} |" for names, text in options]
    return "\n".join(["| option | what |", "|---|---|", *rows, ""])


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def plain(text: str) -> str:
    """Return a docstring as Markdown, where code has one backtick."""
    return text.replace("``", "`")
