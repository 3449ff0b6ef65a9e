"""A short run of ``cluster.py``: brokers on a PostgreSQL cluster, and faults of both."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.node_network import needs_namespaces
from tests.support.patroni_cluster import needs_patroni
from tests.support.postgres_nodes import needs_postgres

pytestmark = [pytest.mark.faults, needs_namespaces, needs_patroni, needs_postgres]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_brokers_on_a_cluster_keep_what_is_confirmed(figure: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "tests.faults.cluster", "--short"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.strip().splitlines():
        figure(line)
    assert done.returncode == 0, done.stdout + done.stderr
