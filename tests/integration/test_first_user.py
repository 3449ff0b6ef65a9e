"""The first user, roles, and the way back to a broker without users."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_runner import RunCommand
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.http_users import HttpUser, visible_text

pytestmark = pytest.mark.acceptance

PASSWORD = "correct horse battery"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as running:
        yield running


def create(run: RunCommand, name: str, *options: str) -> str:
    return run("user", "create", name, "--password-file", "-", *options, input=PASSWORD).stderr


async def test_first_user_is_announced_and_the_only_one_can_be_deleted_by_a_command(
    broker: BrokerProcess, run: RunCommand
) -> None:
    async with HttpUser(broker.admin[0]) as me:
        assert (await me.get("/queues")).status == 200
        page = visible_text((await me.get("/users")).text)
        assert "Until the first user exists, everyone on this machine is admin" in page
        assert "has full access" not in page
        assert "Only an admin who has logged in" not in page
        assert "From then on, everyone must log in" in visible_text((await me.get("/setup")).text)
        said = await asyncio.to_thread(create, run, "anna")
        assert "everyone must log in" in said
        assert "phpmq-lite user delete NAME" in said
        assert said.endswith("created the user anna with the role admin\n")
        assert (await me.get("/queues")).status == 303
        assert "first user" not in (await asyncio.to_thread(create, run, "ben"))
        assert (
            "the only admin"
            in (await asyncio.to_thread(run, "user", "delete", "anna", "--yes", code=4)).stderr
        )
        (await asyncio.to_thread(run, "user", "delete", "ben", "--yes"))
        assert (await me.log_in("anna", PASSWORD)).status == 303
        assert (await me.post("/users/anna/remove", confirm="anna")).status == 409
        deleted = (await asyncio.to_thread(run, "user", "delete", "anna", "--yes")).stderr
        assert "no users exist: everyone on this machine is admin without a login" in deleted
    async with HttpUser(broker.admin[0]) as me:
        assert (await me.get("/queues")).status == 200
    token = (broker.data / "setup-token").read_text().strip()
    async with HttpUser(broker.admin[0]) as me:
        form = {"token": token, "name": "cleo", "password": PASSWORD, "again": PASSWORD}
        assert (await me.post("/setup", **form)).status == 303


def test_api_says_whether_a_user_is_the_first(broker: BrokerProcess, run: RunCommand) -> None:
    secret = run("token", "create", "setup", "--role", "admin").stdout.strip()

    def post(name: str, role: str) -> object:
        user = {"name": name, "password": PASSWORD, "role": role}
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}"}
        url = f"{broker.admin[0]}api/v1/users"
        request = urllib.request.Request(url, json.dumps(user).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["is_first"]

    assert [post("anna", "admin"), post("ben", "viewer")] == [True, False]


async def test_role_is_set_with_an_audit_row_unless_no_admin_would_remain(
    broker: BrokerProcess, run: RunCommand
) -> None:
    (await asyncio.to_thread(create, run, "anna"))
    (await asyncio.to_thread(create, run, "ben"))
    assert (await asyncio.to_thread(run, "user", "set-role", "ben", "operator")).stderr == (
        "ben is now operator, and must log in again\n"
    )
    assert "already" in (await asyncio.to_thread(run, "user", "set-role", "ben", "operator")).stderr
    refused = (await asyncio.to_thread(run, "user", "set-role", "anna", "viewer", code=4)).stderr
    assert "'anna' is the only admin, and one must remain" in refused
    assert "user set-role NAME admin" in refused
    (await asyncio.to_thread(run, "user", "set-role", "ben", "admin"))
    (await asyncio.to_thread(run, "user", "set-role", "anna", "viewer"))
    (await asyncio.to_thread(run, "user", "set-role", "nobody", "viewer", code=3))
    unknown = (await asyncio.to_thread(run, "user", "set-role", "ben", "root", code=4)).stderr
    assert all(word in unknown for word in ("role", "viewer", "operator", "admin")), unknown
    users = map(json.loads, (await asyncio.to_thread(run, "user", "list")).stdout.splitlines())
    roles = {user["name"]: user["role"] for user in users}
    assert roles == {"anna": "viewer", "ben": "admin"}
    async with HttpUser(broker.admin[0]) as me:
        await me.log_in("ben", PASSWORD)
        audit = json.loads((await me.get("/api/v1/audit")).text)["items"]
    changed = [(row["target"], row["result"]) for row in audit if row["action"] == "user.change"]
    assert ("anna", "done") in changed
    assert ("anna", "last_admin") in changed
