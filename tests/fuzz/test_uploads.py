"""Hostile Arrow uploads to a real broker: each gets an answer, and the broker goes on.

``PHPMQ_UPLOADS=10000`` sends more of them.
"""

import json
import os
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

from tests.fuzz.api import store_flags, wait_until_active
from tests.fuzz.mutate import mutant
from tests.fuzz.test_fuzz import SEED
from tests.fuzz.uploads import UPLOADS
from tests.integration.test_pipeline_api import stream
from tests.support.fork_server import broker_process

UPLOADS_MOST = int(os.environ.get("PHPMQ_UPLOADS", "3000"))
COUNTS = ("0", "1", "2", "-1", "1.0", "٣", "9" * 18, "9" * 30, "")
KEYS = ("a", "a", "b", "k" * 255, "ä" * 100)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
@pytest.mark.parametrize("uploads", [300, pytest.param(UPLOADS_MOST, marks=pytest.mark.slow)])
def test_broker_answers_hostile_uploads_and_goes_on(
    tmp_path: Path, figure: Callable[[str], None], engine: str, uploads: int
) -> None:
    """None ends it, leaves a traceback in its log, or is answered with 500 or 502."""
    dice, statuses = Random(SEED), Counter[str]()
    with (
        store_flags(engine) as flags,
        broker_process(tmp_path / "data", "--admin", "127.0.0.1:0", *flags) as broker,
    ):
        wait_until_active(broker)
        host = urlsplit(broker.admin[0]).netloc or broker.admin[0]
        connection = HTTPConnection(host, timeout=60)

        def post(path: str, body: bytes, **headers: str) -> tuple[int, dict[str, object]]:
            connection.request("POST", f"/api/v1/pipeline/{path}", body, headers)
            answer = connection.getresponse()
            statuses[f"{path.partition('?')[0]} {answer.status}"] += 1
            found: dict[str, object] = json.loads(answer.read())
            assert answer.status not in (500, 502), (SEED, sum(statuses.values()), found)
            return answer.status, found

        def stage(token: str, raw: bytes, **headers: str) -> tuple[int, dict[str, object]]:
            media = {"Content-Type": "application/vnd.apache.arrow.stream"}
            return post(f"stage?token={token}", raw, **media, **headers)

        def publish(token: str, key: str, version: int) -> tuple[int, dict[str, object]]:
            asked = {"app_id": key, "version": version, "tokens": [token]}
            media = {"Content-Type": "application/json"}
            return post("publish", json.dumps(asked).encode(), **media)

        previous = stream(("orders", "a", None))
        for number in range(uploads):
            raw = UPLOADS.fresh(dice)
            if dice.random() < 0.4:
                raw = mutant(UPLOADS, dice, raw, previous)
            previous = raw
            count = {"X-Row-Count": dice.choice(COUNTS)} if dice.random() < 0.3 else {}
            if count and not count["X-Row-Count"].isascii():
                count = {"X-Row-Count": count["X-Row-Count"].encode().decode("latin-1")}
            token = f"t{number - dice.choice((0, 0, 0, 1))}"
            if stage(token, raw, **count)[0] == 200 and dice.random() < 0.5:
                publish(token, dice.choice(KEYS), number)
        assert stage("last", stream(("orders", "a", None), ("orders", "b", 5)))[0] == 200
        assert publish("last", "last", 1)[1]["published"] == 2
        connection.close()
        log = broker.log.read_text(encoding="utf-8")
    figure(f"hostile uploads, {engine}: {dict(statuses)}, seed {SEED}")
    assert statuses["stage 200"] > uploads // 50
    assert statuses["stage 422"] > uploads // 4
    assert "Traceback" not in log
