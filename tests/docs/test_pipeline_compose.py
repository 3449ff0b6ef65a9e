"""The compose file of the pipeline: existing commands, and the loopback only."""

import re
import shlex
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.docs.command_lines import assert_accepted
from tests.docs.pages import ROOT

FILE = ROOT / "deploy" / "pipeline-compose.yml"
STANDALONE = (ROOT / "tests" / "spark" / "standalone.py").read_text(encoding="utf-8")


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
    return found


def test_our_commands_and_flags_exist() -> None:
    ours = [shlex.split(one["command"]) for one in services().values()]
    ours = [words[1:] for words in ours if words[0] == "phpmq-lite"]
    assert len(ours) == 2
    for words in ours:
        assert_accepted(words)


def test_cluster_is_started_as_the_test_starts_it() -> None:
    told = [one["command"] for one in services().values() if "spark-class" in one["command"]]
    classes = [re.search(r"org\.apache\.spark\.deploy\.(\S+)", text) for text in told]
    assert [found[1] for found in classes if found] == ["master.Master", "worker.Worker"]
    for text in told:
        for flag in re.findall(r"--[\w-]+", text):
            assert f'"{flag}"' in STANDALONE, flag
    assert services()["worker"]["deploy"]["replicas"] == 2


def test_all_share_the_results_and_listen_on_loopback_only() -> None:
    for name, service in services().items():
        assert service["network_mode"] == "host", name
        assert service["volumes"] == ["phpmq:/var/lib/phpmq"], name
        assert "ports" not in service, name
        assert "0.0.0.0" not in service["command"], name


def test_archive_has_the_bodies_that_replay_needs() -> None:
    assert "--bodies" in shlex.split(services()["run"]["command"])
