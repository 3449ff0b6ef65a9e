"""Sockets of the admin interface."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from phpmq_lite.admin.listeners import bind_sockets
from phpmq_lite.errors import StartRefusedError


async def test_control_socket_with_a_long_path_is_refused_with_the_remedy() -> None:
    control = Path("/", "x" * 107)
    async with AsyncExitStack() as stack:
        with pytest.raises(StartRefusedError, match=r"/x+ is 108 bytes.* is 107.*--data"):
            await bind_sockets(stack, [], control)
