"""A process that stages, publishes, claims and acknowledges is killed; its replies are durable."""

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORK = """
import sys
from pathlib import Path
from tests.support.core_and_store import Driver

driver = Driver(Path(sys.argv[1]))
for version in range(10_000):
    rows = [("orders", b"%d-%d" % (version, n), None) for n in range(40)]
    for verb, *given in (("stage", "t", rows), ("publish_staged", "app", version, ["t"]),
                         ("claim", "s", "orders", 30, 1 << 20), ("ack_claims", "s", version * 10)):
        options = {"after": 0, "is_whole": True} if verb == "stage" else {}
        question = driver.ask(verb, *given, **options)
        driver.step()
        assert question.is_answered
        assert not isinstance(question.answer, Exception), question.answer
    print(version, flush=True)
"""


@pytest.mark.parametrize("last", [3, 17])
def test_killed_process_leaves_whole_publishes_and_claims(tmp_path: Path, last: int) -> None:
    work = subprocess.Popen(
        [sys.executable, "-c", WORK, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert work.stdout is not None
    with work.stdout as lines:
        told = next(int(line) for line in lines if int(line) == last)
        work.send_signal(signal.SIGKILL)
    work.wait()
    connection = sqlite3.connect(tmp_path / "messages.db")
    [(version,)] = connection.execute("SELECT version FROM published").fetchall()
    assert version >= told
    bodies = [row[0] for row in connection.execute(
        "SELECT content FROM body JOIN (SELECT seq FROM message UNION ALL SELECT seq FROM history)"
        " USING (seq) ORDER BY seq")]  # fmt: skip
    assert bodies == [b"%d-%d" % (v, n) for v in range(version + 1) for n in range(40)]
    [(hi, acked)] = connection.execute("SELECT next_claim - 1, acked_upto FROM subscription")
    claims = connection.execute(
        "SELECT claim, content FROM claim JOIN body USING (seq) ORDER BY claim"
    ).fetchall()
    assert [number for number, _ in claims] == list(range(hi - len(claims) + 1, hi + 1))
    assert [body for _, body in claims] == bodies[hi - len(claims) : hi]
    assert acked <= hi - len(claims)
    assert acked >= told * 10
    [(held,)] = connection.execute("SELECT count(*) FROM message WHERE state = 1").fetchall()
    assert held == len(claims)
    connection.close()
