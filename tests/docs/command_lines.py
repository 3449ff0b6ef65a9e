"""Check command lines of pages, units and compose files against the commands."""

from collections.abc import Sequence

import click

from phpmq_lite.cli.main import root_command


def assert_accepted(words: Sequence[str]) -> None:
    """Parse the words after ``phpmq-lite``; click raises if one is unknown or invalid."""
    left = list(words)
    command: click.Command = root_command
    context = click.Context(root_command)
    while isinstance(command, click.Group):
        name = left.pop(0)
        found = command.get_command(context, name)
        assert found is not None, name
        command = found
    command.make_context(None, left, resilient_parsing=False)
