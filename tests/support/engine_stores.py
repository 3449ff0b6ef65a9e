"""The section ``store`` of a broker's settings for each engine, in the same test run."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.stores import ON_POSTGRES

ENGINES = ["postgres"] if ON_POSTGRES else ["sqlite", "postgres"]


@pytest.fixture(params=ENGINES)
def engine_store(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Return the settings of a new store: {} for SQLite, or those of an empty database."""
    if request.param == "sqlite":
        yield {}
        return
    server = request.getfixturevalue("postgres")
    with server.database() as name:
        yield {"url": server.url(name), "allow_asynchronous": True}


def query(store: dict[str, Any], text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(store["url"], autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []
