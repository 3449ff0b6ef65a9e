"""Batches that a database refuses: they are not stored, and the broker goes on in its process.

A trigger or a constraint refuses one body, one audit row or one event, as a value that only the
database can judge would be refused.
"""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.postgres import pipeline
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.engine_stores import engine_store as engine_store
from tests.support.engine_stores import query
from tests.support.fork_server import BrokerProcess
from tests.support.http_users import HttpUser
from tests.support.postgres_server import PostgresServer
from tests.support.socket_client import SocketClient

POISON = b"poison"
OF_ORDERS = "WHERE queue_id = (SELECT queue_id FROM queue WHERE name = 'orders')"
KINDS = {  # sqlite: a condition of a trigger; postgres: a check
    "body": ("NEW.content = x'706f69736f6e'", "content <> 'poison'::bytea"),
    "audit": ("NEW.target = 'poison'", "target <> 'poison'"),
    "event": ("NEW.kind = 'requeue'", "kind <> 'requeue'"),
}


class Store:
    """The database of a running broker, changed behind its back."""

    def __init__(self, data: Path, store: dict[str, Any]) -> None:
        self.data = data
        self.store = store

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        if self.store:
            return query(self.store, text)
        with closing(sqlite3.connect(self.data / DATABASE, isolation_level=None)) as connection:
            return connection.execute(text).fetchall()

    def refuse(self, table: str) -> None:
        condition, check = KINDS[table]
        if self.store:
            self.rows(f"ALTER TABLE {table} ADD CONSTRAINT poison CHECK ({check}) NOT VALID")
        else:
            self.rows(
                f"CREATE TRIGGER poison BEFORE INSERT ON {table} WHEN {condition}"
                " BEGIN SELECT RAISE(ABORT, 'poison'); END"
            )


@asynccontextmanager
async def running(
    tmp_path: Path, engine_store: dict[str, Any], **sections: Any
) -> AsyncIterator[tuple[RunningBroker, Store]]:
    data = tmp_path / "data"
    async with running_service(data, store=engine_store, **sections) as broker:
        yield broker, Store(data, engine_store)


def until_closed(peer: SocketClient) -> int:
    """Wait for the end of a connection; return how many receipts and dispatches came before."""
    while peer.take():
        pass
    return len(peer.receipts) + len(peer.got)


async def test_client_of_a_refused_batch_gets_no_receipt_and_others_go_on(
    tmp_path: Path, engine_store: dict[str, Any]
) -> None:
    async with running(tmp_path, engine_store) as (broker, store):
        engine = broker.service.handle.engine
        assert engine is not None
        before = engine.core

        def talk() -> list[bytes]:
            with SocketClient(broker.port) as peer:
                peer.store("orders", b"1", b"2")
            store.refuse("body")
            with SocketClient(broker.port) as poisoner, SocketClient(broker.port) as consumer:
                consumer.consume("orders", 1)
                assert consumer.bodies(1) == [b"1"]  # which nobody holds afterwards
                poisoner.publish("orders", POISON, key=b"k")
                assert (until_closed(poisoner), until_closed(consumer)) == (0, 0)
            with SocketClient(broker.port) as peer:
                assert peer.confirm("orders", b"3", key=b"k") is None
                peer.consume("orders", 10)
                found = peer.dispatches(3)
                peer.ack(*found)
                peer.barrier()
            return [one.content for one in found]

        assert await asyncio.to_thread(talk) == [b"1", b"2", b"3"]
        assert engine.core is not before
        assert store.rows(f"SELECT count(*) FROM message {OF_ORDERS}") == [(0,)]
        assert store.rows(f"SELECT count(*) FROM history {OF_ORDERS}") == [(3,)]


async def test_request_of_a_refused_batch_is_answered_with_an_error(
    tmp_path: Path, engine_store: dict[str, Any]
) -> None:
    async with running(tmp_path, engine_store) as (broker, store):
        store.refuse("body")
        async with HttpUser(broker.admin_url) as local:
            for content, status in (("1", 201), ("poison", 503), ("2", 201)):
                answer = await local.request(
                    "POST", "/api/v1/queues/orders/messages", json={"content": content}
                )
                assert (content, answer.status) == (content, status)
            assert (
                "nothing"
                in (
                    await local.request(
                        "POST", "/api/v1/queues/orders/messages", json={"content": "poison"}
                    )
                ).text
            )
        assert store.rows(f"SELECT count(*) FROM message {OF_ORDERS}") == [(2,)]


@pytest.mark.parametrize("clients", [1, 100])  # one waits for its receipt, or many do
async def test_refused_audit_row_is_dropped_and_the_batch_is_stored(
    tmp_path: Path, engine_store: dict[str, Any], clients: int
) -> None:
    # From four fifths of the limit on, connections without a request give up their places.
    limits = {"http_connections": 200}
    async with running(tmp_path, engine_store, limits=limits) as (broker, store):
        engine = broker.service.handle.engine
        assert engine is not None
        before = engine.core
        store.refuse("audit")
        async with HttpUser(broker.admin_url) as local:
            answers = await asyncio.gather(*(
                local.request("POST", f"/api/v1/queues/{name}/messages", json={"content": "1"})
                for name in ["poison"] * clients
            ))  # fmt: skip
            assert {answer.status for answer in answers} == {201}
        assert store.rows("SELECT count(*) FROM message") == [(clients,)]
        assert store.rows("SELECT count(*) FROM audit WHERE target = 'poison'") == [(0,)]
        assert engine.core is before


async def test_refused_event_is_dropped_and_the_batch_is_stored(
    tmp_path: Path, engine_store: dict[str, Any]
) -> None:
    async with running(tmp_path, engine_store) as (broker, store):
        store.refuse("event")

        def requeue() -> list[bytes]:
            with SocketClient(broker.port) as peer:
                peer.store("orders", b"1", b"2")
                peer.consume("orders", 2)
                first, _ = peer.dispatches(2)
                peer.requeue(first)
                return peer.bodies(1)

        assert await asyncio.to_thread(requeue) == [b"1"]
        assert store.rows("SELECT count(*) FROM event WHERE kind = 'requeue'") == [(0,)]


def test_number_of_a_message_that_is_taken_ends_the_process(
    tmp_path: Path, engine_store: dict[str, Any]
) -> None:
    """The state in memory contradicts the database, so no client may get a reply."""
    flags = []
    if engine_store:
        flags = ["--store", engine_store["url"], "--set", "store.allow_asynchronous=true"]
    broker = BrokerProcess(tmp_path / "data", flags)
    broker.start()
    try:
        with SocketClient(broker.port) as peer:
            peer.store("orders", b"1")
            Store(broker.data, engine_store).rows(
                "INSERT INTO message (seq, token, queue_id, position, state, published_at, size,"
                " crc) VALUES (5, 1, 1, 5, 0, 1, 1, 1)"
            )
            peer.publish("orders", b"2", key=b"k")
            with suppress(ConnectionError):
                assert until_closed(peer) == 0
        assert broker.process is not None
        assert broker.process.wait(20) == os.EX_IOERR
    finally:
        broker.kill()


async def test_batch_that_the_driver_cannot_send_is_refused(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent again without end, and everything else waited."""
    send = pipeline.Pipeline._send

    def failing(self: Any, statement: Any, parameters: Any) -> None:
        if any(value is not None and POISON in value for value in parameters.values):
            raise OverflowError("size does not fit in an int")
        send(self, statement, parameters)

    monkeypatch.setattr(pipeline.Pipeline, "_send", failing)
    with postgres.database() as name:
        settings = {"url": postgres.url(name), "allow_asynchronous": True}
        async with running(tmp_path, settings) as (broker, store):

            def talk() -> None:
                with SocketClient(broker.port) as poisoner:
                    poisoner.publish("orders", POISON, key=b"k")
                    assert until_closed(poisoner) == 0
                with SocketClient(broker.port) as peer:
                    peer.store("orders", b"1")

            await asyncio.to_thread(talk)
            assert store.rows(f"SELECT count(*) FROM message {OF_ORDERS}") == [(1,)]
