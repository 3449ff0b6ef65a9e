"""A full disk: acknowledgements work, nothing confirmed is lost, publishing resumes by itself."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.faults.full_disk import (
    RESUME_S,
    ROOM,
    SILENCE_S,
    SIZE,
    Disk,
    Quota,
    Story,
    story_on,
    tmpfs,
)
from tests.faults.mutants import MAX_TROUBLE_S
from tests.faults.shim import Shim
from tests.faults.shimmed_broker import shimmed_broker
from tests.faults.writer_mutants import writer_pid
from tests.support.fork_server import BrokerProcess
from tests.support.socket_client import SocketClient
from tests.support.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.acceptance]

Figure = Callable[[str], None]
ONLY_WHEN_FULL = "storage.free_bytes=0"


@pytest.fixture
def quota(tmp_path: Path) -> Quota:
    return Quota(tmp_path)


@pytest.fixture(params=["tmpfs", "quota", "second"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param != "tmpfs":
        yield Quota(tmp_path, is_second=request.param == "second")
        return
    with tmpfs(tmp_path / "small") as mounted:
        if mounted is None:
            pytest.skip("only root can mount a small file system; the quota stands in for it")
        yield mounted


def assert_degraded(story: Story, silent: SocketClient, code: str, setting: str) -> None:
    admin = story.admin
    with urlopen(f"{admin.url}/readyz") as answer:
        assert answer.read().startswith(b"degraded\n")
    with pytest.raises(HTTPError) as refused:
        admin.post("/api/v1/queues/orders/messages", {"content": "x"})
    told = json.load(refused.value)
    assert (refused.value.code, told["code"]) == (507, code)
    assert setting in told["detail"]
    metrics = admin.metrics()
    assert metrics["phpmq_publishing_stopped"] == 1
    assert metrics[f'phpmq_publishes_refused_total{{reason="{code}"}}'] > 0
    port = silent.socket.getsockname()[1]
    rows = admin.get("/api/v1/clients?limit=200")["items"]
    (row,) = [row for row in rows if row["address"].endswith(f":{port}")]
    assert row["paused_reason"] == "disk"
    assert "Publishing is stopped" in urlopen(f"{admin.url}/").read().decode()


def edges(story: Story) -> list[str]:
    """Return the log events about publishing."""
    text = story.broker.log.read_text(encoding="utf-8")
    return re.findall(r"publishing_stopped|publishing_resumed", text)


def test_full_disk_stores_acknowledgements_and_resumes(
    disk: Disk, figure: Figure, request: pytest.FixtureRequest
) -> None:
    with story_on(disk, ONLY_WHEN_FULL) as story:
        with (
            story.clients() as (producer, consumer),
            SocketClient(story.broker.port) as silent,
            story.retrying() as tries,
        ):
            story.fill_by_others(producer, consumer)
            silent.publish("orders", b"without a key")
            assert not story.publish(producer)
            assert_degraded(story, silent, "disk_full", "disk is full")
            disk.grow()
            story.wait_until_resumed(producer)
            wait_for_body(story, b"without a key")
            if isinstance(disk, Quota) and disk.is_second:
                pid = writer_pid(disk.data)  # it has served all the time
                started = f'"pid": {pid}, "event": "writer_process_st'
                assert story.broker.log.read_text().count(started) == 1
        story.broker.kill()
        lost = story.lost()
        assert edges(story) == ["publishing_stopped", "publishing_resumed"]
    figure(
        f"disk full ({request.node.callspec.id}): {story}, {len(lost)} lost; immediate retries "
        f"were rejected {tries[0]:,} times"
    )
    assert tries[0] > 0
    assert_stored_and_resumed(story, lost, "disk full")


def assert_stored_and_resumed(story: Story, lost: list[str], reason: str) -> None:
    assert lost == []
    assert story.refused.keys() == {reason}
    assert len(story.stored) == story.acked > 0
    assert story.resumed_s is not None
    assert story.resumed_s < RESUME_S


def wait_for_body(story: Story, content: bytes) -> None:
    """Wait until a message published without a key is in the queue."""
    # By its size: retries have published hundreds of messages after it.
    query = f"/api/v1/messages?q=queue:orders%20size:{len(content)}"
    until(lambda: story.admin.get(query)["items"], 20)


def test_publishing_stops_before_the_disk_is_full(quota: Quota, figure: Figure) -> None:
    quota.shim.quota_bytes = SIZE + ROOM
    free_bytes = (16 << 20) + ROOM
    with story_on(quota, f"storage.free_bytes={free_bytes}") as story:
        with story.clients() as (producer, consumer):
            story.fill_by_publishing(producer, consumer)
            left = quota.shim.quota_bytes or 0
            left -= quota.shim.used_bytes
            assert (quota.data / "ballast").exists()  # not needed
            quota.grow()
            story.wait_until_resumed(producer)
        story.broker.kill()
        lost = story.lost()
    figure(f"watermark: {story}, {len(lost)} lost, {left >> 20} MiB left of {free_bytes >> 20}")
    assert_stored_and_resumed(story, lost, "disk full: storage.free_bytes")


def test_start_on_a_full_disk_gives_up_the_ballast_and_serves_consumers(quota: Quota) -> None:
    with story_on(quota, ONLY_WHEN_FULL) as story:
        with SocketClient(story.broker.port) as producer:
            for _ in range(50):
                assert story.publish(producer)
        story.broker.kill()
        quota.fill()
        story.broker.start()
        with SocketClient(story.broker.port) as consumer:
            assert not story.publish(consumer)
            consumer.consume("orders", 50)
            story.acknowledge(consumer, 50)
            assert len(story.stored) == 50
        assert story.broker.terminate() == 0  # it can also stop and start
        story.broker.start()
        story.broker.kill()
        assert story.lost() == []


@pytest.mark.slow
def test_without_ballast_acknowledgements_wait_for_room(quota: Quota, figure: Figure) -> None:
    settings = ONLY_WHEN_FULL, "storage.ballast_bytes=0"
    with story_on(quota, *settings, silence_s=SILENCE_S) as story:
        with story.clients() as (producer, consumer):
            story.fill_by_others(producer, consumer)
            assert len(story.stored) < story.acked
            quota.grow()  # acknowledgements that waited are stored
            story.wait_until_resumed(producer)
        story.broker.kill()
        figure(f"disk full, no ballast: {story}")
        assert story.lost() == []


@pytest.mark.parametrize("is_second", [False, True])
def test_audit_reveals_a_broker_that_confirms_on_a_full_disk(
    tmp_path: Path, is_second: bool, figure: Figure
) -> None:
    mutant, quota = "AnswersFullAsStored", Quota(tmp_path, is_second=is_second)
    with story_on(quota, ONLY_WHEN_FULL, mutant=mutant, silence_s=SILENCE_S) as story:
        with story.clients() as (producer, consumer), suppress(AssertionError, OSError):
            story.fill_by_others(producer, consumer)
        story.broker.kill()
        lost = story.lost()
        which = " with a writer process" if is_second else ""
        figure(f"disk full, answered as stored{which}: {len(lost)} lost")
        assert len(lost) > 0


@pytest.mark.parametrize("is_second", [False, True])
def test_read_only_file_system_confirms_nothing_and_stops_the_broker(
    tmp_path: Path, is_second: bool, figure: Figure
) -> None:
    shim = Shim(tmp_path)
    broker = shimmed_broker(shim, "--admin", "127.0.0.1:0", is_hasty=True, is_second=is_second)
    broker.start()
    try:
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"a") is None
            shim.is_read_only = True
            began = time.monotonic()
            peer.publish("orders", b"b", key=b"never")
            not_ready_s = wait_for_503(broker, began)
            assert broker.process is not None
            assert broker.process.wait(30) == 74
            assert peer.rest() == b""
        stopped_s = time.monotonic() - began
        log = broker.log.read_text(encoding="utf-8")
        assert "the file system is read-only" in log
        shim.heal()
        broker.kill()
        broker.start()
        with SocketClient(broker.port) as peer:
            peer.consume("orders", 2)
            assert peer.bodies(1) == [b"a"]
    finally:
        broker.kill()
    figure(
        f"read-only: 0 confirms, 503 after {not_ready_s:.1f} s, exit 74 after {stopped_s:.1f} s"
        f" (with a time limit of {MAX_TROUBLE_S} s)"
    )


def wait_for_503(broker: BrokerProcess, began: float) -> float:
    """Poll until the broker is not ready; return the seconds."""
    while time.monotonic() - began < 30:
        try:
            with urlopen(f"{broker.admin[0].rstrip('/')}/readyz"):
                time.sleep(0.02)
        except HTTPError as answer:
            answer.close()
            if answer.code == 503:
                return time.monotonic() - began
    raise AssertionError("the broker is ready although nothing can be stored")
