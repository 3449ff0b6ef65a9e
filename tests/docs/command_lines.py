"""Whether our command takes what a page, a unit or a compose file gives it."""

from collections.abc import Sequence

import click

from phpmq_lite.cli.main import root_command


def assert_taken(words: Sequence[str]) -> None:
    """Read the words behind ``phpmq-lite``; click raises where one is unknown or wrong."""
    left = list(words)
    command: click.Command = root_command
    context = click.Context(root_command)
    while isinstance(command, click.Group):
        name = left.pop(0)
        found = command.get_command(context, name)
        assert found is not None, name
        command = found
    command.make_context(None, left, resilient_parsing=False)
