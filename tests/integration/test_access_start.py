"""What a start asks of who may come in: the first password, wide binds, files of our own."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.errors import SettingsError
from phpmq_lite.testing import running_service
from tests.support.http_users import PASSWORD, HttpUser, broker_fixture

# -- the first password, wide binds, files


def password_file(folder: Path, text: str = PASSWORD + "\n", mode: int = 0o600) -> Path:
    file = folder / "first-password"
    file.write_text(text)
    file.chmod(mode)
    return file


async def test_first_password_comes_from_a_file_and_counts_once(tmp_path: Path) -> None:
    data, file = tmp_path / "data", password_file(tmp_path)
    admin = {"initial_password_file": file}
    async with broker_fixture(data, admin=admin) as home, HttpUser(home.url) as me:
        assert not (home.data / "setup-token").exists()
        assert (await me.get("/")).status == 303
        assert (await me.log_in("admin")).status == 303
        assert (await me.get("/users")).status == 200
    file.unlink()
    async with broker_fixture(data, admin=admin) as home, HttpUser(home.url) as me:
        assert (await me.log_in("admin")).status == 303


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [(PASSWORD, 0o640, "mode 0640"), (PASSWORD, 0o604, "chmod 600"), ("short", 0o600, "12 to 1024"),
     (None, 0, "cannot be read")],
)  # fmt: skip
async def test_unsafe_first_password_refuses_the_start(
    tmp_path: Path, text: str | None, mode: int, why: str
) -> None:
    file = tmp_path / "nothing" if text is None else password_file(tmp_path, text, mode)
    with pytest.raises(SettingsError, match=rf"admin\.initial_password_file.*{why}"):
        async with running_service(tmp_path / "data", admin={"initial_password_file": file}):
            pass


async def test_wide_admin_starts_with_a_user_and_a_decision_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    wide: dict[str, Any] = {"listen": ["0.0.0.0:0"]}
    for admin in (wide, wide | {"plaintext": True}):
        with pytest.raises(SettingsError, match=r"admin\.listen .*needs an admin user"):
            async with running_service(data, admin=admin):
                pass
    assert not data.exists()
    async with broker_fixture(data) as home:
        await home.add_user("anna")
    with pytest.raises(SettingsError, match=r"admin\.plaintext"):
        async with running_service(data, admin=wide):
            pass
    decided = broker_fixture(data, admin=wide | {"plaintext": True})
    async with decided as home, HttpUser(home.url.replace("0.0.0.0", "127.0.0.1")) as me:
        assert (await me.get("/queues")).status == 303
        assert (await me.log_in("anna")).status == 303
        assert (await me.get("/queues")).status == 200


async def test_plain_http_on_an_address_of_the_network_works(tmp_path: Path) -> None:
    address = lan_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    file = password_file(tmp_path)
    admin = {"listen": [f"{address}:0"], "plaintext": True, "initial_password_file": file}
    async with broker_fixture(tmp_path / "data", admin=admin) as home, HttpUser(home.url) as me:
        assert (await me.get("/")).status == 303  # browsers send no Sec-Fetch-Site there
        assert (await me.log_in("admin")).status == 303
        assert "Plain http" in (await me.get("/")).text
        answer = await me.post("/test-message")
        assert answer.status == 303
        assert (await me.request("GET", "/", {"Host": "mq.lan"})).status == 421


def lan_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


async def test_files_are_private_under_any_umask(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    before = os.umask(0)
    listen = [f"unix:{tmp_path / 'admin.sock'}", "127.0.0.1:0"]
    try:
        async with broker_fixture(tmp_path / "data", admin={"listen": listen}) as home:
            await home.control("POST", "/queues/orders/messages", {"content": "x"})
            files = [*home.data.iterdir(), tmp_path / "admin.sock"]
            wide = [file.name for file in files if file.stat().st_mode & 0o077]
            figure(f"umask 000: {len(wide)} of {len(files)} files are too wide")
            assert "setup-token" in {file.name for file in files}
            assert (wide, home.data.stat().st_mode & 0o777) == ([], 0o700)
    finally:
        os.umask(before)
    assert not (tmp_path / "admin.sock").exists()
