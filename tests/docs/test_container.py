"""Image and compose file, without docker: their names exist, and a broker starts with them."""

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from phpmq_lite.broker_process import StartFailedError
from phpmq_lite.process import STOP_S
from phpmq_lite.server.backpressure import CGROUP_SHARE
from phpmq_lite.settings import SETTINGS, Settings
from tests.docs.command_lines import assert_accepted
from tests.docs.pages import ROOT, blocks
from tests.integration.test_packaging import names_in_wheel
from tests.support.builds import build
from tests.support.fork_server import BrokerProcess
from tests.support.programs import run_program

COMPOSE: Final[dict[str, Any]] = yaml.safe_load(
    (ROOT / "deploy" / "compose.yml").read_text(encoding="utf-8")
)
SERVICE: Final[dict[str, Any]] = COMPOSE["services"]["broker"]
UID: Final = 10_001


def stages() -> list[list[tuple[str, str]]]:
    """Return the stages of the Dockerfile as lists of instruction and arguments."""
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^#.*\n", "", text).replace("\\\n", " ")
    found: list[list[tuple[str, str]]] = []
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, " ".join(rest.split())))
    return found


BUILD, IMAGE = stages()


def of_image(word: str) -> str:
    """Return the arguments of the only such instruction of the last stage."""
    (found,) = [rest for name, rest in IMAGE if name == word]
    return found


def variables() -> dict[str, str]:
    pairs = (pair.partition("=") for pair in shlex.split(of_image("ENV")))
    return {name: value for name, _, value in pairs}


def words(word: str) -> list[str]:
    """Return a command in exec form, which docker runs without a shell."""
    found: list[str] = json.loads(of_image(word))
    return found


# -- the build


def test_image_is_built_from_the_sdist_of_a_release(tmp_path: Path) -> None:
    """Its context is what ``.dockerignore`` admits, which is one file."""
    source, target = dict(BUILD)["COPY"].split()
    assert target == "/src/"
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1:] == ["*", f"!{source}"]
    sdist = build(ROOT, tmp_path / "dist", "sdist")
    assert list(tmp_path.glob(source)) == [sdist]
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    wheels = [build(at, tmp_path / f"wheel{n}", "wheel") for n, at in enumerate((unpacked, ROOT))]
    of_sdist, of_checkout = map(names_in_wheel, wheels)
    assert of_sdist == of_checkout


def test_image_installs_the_sdist_by_its_name(tmp_path: Path) -> None:
    """A shell replaces the pattern, of which ``[postgres]`` must not be part."""
    (tmp_path / "phpmq_lite-0.1.0.tar.gz").touch()
    (name,) = re.findall(r'"\$\(.*\)\[postgres\]"', BUILD[-1][1])
    line = f"echo {name}".replace("/src/", f"{tmp_path}/")
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{tmp_path}/phpmq_lite-0.1.0.tar.gz[postgres]"


def test_image_gets_the_environment_that_was_built() -> None:
    installed = "/opt/phpmq-lite"
    assert dict(BUILD)["RUN"].startswith(f"python -m venv {installed} && ")
    assert of_image("COPY") == f"--from=build {installed} {installed}"
    assert BUILD[0] == ("FROM", f"{IMAGE[0][1]} AS build")  # the same Python version
    assert variables()["PATH"].split(":")[0] == f"{installed}/bin"


def test_image_is_compiled_and_has_no_compiler() -> None:
    """``grep`` fails the build if the package is pure Python."""
    compilers, installed = (rest for word, rest in BUILD if word == "RUN")
    assert compilers.endswith(" gcc libc6-dev")
    assert installed.split(" && ")[1:] == [
        "HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 /opt/phpmq-lite/bin/pip install --no-cache-dir"
        ' "$(echo /src/phpmq_lite-*.tar.gz)[postgres]"',
        "/opt/phpmq-lite/bin/phpmq-lite --version | grep compiled",
    ]
    assert "apt-get" not in of_image("RUN")


def test_broker_does_not_run_as_root_and_its_folder_is_a_volume() -> None:
    data = variables()["PHPMQ_DATA"]
    assert of_image("USER") == f"{UID}:{UID}"
    assert f"--uid {UID}" in of_image("RUN")
    assert f"install -d -o phpmq -g phpmq -m 0700 {data}" in of_image("RUN")
    assert of_image("VOLUME") == data
    assert SERVICE["volumes"] == [f"data:{data}"]


def test_commands_are_accepted_and_run_without_a_shell() -> None:
    assert words("ENTRYPOINT") == ["phpmq-lite"]
    assert_accepted(words("CMD"))
    options, _, command = of_image("HEALTHCHECK").partition(" CMD ")
    program, *check = json.loads(command)
    assert program == "phpmq-lite"
    assert_accepted(check)
    assert set(re.findall(r"--(\S+)=", options)) == {"interval", "timeout", "start-period"}


# -- the container


def test_every_variable_is_a_setting() -> None:
    known = {setting.environment for setting in SETTINGS.values()}
    given = set(variables()) | set(SERVICE["environment"])
    assert {name for name in given if name.startswith("PHPMQ_")} <= known


def test_ports_are_those_of_the_image_and_on_loopback_only() -> None:
    exposed = of_image("EXPOSE").split()
    listening = [
        value.rpartition(":")[2] for name, value in variables().items() if "LISTEN" in name
    ]
    assert sorted(exposed) == sorted(listening)
    assert SERVICE["ports"] == [f"127.0.0.1:{port}:{port}" for port in exposed]


def test_container_has_no_unneeded_privileges() -> None:
    assert SERVICE["read_only"] is True
    assert SERVICE["cap_drop"] == ["ALL"]
    assert SERVICE["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in SERVICE
    assert "user" not in SERVICE


def test_bounds_of_the_container_are_above_those_of_the_broker() -> None:
    assert int(SERVICE["stop_grace_period"].removesuffix("s")) > STOP_S
    assert SERVICE["mem_limit"] == "1g"
    assert Settings().limits.memory <= (1 << 30) * CGROUP_SHARE


def test_secret_is_where_the_setting_looks() -> None:
    (name,) = SERVICE["secrets"]
    file = SERVICE["environment"]["PHPMQ_ADMIN__INITIAL_PASSWORD_FILE"]
    assert file == f"/run/secrets/{name}"
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert f"/deploy/{COMPOSE['secrets'][name]['file'].removeprefix('./')}" in ignored


class Container(BrokerProcess):
    """The command of the image, without the flags of the test."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "phpmq_lite", *words("CMD")]


@contextmanager
def container(tmp_path: Path, given: dict[str, str]) -> Iterator[Container]:
    """Start a broker with these variables, but with folder, secret and ports of the test."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PHPMQ_")}
    moved = {name: re.sub(r":\d+$", ":0", value) for name, value in given.items()}
    moved["PHPMQ_DATA"] = str(tmp_path / "data")
    if "PHPMQ_ADMIN__INITIAL_PASSWORD_FILE" in moved:
        secret = tmp_path / "admin-password"
        secret.touch(0o600)
        secret.write_text("correct horse battery\n", encoding="utf-8")
        moved["PHPMQ_ADMIN__INITIAL_PASSWORD_FILE"] = str(secret)
    made = Container(tmp_path / "data", listeners=2, env=outside | moved | {"PATH": os.defpath})
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.mark.slow
@pytest.mark.acceptance
def test_broker_of_the_compose_file_is_healthy(tmp_path: Path) -> None:
    with container(tmp_path, variables() | SERVICE["environment"]) as broker:
        _, *check = json.loads(of_image("HEALTHCHECK").partition(" CMD ")[2])
        done = run_program([sys.executable, "-m", "phpmq_lite", *check], env=broker.env, cwd=ROOT)
        assert (done.returncode, done.stdout) == (0, "OK: the broker accepts messages\n")
        assert broker.terminate() == 0


@pytest.mark.acceptance
def test_broker_of_the_line_with_docker_run_starts(tmp_path: Path) -> None:
    """Without docker: with the variables of the line, and those of the image."""
    (line,) = [
        block.text for block in blocks("docs/operate/container.md") if "docker run" in block.text
    ]
    assert line.count("\n") <= 1
    arguments = shlex.split(line)
    given = [arguments[at + 1] for at, word in enumerate(arguments) if word == "-e"]
    pairs = dict(pair.split("=", 1) for pair in given)
    assert set(pairs) <= {setting.environment for setting in SETTINGS.values()}
    (secret,) = [word for word in arguments if word.startswith("./deploy/admin-password:")]
    assert secret.split(":")[1] == pairs["PHPMQ_ADMIN__INITIAL_PASSWORD_FILE"]
    assert "phpmq:" + variables()["PHPMQ_DATA"] in arguments
    assert arguments[-1] == "phpmq-lite"
    with container(tmp_path, variables() | pairs) as broker:
        assert broker.terminate() == 0


@pytest.mark.acceptance
def test_image_without_settings_refuses_to_start(tmp_path: Path) -> None:
    with pytest.raises(StartFailedError) as caught, container(tmp_path, variables()):
        pass
    assert caught.value.code == 78
    for setting in ("tcp.open", "admin.initial_password_file", "admin.plaintext"):
        assert setting in str(caught.value)
