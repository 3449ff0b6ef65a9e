"""The systemd unit agrees with the code: exit codes, times, folders, options."""

import re
import shutil
from configparser import RawConfigParser
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from phpmq_lite.cli.errors import exit_code_of
from phpmq_lite.envelopes.worker_app import connect
from phpmq_lite.errors import (
    DataDamagedError,
    NotWritableError,
    OutcomeUnknownError,
    SettingsError,
    StartRefusedError,
)
from phpmq_lite.process import STOP_S, SystemdNotifier
from phpmq_lite.server.admission import SPARE_FILES
from phpmq_lite.server.backpressure import CGROUP_SHARE
from phpmq_lite.settings import SETTINGS, SYSTEM_FILE, Settings
from phpmq_lite.storage.disk_space import MAX_TROUBLE_S
from tests.docs.command_lines import assert_accepted
from tests.docs.pages import ROOT
from tests.support.programs import run_program

UNIT = ROOT / "deploy" / "phpmq-lite.service"
PIPELINE = ROOT / "deploy" / "phpmq-lite-pipeline.service"
TIMER = PIPELINE.with_suffix(".timer")
OPERATIONS = (ROOT / "docs" / "operate" / "operations.md").read_text(encoding="utf-8")
DATA: Final = "/var/lib/phpmq-lite"


def lines() -> list[str]:
    """Return the lines of the unit, including optional ones in comments."""
    text = UNIT.read_text(encoding="utf-8")
    return [re.sub(r"^#(?=\w+=)", "", line) for line in text.splitlines()]


def unit_of(path: Path) -> RawConfigParser:
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path, encoding="utf-8")
    return unit


def values(name: str) -> list[str]:
    return [line.partition("=")[2] for line in lines() if line.startswith(f"{name}=")]


def value(name: str) -> str:
    (found,) = values(name)
    return found


def test_command_is_taken_and_works_on_the_folder_of_the_unit() -> None:
    program, *words = value("ExecStart").split()
    assert Path(program).name == "phpmq-lite"
    assert_accepted(words)
    assert words[words.index("--data") + 1] == DATA == f"/var/lib/{value('StateDirectory')}"
    assert f"/etc/{value('ConfigurationDirectory')}" == str(SYSTEM_FILE.parent)
    assert program in OPERATIONS
    assert DATA in OPERATIONS
    account = f"useradd --system --home-dir {DATA} --shell /usr/sbin/nologin {value('User')}\n"
    assert account in OPERATIONS
    assert value("Group") == value("User")


def test_start_is_not_repeated_after_errors_that_need_an_operator() -> None:
    no_more = set(map(int, value("RestartPreventExitStatus").split()))
    assert no_more == {exit_code_of(DataDamagedError("")), exit_code_of(SettingsError(""))}
    again = {NotWritableError, OutcomeUnknownError, StartRefusedError}
    assert not no_more & {exit_code_of(kind("")) for kind in again}
    assert value("Restart") == "on-failure"


def test_timeouts_are_longer_than_those_of_the_broker() -> None:
    watchdog_s = int(value("WatchdogSec"))
    assert value("Type") == "notify"
    assert int(value("TimeoutStopSec")) > STOP_S
    assert watchdog_s > MAX_TROUBLE_S
    assert watchdog_s / SystemdNotifier("/run/notify", watchdog_s).each_s >= 4


def test_bounds_leave_room_for_the_defaults() -> None:
    limits = Settings().limits
    assert value("MemoryMax") == "1G"
    assert limits.memory <= (1 << 30) * CGROUP_SHARE
    needed = limits.connections + limits.http_connections + SPARE_FILES
    assert int(value("LimitNOFILE")) >= needed


def test_credentials_are_settings_that_are_paths() -> None:
    names = [found.partition(":")[0] for found in values("LoadCredential")]
    assert len(names) == 2
    assert all(SETTINGS[name].is_path for name in names)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("units", [[UNIT], [PIPELINE, TIMER]], ids=lambda units: units[0].name)
def test_systemd_finds_nothing_wrong(tmp_path: Path, units: list[Path]) -> None:
    copies = [tmp_path / unit.name for unit in units]
    for unit, copy in zip(units, copies, strict=True):
        copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text()))
    done = run_program(["systemd-analyze", "verify", *map(str, copies)])
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_pipeline_runs_beside_the_broker_of_the_unit(tmp_path: Path) -> None:
    unit = unit_of(PIPELINE)["Service"]
    program, *words = unit["ExecStart"].split()
    assert program == value("ExecStart").split()[0]
    options = dict(pairwise(words))
    (tmp_path / "token").touch(mode=0o600)
    at = words.index("--token-file") + 1
    assert_accepted([*words[:at], str(tmp_path / "token"), *words[at + 1 :]])
    assert (options["--data"], unit["ReadWritePaths"]) == (DATA, DATA)
    assert (unit["User"], unit["Group"]) == (value("User"), value("Group"))
    # A signal to Java would end the batch; its just-in-time compiler writes executable memory.
    assert (unit["Type"], unit["KillMode"]) == ("oneshot", "mixed")
    assert "MemoryDenyWriteExecute" not in unit
    assert "Unit" not in unit_of(TIMER)["Timer"]  # the service of the same name
    assert TIMER.stem == PIPELINE.stem
    guide = (ROOT / "docs" / "guides" / "pipeline.md").read_text(encoding="utf-8")
    assert all(name in guide for name in (PIPELINE.name, TIMER.name, options["--token-file"]))


def test_unit_of_a_worker_runs_it_until_its_message_is_finished() -> None:
    service = unit_of(ROOT / "deploy" / "phpmq-lite-worker@.service")["Service"]
    program, *words = service["ExecStart"].replace("%I", "mails").split()
    assert Path(program).name == "phpmq-lite"
    assert_accepted(words)
    assert (
        float(service["TimeoutStopSec"].rstrip("s"))
        > signature(connect).parameters["shutdown_timeout_s"].default
    )
    guide = (ROOT / "docs" / "guides" / "workers.md").read_text(encoding="utf-8")
    assert "deploy/phpmq-lite-worker@.service" in guide
