"""A tap of the engine sees each stored batch before any client is notified."""

from collections.abc import Callable
from pathlib import Path

import pytest

from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import publishing, queue_operations
from phpmq_lite.broker.operator.message_actions import ActionOptions, act_on_messages
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry, Batch
from phpmq_lite.operator_actions import Action
from phpmq_lite.server.status import BrokerHandle
from phpmq_lite.settings import Settings
from phpmq_lite.testing import running_service


def entry(action: str) -> AuditEntry:
    return AuditEntry("anna", "http", "10.0.0.5", action)


async def test_tap_sees_each_stored_batch_before_its_answers(tmp_path: Path) -> None:
    async with running_service(tmp_path / "data") as running:
        handle = running.service.handle
        seen: list[Batch] = []
        remove = handle.tap(seen.append)
        other: list[Batch] = []
        handle.tap(other.append)()  # looked for a moment

        def publish(core: Broker, reply: Callable[[tuple[list[str], int]], None]) -> None:
            answer = lambda it: reply((it.ids, len(seen)))  # noqa: E731
            publishing.publish(core, answer, entry("message.publish"), "orders", [(b"a", None)])

        (message_id,), tapped = await handle.run(publish)
        assert tapped == 1
        assert [m.message_id.decode() for m in seen[0].created] == [message_id]
        assert seen[0].bodies == [b"a"]
        outcome = await handle.run(
            act_on_messages, entry("message.delete"), Action.DELETE, [1], ActionOptions()
        )
        assert (outcome.changed, len(seen), other) == ([1], 2, [])
        remove()
        await handle.run(queue_operations.record_only, entry("x"))
        assert len(seen) == 2
        status = handle.status()
        commits = status.commits
        assert sum(commits.seconds_counts) == sum(commits.batch_counts) == commits.count - 1
        assert (commits.batch_sum, commits.seconds_sum > 0) == (2, True)
        assert status.audited == {"message.publish": 1, "message.delete": 1, "x": 1}


async def test_tap_that_fails_does_not_stop_the_broker(tmp_path: Path) -> None:
    async with running_service(tmp_path / "data") as running:
        handle = running.service.handle
        seen: list[Batch] = []

        def fail(batch: Batch) -> None:
            seen.append(batch)
            raise ValueError("a defect of whoever looks")

        handle.tap(fail)
        for _ in "ab":
            await handle.run(queue_operations.record_only, entry("x"))
        assert len(seen) == 1


async def test_tap_is_refused_before_there_is_an_engine() -> None:
    with pytest.raises(RefusedError, match="not ready"):
        BrokerHandle(Settings()).tap(lambda _batch: None)
