"""Claims and staged rows through a running broker: its engine, its threads, its stop and start."""

import asyncio
from pathlib import Path
from typing import Any

from phpmq_lite.broker.pipeline import readers
from phpmq_lite.broker.pipeline.staging import StagedPublishResult, StagingStatus
from phpmq_lite.model import AuditEntry
from phpmq_lite.storage.read.consumers import HistoryReaderRow, StoredPipeline
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.core_rig import operation


async def ask(running: RunningBroker, verb: str, *arguments: Any, **options: Any) -> Any:
    entry = AuditEntry("anna", "http", "10.0.0.5", f"pipeline.{verb}")
    return await running.service.handle.run(operation(verb), entry, *arguments, **options)


async def test_claims_and_tokens_outlive_the_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    envelope = {"payload_policy": "envelope"}  # judged in the engine's thread
    async with running_service(data) as running:
        await ask(running, "create_queue", "strict")
        await ask(running, "configure", "strict", envelope)
        rows = [("orders", b"%d" % n, None) for n in range(5)]
        assert await ask(running, "stage", "t", rows, after=0, is_whole=True) == StagingStatus(5, 5)
        mixed = [("strict", b"bad", None), ("orders", b"5", None)]
        assert await ask(running, "stage", "u", mixed, after=0, is_whole=True) == StagingStatus(
            2, 4
        )
        done = await ask(running, "publish_staged", "app", 0, ["t"])
        assert done == StagedPublishResult(5, False, 0)
        assert await ask(running, "claim", "s", "orders", 3, 1 << 20) == 3
    async with running_service(data) as running:
        both = await asyncio.gather(
            ask(running, "publish_staged", "app", 1, ["u"]),
            ask(running, "publish_staged", "app", 1, ["u"]),
        )
        assert sorted(both) == [StagedPublishResult(0, True, 0), StagedPublishResult(2, False, 1)]
        assert await ask(running, "claim", "s", "orders", 9, 1 << 20, after=0) == 3
        assert await ask(running, "ack_claims", "s", 2) == 2
        assert await ask(running, "claim", "s", "orders", 9, 1 << 20, after=3) == 6
        queues = running.service.handle.engine.core.queues  # type: ignore[union-attr]
        assert (queues["orders"].claimed, queues["strict.dlq"].row.live_count) == (4, 1)


async def test_pages_read_subscriptions_and_readers(tmp_path: Path) -> None:
    async with running_service(tmp_path / "data") as running:
        rows = [("orders", b"abc", None)] * 3
        await ask(running, "stage", "t", rows, after=0, is_whole=True)
        await ask(running, "publish_staged", "app", 0, ["t"])
        await ask(running, "claim", "s", "orders", 2, 1 << 20)
        await ask(running, "claim", "empty", "orders", 1, 1 << 20)
        await ask(running, "release_claims", "empty")
        entry = AuditEntry("anna", "http", "", "reader.report")
        await running.service.handle.run(
            readers.report_reader, entry, "archive", 7, owner="anna", is_admin=False
        )
        context = await running.service.pages.open()
        pipeline = StoredPipeline(context.readers)
        empty, mine = await pipeline.subscriptions()
        assert (empty.name, empty.count, empty.bytes, empty.oldest_at_ms, empty.hi,
                empty.acked_upto) == ("empty", 0, 0, None, 1, 1)  # fmt: skip
        assert (mine.name, mine.queue, mine.count, mine.bytes, mine.hi, mine.acked_upto) == (
            "s", "orders", 2, 6, 2, 0,
        )  # fmt: skip
        assert mine.oldest_at_ms is not None
        assert await pipeline.subscription("s") == mine
        assert await pipeline.subscription("none") is None
        [reader] = await pipeline.readers()
        assert reader == HistoryReaderRow("archive", 7, reader.at_ms, "anna")
