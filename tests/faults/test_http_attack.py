"""The attacks on the memory of HTTP, once; ``python -m tests.faults.http_attack`` is the whole."""

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
async def test_attack_over_http_kills_nobody_and_the_others_go_on(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    result = await http_attack.besiege(tmp_path, loads=1, seconds=1.0)
    for line in result.lines():
        figure(line)
    assert result.offences == []
    assert result.confirms_s
    assert {"publish 8 MiB", "import 100,000 lines", "publish"} <= set(result.done)
