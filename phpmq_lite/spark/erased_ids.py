"""Keyed hashes of erased ids, by which one can check later that an id was erased.

Each run has a file, ``erased/<number>.json``, without any data. The key, ``erased/key``, is created
with the first one; without it, the hashes say nothing.
"""

import hmac
import json
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Final

from phpmq_lite.spark.results_folder import ResultsFolder, read_json_files

ERASED: Final = "erased"
_KEY: Final = f"{ERASED}/key"


def store_hashes(files: ResultsFolder, ids: Iterable[str], at_ms: int) -> Callable[[int], None]:
    """Store the hashes of message and trace ids; return a function that notes the end (Unix ms)."""
    key = files.read(_KEY) or secrets.token_hex(32)
    files.write(_KEY, key)
    path = f"{ERASED}/{len(files.names(ERASED)):08d}.json"
    record = {
        "at_ms": at_ms,
        "finished_at": None,
        "hashes": sorted({_hash(key, id_) for id_ in ids}),
    }
    files.write(path, json.dumps(record))
    return lambda end_ms: files.write(path, json.dumps({**record, "finished_at": end_ms}))


def runs_with(files: ResultsFolder, id_: str) -> list[dict[str, Any]]:
    """Return the runs that erased a message or trace id, without their hashes."""
    key = files.read(_KEY)
    digest = "" if key is None else _hash(key, id_)
    runs = [run for run in read_json_files(files, ERASED) if digest in run["hashes"]]
    return [{**run, "hashes": len(run["hashes"])} for run in runs]


def _hash(key: str, id_: str) -> str:
    return hmac.digest(key.encode(), id_.encode(), "sha256").hex()
