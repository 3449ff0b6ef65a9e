"""A short run of ``http_attack.py``, which attacks the memory of a broker over HTTP."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import http_attack

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="measures with /proc"),
    pytest.mark.timeout(400),
]


@pytest.mark.slow
async def test_broker_serves_other_users_during_an_attack_over_http(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    result = await http_attack.besiege(tmp_path, loads=1, seconds=1.0)
    for line in result.lines():
        figure(line)
    assert result.offences == []
    assert result.confirms_s
    assert {"publish 8 MiB", "import 100,000 lines", "publish"} <= set(result.done)
