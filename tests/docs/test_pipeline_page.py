"""The page about the pipeline agrees with the code: commands, flags, options, columns."""

import re
from functools import partial

import click

from phpmq_lite.cli.main import root_command
from phpmq_lite.cli.pipeline.commands import pipeline
from phpmq_lite.spark import source_options
from tests.docs import pages

NAME = "docs/guides/pipeline.md"
PAGE = pages.text_of(NAME)
README = pages.text_of("README.md")


rows = partial(pages.rows, NAME)


def command(name: str) -> click.Command:
    return pipeline.commands[name]


def flags_of(name: str) -> set[str]:
    return {
        flag
        for parameter in command(name).params
        if isinstance(parameter, click.Option)
        for flag in parameter.opts
    }


def test_commands_are_those_of_the_command_line() -> None:
    named = [row[0].strip("`").removeprefix("pipeline ") for row in rows("| command |")]
    assert sorted(named) == sorted(pipeline.commands)


def test_each_command_has_a_help_without_spark() -> None:
    context = click.Context(root_command)
    assert all(command(name).get_help(context) for name in pipeline.commands)


def test_examples_use_flags_that_exist() -> None:
    lines = re.sub(r"\\\n\s*", "", PAGE + README).splitlines()
    told = [line.partition("#")[0] for line in lines if line.startswith("    ")]
    calls = [found for line in told if (found := re.search(r"phpmq-lite pipeline (\w+)(.*)", line))]
    assert len(calls) > 5
    for name, arguments in (call.groups() for call in calls):
        assert set(re.findall(r"--[\w-]+", arguments)) <= flags_of(name), name


def test_flags_of_the_text_exist() -> None:
    known = {flag for name in pipeline.commands for flag in flags_of(name)} | {"--py-files"}
    prose = "\n".join(line for line in PAGE.splitlines() if not line.startswith("    "))
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]+", prose)) <= known


def test_source_options_are_those_of_the_source() -> None:
    table = rows("| option | for |")
    assert [row[0].strip("`") for row in table] == list(source_options.OPTIONS)
    uses = {
        "all": set(source_options.SourceMode),
        "reads": {use for use in source_options.SourceMode if "read" in use},
        "history": {source_options.SourceMode.BATCH_READ, source_options.SourceMode.HISTORY_STREAM},
        "batch reads": {source_options.SourceMode.BATCH_READ},
        "history streams": {source_options.SourceMode.HISTORY_STREAM},
        "queue streams": {source_options.SourceMode.QUEUE_STREAM},
        "batch writes": {source_options.SourceMode.BATCH_WRITE},
        "stream writes": {source_options.SourceMode.STREAM_WRITE},
    }
    for name, use, _ in table:
        assert uses[use] == source_options.OPTIONS[name.strip("`")], name


def test_names_of_kafka_are_those_that_are_refused() -> None:
    told = {row[0].strip("`"): row[1].replace("`", "") for row in rows("| Kafka's |")}
    assert told == dict(source_options.KAFKA_NAMES)
