"""``bench``: its arguments, and when it refuses to measure."""

import click
import pytest
from click.testing import CliRunner

from phpmq_lite.bench.workloads import WORKLOADS
from phpmq_lite.cli import bench
from phpmq_lite.cli.main import root_command


def test_workloads_come_in_their_order_whatever_was_asked() -> None:
    assert bench.workload_list("latency, publish") == ("publish", "latency")


def test_all_names_every_workload() -> None:
    assert bench.workload_list("all") == WORKLOADS


def test_unknown_workload_is_refused_by_name() -> None:
    with pytest.raises(click.BadParameter, match="'fast' is not one of publish, flow"):
        bench.workload_list("publish,fast")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("phpmq://127.0.0.1:9100", ("127.0.0.1", 9100)), ("phpmq://[::1]:9100", ("::1", 9100))],
)
def test_url_has_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert bench.listener_address(text) == expected


@pytest.mark.parametrize("text", ["9100", "phpmq://:91", "phpmq://h:http", "unix:/x", "http://h:1"])
def test_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="HOST:PORT"):
        bench.listener_address(text)


def test_bench_refuses_a_folder_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "file_system", lambda _folder: "tmpfs")
    result = CliRunner().invoke(root_command, ["bench"])
    assert result.exit_code == 1
    assert "is stored in memory (tmpfs), not on disk. Choose another with" in result.stderr
