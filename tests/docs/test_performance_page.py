"""The performance page names the workloads, options and limits of ``bench``."""

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

from phpmq_lite.bench.workloads import WORKLOADS
from phpmq_lite.broker.flow_control import MAX_PER_PUBLISHER, MIN_PER_BATCH
from phpmq_lite.cli.bench import bench
from phpmq_lite.settings.model import LimitSettings
from tests.docs.pages import ROOT
from tests.support.fork_server import ForkedProcess

PAGE = (ROOT / "docs" / "operate" / "performance.md").read_text(encoding="utf-8")


def test_workloads_are_those_of_the_command() -> None:
    table = PAGE.partition("### The workloads")[2].partition("\n\nWithout")[0]
    assert re.findall(r"^\| `([\w-]+)`", table, re.M) == list(WORKLOADS)


def test_examples_are_accepted_by_the_command(tmp_path: Path) -> None:
    lines = re.findall(r"^    phpmq-lite bench\b([^#>\n]*)", PAGE, re.M)
    assert len(lines) == 5
    for line in lines:
        arguments = shlex.split(line.replace("/srv/mq", str(tmp_path)))
        bench.make_context("bench", arguments)  # raises if one is unknown or invalid


def test_options_of_the_text_exist() -> None:
    options = {flag for it in bench.params if isinstance(it, click.Option) for flag in it.opts}
    assert set(re.findall(r"`(--[a-z]+)", PAGE)) <= options


def test_bounds_are_those_of_the_code() -> None:
    limits = LimitSettings()
    told = (
        f"at most {limits.batch_commands:,} commands or {limits.batch_bytes >> 20} MiB",
        f"a window of {limits.window:,} ready messages",
        f"the bodies of both ({limits.body_cache >> 20} MiB at most)",
        f"at most {MAX_PER_PUBLISHER} messages at once and at least {MIN_PER_BATCH} per batch",
    )
    assert [text for text in told if text not in PAGE] == []


# -- docs/operate/reliability.md


RELIABILITY = (ROOT / "docs" / "operate" / "reliability.md").read_text(encoding="utf-8")


PROGRAMS = sorted(set(re.findall(r"`python -m (tests\.[^`]+)`", RELIABILITY)))


def test_page_names_the_programs() -> None:
    assert len(PROGRAMS) >= 9


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_accepts_its_options(program: str) -> None:
    words = shlex.split(program)
    process = ForkedProcess([*words, "--help"], stdout=subprocess.PIPE, stderr=2, cwd=ROOT)
    output, _ = process.communicate(60)
    assert process.returncode == 0
    assert all(word in output for word in words if word.startswith("--"))


def test_files_are_there() -> None:
    named = set(re.findall(r"`(?:python -m pytest -n 0 )?(tests/[\w/.]+)`", RELIABILITY))
    assert len(named) >= 12
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
