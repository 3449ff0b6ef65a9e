"""``completion``: prints what a shell needs to complete commands and options."""

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script: eval "$(phpmq-lite completion bash)"."""
    from click.shell_completion import get_completion_class

    from phpmq_lite.cli.main import commands

    found = get_completion_class(shell)
    if found is not None:
        made = found(commands, {}, "phpmq-lite", "_PHPMQ_LITE_COMPLETE")
        click.echo(made.source())
