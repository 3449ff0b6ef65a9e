"""The files in ``deploy/cluster/`` agree with each other, with their README and with the pages.

``tests/integration/test_patroni.py`` runs a cluster with them.
"""

import re
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.pages import ROOT, rows, text_of
from tests.support.programs import run_program

CLUSTER: Final = ROOT / "deploy" / "cluster"
README: Final = text_of("deploy/cluster/README.md")
PAGE: Final = "docs/operate/cluster.md"


def parsed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CLUSTER / name).read_text(encoding="utf-8"))
    return found


def variables(name: str) -> dict[str, str]:
    lines = (CLUSTER / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


DYNAMIC: Final = parsed("patroni.yml")["bootstrap"]["dcs"]


def test_primary_that_is_cut_off_stops_before_the_others_start() -> None:
    assert DYNAMIC["loop_wait"] + 2 * DYNAMIC["retry_timeout"] <= DYNAMIC["ttl"]
    assert DYNAMIC["primary_stop_timeout"] <= DYNAMIC["retry_timeout"]


def test_page_shows_the_settings_that_are_shipped() -> None:
    for names, values, _ in rows(PAGE, "| setting | value | reason |"):
        found = [str(DYNAMIC[name]).lower() for name in re.findall(r"`(\w+)`", names)]
        assert found == [value.strip("` s").lower() for value in values.split(", ")], names


def test_every_placeholder_is_replaced_by_the_readme() -> None:
    for name in ("node.env", "secrets.env"):
        for placeholder in re.findall(r"@\w+@", (CLUSTER / name).read_text(encoding="utf-8")):
            assert f"s/{placeholder}/" in README, placeholder


def test_readme_names_every_file() -> None:
    for path in CLUSTER.iterdir():
        if path.is_file() and path.name != "README.md":
            assert f"`{path.name}`" in README, path.name


def test_certificates_are_where_the_readme_puts_them() -> None:
    texts = [(CLUSTER / name).read_text(encoding="utf-8") for name in ("patroni.yml", "etcd.env")]
    used = set(re.findall(r"/etc/phpmq-cluster/[\w.]+", "".join(texts)))
    assert used == {f"/etc/phpmq-cluster/{name}" for name in ("ca.crt", "node.crt", "node.key")}
    for path in used:
        assert path in README


def test_compose_file_mounts_what_the_configuration_reads() -> None:
    services = parsed("compose.yml")["services"]
    assert len(services) == 9
    for name, service in services.items():
        targets = {volume.split(":")[1] for volume in service["volumes"]}
        if name.startswith("machine"):
            assert {"/etc/phpmq-cluster/patroni.yml", "/var/lib/postgresql/15"} <= targets
        if name.startswith("etcd"):
            assert variables("etcd.env")["ETCD_DATA_DIR"].startswith("/var/lib/etcd/")
            assert "/var/lib/etcd" in targets
        assert "/etc/phpmq-cluster/ca.crt" in targets


@pytest.mark.parametrize("name", ["etcd.service", "patroni.service", "phpmq-lite.conf"])
def test_systemd_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    text = (CLUSTER / name).read_text(encoding="utf-8")
    unit = tmp_path / name.replace(".conf", ".service")
    if name.endswith(".conf"):
        unit.write_text("[Service]\nExecStart=/bin/true\n")
        (tmp_path / f"{unit.name}.d").mkdir()
        (tmp_path / f"{unit.name}.d" / name).write_text(text)
    else:
        unit.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text))
    done = run_program([program, "verify", str(unit)])
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
