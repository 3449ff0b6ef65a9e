"""A connection to the server: configured, with the rows of a store."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import psycopg
from psycopg import Notify, RawCursor
from psycopg.types.numeric import Int8Dumper

from phpmq_lite.errors import OutcomeUnknownError, StorageError
from phpmq_lite.storage.postgres import quorum
from phpmq_lite.storage.postgres.quorum import ConnectionBrokenError, Quorum
from phpmq_lite.storage.postgres.statements import compiled
from phpmq_lite.storage.postgres.values import encode_rows
from phpmq_lite.storage.statements import load
from phpmq_lite.storage.store import Store

Connection = psycopg.Connection[tuple[Any, ...]]
_SESSION: Final = (
    "SET synchronous_commit = on",
    "SET statement_timeout = 0",
    "SET idle_in_transaction_session_timeout = 0",
    "SET lock_timeout = '5s'",
    "SET default_transaction_isolation = 'read committed'",
    "SET client_min_messages = warning",
)
