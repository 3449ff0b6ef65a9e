"""The page of clients: figures, labels, processes, disconnect, and the protocol inspector."""

import asyncio
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phpmq_lite.admin.system.connections import _unix_pid
from phpmq_lite.client import Client, connect
from phpmq_lite.server.processes import PeerProcess, find_listener
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.live_pages import LivePages, pages, poll_until

HOSTILE = '../<script>alert(1)</script>"é'
LINE_PUBLISH = b"H0100102\nP01%029d\nmail\nP02%029d\n<b>\x00\xff\n" % (4, 5)
LINE_CONSUME = b"H0100202\nP01%029d\nmail\nP04%029d\n5\n" % (4, 1)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    unix = tmp_path / "phpmq.sock"
    tcp = {"listen": ["127.0.0.1:0", f"unix:{unix}"]}
    async with running_service(tmp_path / "data", tcp=tcp) as broker:
        yield broker


@pytest.fixture
async def worker(broker: RunningBroker) -> AsyncIterator[Client]:
    """Connect a client that has published, so the broker knows it."""
    async with connect(broker.host, broker.port, reconnect=False) as client:
        await client.publish_confirmed("mail", b"hello")
        yield client


async def client_number(browser: LivePages) -> int:
    clients = await browser.clients()
    assert len(clients) == 1
    return int(clients[0]["client"])


async def posted(browser: LivePages, path: str, **fields: str) -> tuple[int, str]:
    """Submit a form with its CSRF token."""
    _, text = await browser.get("/clients/" + str(await client_number(browser)))
    found = re.search(r'name="csrf" value="(\w+)"', text)
    assert found is not None
    headers = {"Origin": browser.base}
    data = {"csrf": found[1]} | fields
    async with browser.session.post(
        browser.url(path), data=data, headers=headers, allow_redirects=False
    ) as answer:
        return answer.status, answer.headers.get("Location") or await answer.text()


async def frames_of(browser: LivePages, number: int, count: int) -> list[dict[str, Any]]:
    """Return the frames of a connection once there are ``count``."""

    async def ask() -> list[dict[str, Any]]:
        frames: list[dict[str, Any]] = (await browser.json(f"/clients/{number}/frames"))["frames"]
        return frames

    return await poll_until(ask, lambda frames: len(frames) >= count)


# -- connected clients


async def test_client_is_listed_with_its_figures(browser: LivePages, worker: Client) -> None:
    async with worker.consume("mail", credit=7) as deliveries:
        await anext(deliveries)
        number = await client_number(browser)
        listed = (await browser.json("/clients?queue=mail"))["items"][0]
        assert listed["queues"] == {"mail": {"credit": 7, "held": 1}}
        assert (listed["framing"], listed["revision"]) == ("compact", "ttl")
        detail = await browser.json(f"/clients/{number}")
        assert detail["held_total"] == 1
        assert detail["held"][0]["queue"] == "mail"
        _, page = await browser.get("/clients")
        assert f'data-live-ids="{number}"' in page
        status, page = await browser.get(f"/clients/{number}")
        assert status == 200
        assert "Held messages" in page
    assert (await browser.json("/clients?queue=nothing"))["items"] == []


async def test_clients_change_in_place(browser: LivePages, worker: Client) -> None:
    number = await client_number(browser)
    async with browser.events("clients", f"&ids={number}") as stream:
        _, _, whole = await stream.next()
        assert whole["shown"][f"{number}.published"] == "1"
        await worker.publish_confirmed("mail", b"again")
        changed = await stream.data_with("shown")
        assert changed["shown"][f"{number}.published"] == "2"
        assert f"{number}.held" not in changed["shown"]


async def test_ended_client_is_listed_with_the_reason(
    broker: RunningBroker, browser: LivePages
) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("mail", b"x")
        number = await client_number(browser)
    ended = await poll_until(lambda: browser.clients("?state=closed"))
    assert (ended[0]["client"], ended[0]["reason"]) == (number, "closed by the peer")
    _, page = await browser.get("/clients?state=closed")
    assert "closed by the peer" in page
    _, table = await browser.get("/clients?state=closed&format=csv")
    assert f"{number},tcp,127.0.0.1:" in table
    status, page = await browser.get(f"/clients/{number}")
    assert status == 200
    assert "closed by the peer" in page


async def test_empty_client_list_names_the_listeners(
    broker: RunningBroker, browser: LivePages
) -> None:
    _, page = await browser.get("/clients")
    assert f"127.0.0.1:{broker.port}" in page
    assert "docker run -p" in page
    assert "PhpmqListener" not in page  # nor in the header


@pytest.mark.parametrize("number", ["999", "x", "0", "9" * 30])
async def test_client_that_never_was_is_not_there(browser: LivePages, number: str) -> None:
    assert (await browser.get(f"/clients/{number}"))[0] == 404
    assert (await browser.get(f"/api/v1/clients/{number}"))[0] == 404


async def test_message_receipt_of_an_earlier_revision_is_named_in_log_and_page(
    broker: RunningBroker, browser: LivePages, capfd: pytest.CaptureFixture[str]
) -> None:
    """R18: 005 with two packets."""
    reader, writer = await asyncio.open_connection(broker.host, broker.port)
    writer.write(b"H0100502P01%029dFooP03%029dx" % (3, 1))
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    said = "with 2 packets, 005 was the message receipt of an earlier revision"
    assert said in (await browser.get("/clients?state=errors"))[1]
    assert said in "".join(capfd.readouterr())


async def test_frame_is_explained_from_the_page_of_a_connection(
    browser: LivePages, worker: Client
) -> None:
    _, page = await browser.get(f"/clients/{await client_number(browser)}")
    assert 'action="/frame"' in page
    consume = "483031303032303250303130303030303030303030303030303030303030303030303030303030334D"
    _, page = await browser.get(f"/frame?frame={consume}")
    assert "Dispatch messages" not in page
    assert "content, 1 of 3 bytes" in page
    packets, meanings = re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    assert packets.split("\n") == ["H0100202", "P0100" + "0" * 26 + "3M"]
    assert meanings.split("\n") == ["consume, 2 packets", "content, 1 of 3 bytes"]
    consume += "7171503034" + "30" * 28 + "3135"
    _, page = await browser.get(f"/frame?frame={consume}&encoding=hex")
    assert "Dispatch messages from &#39;Mqq&#39;, at most 5 unacknowledged" in page


async def test_frame_is_escaped_and_its_text_keeps_line_feeds(browser: LivePages) -> None:
    frame = (
        "H0100102%0D%0AP0100000000000000000000000000004%0D%0A<b>!%0D%0A"
        "P0200000000000000000000000000003%0D%0Aa%0D%0Ab"
    )
    _, page = await browser.get(f"/frame?frame={frame}")
    assert "line framing, LF" in page
    assert "<b>!" not in page
    assert "Store a message of 3 bytes" in page
    _, page = await browser.get("/frame?frame=H0100502&encoding=raw")
    assert "message receipt of an earlier revision" in page
    _, page = await browser.get("/frame?frame=zz&encoding=hex")
    assert "not valid hex" in page


@pytest.mark.parametrize("query", ["frame=" + "0" * 4_001, "encoding=utf-7"])
async def test_invalid_frame_is_rejected(browser: LivePages, query: str) -> None:
    assert (await browser.get(f"/frame?{query}"))[0] == 422


async def test_label_of_a_network_is_shown_and_removed(browser: LivePages, worker: Client) -> None:
    status, _ = await posted(browser, "/clients/label", name="127.0.0.0/8", label="lab <1>")
    assert status == 303
    _, page = await browser.get("/clients")
    assert "lab &lt;1&gt;" in page
    assert (await browser.json("/clients"))["items"][0]["label"] == "lab <1>"
    await posted(browser, "/clients/label", name="127.0.0.0/8", label="")
    assert (await browser.json("/clients"))["items"][0]["label"] == ""
    status, text = await posted(browser, "/clients/label", name="nonsense", label="x")
    assert status == 422, text


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_process_of_a_local_peer_is_found(
    broker: RunningBroker, browser: LivePages, tmp_path: Path, kind: str
) -> None:
    socket_path = f"unix:{tmp_path / 'phpmq.sock'}"
    async with connect(*((broker.host, broker.port) if kind == "tcp" else (socket_path,))) as peer:
        await peer.publish_confirmed("mail", b"x")
        number = await client_number(browser)
        _, page = await browser.get(f"/clients/{number}")
        assert str(os.getpid()) not in page.split("Show the client's process")[0]
        _, page = await browser.get(f"/clients/{number}?process=1")
        assert f"<dd>{os.getpid()} <code" in page


# -- disconnect


async def test_disconnect_explains_itself_and_returns_the_messages(
    broker: RunningBroker, browser: LivePages, worker: Client
) -> None:
    async with worker.consume("mail") as deliveries:
        await anext(deliveries)
        number = await client_number(browser)
        _, page = await browser.get(f"/clients/{number}?confirm=disconnect")
        assert "1 message returns to the queue" in page
        assert await disconnected(broker, number) == (200, {"client": number, "returned": 1})
        await poll_until(browser.clients, lambda left: not left)
    assert (await browser.json("/queues/mail"))["ready"] == 1
    assert (await disconnected(broker, number))[0] == 404


async def disconnected(broker: RunningBroker, number: int) -> tuple[int, Any]:
    """Disconnect a client like a local program, with JSON and without a cookie."""
    async with pages(broker) as program:
        url = program.url(f"/api/v1/clients/{number}")
        async with program.session.delete(url, json={}) as answer:
            return answer.status, await answer.json(content_type=None)


async def test_disconnect_button_does_the_same(browser: LivePages, worker: Client) -> None:
    number = await client_number(browser)
    status, where = await posted(browser, f"/clients/{number}/disconnect", reason="test")
    assert (status, where) == (303, "/clients")


# -- the inspector


async def test_inspector_shows_both_directions_with_hostile_strings(
    browser: LivePages, worker: Client
) -> None:
    number = await client_number(browser)
    assert await frames_of(browser, number, 0) == []
    await worker.publish_confirmed(HOSTILE, b"<img onerror=x>\x00\xff", key=b"k-1")
    async with worker.consume(HOSTILE, credit=3) as deliveries:
        (await anext(deliveries)).ack()
        frames = await frames_of(browser, number, 5)
    assert [(one["direction"], one["kind"]) for one in frames[:5]] == [
        ("in", "publish"), ("out", "receipt"), ("in", "consume"), ("out", "dispatch"),
        ("in", "acknowledge"),
    ]  # fmt: skip
    published = frames[0]
    assert published["queue"] == HOSTILE
    assert [piece["meaning"] for piece in published["pieces"]] == [
        "publish, 4 packets", f"queue {HOSTILE}", "content, 17 bytes", "TTL 0: never expires",
        "key k-1",
    ]  # fmt: skip
    assert bytes.fromhex(published["pieces"][2]["bytes"]).endswith(b"\x00\xff")
    _, page = await browser.get(f"/clients/{number}")
    assert "<script>alert(1)</script>" not in page
    assert "&lt;img onerror=x&gt;\\x00\\xff" in page


async def test_inspector_shows_line_framing(broker: RunningBroker, browser: LivePages) -> None:
    reader, writer = await asyncio.open_connection(broker.host, broker.legacy_port)
    writer.write(LINE_PUBLISH)
    await writer.drain()
    await poll_until(browser.clients)
    number = await client_number(browser)
    await frames_of(browser, number, 0)
    writer.write(LINE_CONSUME)
    await reader.readuntil(b"<b>\x00\xff\n")
    frames = await frames_of(browser, number, 2)
    consume, dispatch = frames
    assert [piece["meaning"] for piece in consume["pieces"]] == [
        "consume, 2 packets", "queue mail", "credit 5",
    ]  # fmt: skip
    assert (dispatch["direction"], dispatch["kind"]) == ("out", "dispatch")
    assert [piece["meaning"] for piece in dispatch["pieces"]][:3] == [
        "dispatch, 3 packets", "queue mail", "content, 5 bytes",
    ]  # fmt: skip
    writer.close()
    await writer.wait_closed()


async def test_stream_of_a_client_brings_its_frames(browser: LivePages, worker: Client) -> None:
    number = await client_number(browser)
    async with browser.events(f"client:{number}") as stream:
        await stream.next()
        await worker.publish_confirmed("mail", b"again")
        data = await stream.data_with("rows")
    assert [row["what"] for row in data["rows"]] == ["publish", "receipt"]
    assert data["rows"][0]["kind"] == "in"
    assert len(data["rows"][0]["bytes"].splitlines()) == len(
        data["rows"][0]["meaning"].splitlines()
    )


async def test_invalid_byte_is_kept_without_an_inspector(
    broker: RunningBroker, browser: LivePages
) -> None:
    reader, writer = await asyncio.open_connection(broker.host, broker.port)
    writer.write(LINE_PUBLISH[:9] + b"X")
    assert await reader.read() == b""
    writer.close()
    ended = await poll_until(lambda: browser.clients("?state=closed"))
    errors = (await browser.json(f"/clients/{ended[0]['client']}/frames"))["errors"]
    assert [(bad["code"], bad["offset"], bad["got"]) for bad in errors] == [
        ("bad-packet-header", 9, "X")
    ]
    assert errors[0]["expected"] == "a packet header: P and digits"
    _, page = await browser.get("/clients?state=errors")
    assert '<mark class="bad-byte">X</mark>' in page
    _, page = await browser.get(f"/clients/{ended[0]['client']}")
    assert "Invalid byte at offset 9" in page


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel who the peer is")
async def test_peer_that_has_just_left_has_no_process() -> None:
    """Within a batch, the broker still has a connection whose socket is closed."""
    here, there = socket.socketpair()
    with there:
        reader, writer = await asyncio.open_unix_connection(sock=here)
        connection = SimpleNamespace(kind="unix", peer=SimpleNamespace(transport=writer.transport))
        assert _unix_pid(connection) == os.getpid()
        writer.transport.abort()
        while await reader.read(1):
            pass
        await asyncio.sleep(0)
        assert _unix_pid(connection) is None
    connection.peer.transport = None
    assert _unix_pid(connection) is None


# -- the process of a peer


HEAD = "  sl  local_address rem_address   st"
LINE = " 0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 777 1"


def test_file_that_is_closed_meanwhile_hides_nothing(tmp_path: Path) -> None:
    """It is listed but cannot be read; the files after it are still checked."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(f"{HEAD}\n{LINE}\n")
    files = tmp_path / "42" / "fd"
    files.mkdir(parents=True)
    for number in range(64):
        (files / str(number)).touch()  # no link, so reading it fails, as for a closed file
    (files / "64").symlink_to("socket:[777]")
    (tmp_path / "42" / "cmdline").write_bytes(b"server\0-p\0")
    assert find_listener(0x1F90, tmp_path) == PeerProcess(42, "server")
