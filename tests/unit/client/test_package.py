"""The package's names are loaded when they are used."""

import subprocess
import sys

import pytest

from phpmq_lite import client

LOADED = "import sys, phpmq_lite.client; print('asyncio' in sys.modules, 'ssl' in sys.modules)"


def test_package_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=True)
    assert done.stdout.split() == [b"False", b"False"]


def test_package_gives_its_names() -> None:
    assert all(callable(getattr(client, name)) for name in client.__all__)
    with pytest.raises(AttributeError):
        client.nonsense  # noqa: B018
