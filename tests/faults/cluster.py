"""Brokers on a PostgreSQL cluster, and faults of both under load; then all ledgers must agree.

``python -m tests.faults.cluster --faults 200`` starts three machines with Patroni, configured by
``deploy/cluster``, and three machines with a broker each, in network namespaces (as root; etcd,
PostgreSQL 15 and Patroni are needed).  ``--short`` is a run of 10 faults.  It prints how long no
publish was confirmed, by kind of fault, and ends with 1 if anything was lost, confirmed without a
majority, or written by a broker that another had replaced.  ``--seed N`` repeats the random choices
of a run, but not its timing; ``--only KIND,…`` chooses kinds of faults.
"""

import argparse
import asyncio
import logging
import os
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psycopg

from tests.faults.cluster_faults import FAULTS, RECOVERY_S, Cluster, Fault
from tests.faults.cluster_site import ServedBroker, Site
from tests.faults.ledger import CONTRADICTIONS, KEY_BYTES, QUEUES, Ledger, seq_of
from tests.support.patroni_cluster import PatroniCluster
from tests.support.seed import SEED

BROKERS: Final = 3
SHORT_FAULTS: Final = 10
DISK_BYTES: Final = 6 << 30
SETTLE_S: Final = 0.5  # what was on its way when a fault began arrives within
RECEIPTS_AFTER: Final = 100  # after a fault, before the next one

# Records the epoch, the number of the batch and the broker of each transaction that writes.  The
# row of the epoch was written by the same transaction: that is how a batch begins.
_LOG: Final = """
CREATE TABLE write_log (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  epoch bigint, batch bigint, is_fenced boolean, address inet
);
CREATE FUNCTION log_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO write_log (epoch, batch, is_fenced, address)
  SELECT epoch, batch, xmin::text <> pg_current_xact_id()::xid::text, inet_client_addr()
  FROM epoch;
  RETURN NULL;
END
$$;
CREATE TRIGGER log_message AFTER INSERT OR UPDATE OR DELETE ON message
  FOR EACH STATEMENT EXECUTE FUNCTION log_write();
CREATE TRIGGER log_history AFTER INSERT ON history
  FOR EACH STATEMENT EXECUTE FUNCTION log_write();
"""
_KEYS: Final = """
SELECT seq, substr(content, 1, %s) FROM body WHERE seq > %s AND NOT EXISTS (
  SELECT * FROM message WHERE message.seq = body.seq AND source_seq IS NOT NULL
) AND NOT EXISTS (
  SELECT * FROM history WHERE history.seq = body.seq AND source_seq IS NOT NULL
) ORDER BY seq
"""


@dataclass
class Run:
    """Injects faults one after another, and compares ledgers and database after each."""

    cluster: Cluster
    silences_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    loads: list[float] = field(default_factory=list)
    last_write: tuple[int, int] = (0, 0)  # epoch and batch
    writers: dict[int, str] = field(default_factory=dict)  # epoch -> address

    @property
    def site(self) -> Site:
        return self.cluster.site

    @property
    def ledger(self) -> Ledger:
        return self.cluster.site.ledger

    async def inject(self, fault: Fault) -> None:
        """Inject a fault, wait for service, heal it, and compare."""
        cluster, site, rng = self.cluster, self.site, self.ledger.rng
        await asyncio.to_thread(cluster.look)
        held_s = rng.uniform(*fault.hold_s)
        site.phase += 1
        site.watch()
        began_at = time.monotonic()
        hit = fault.hit(cluster)
        await asyncio.to_thread(hit.__enter__)
        try:
            if fault.has_service:
                await asyncio.sleep(held_s)
                await self._wait_for_receipts(began_at + held_s, 1, fault)
            else:
                await asyncio.sleep(SETTLE_S)
                site.lose_majority()
                await asyncio.sleep(held_s)
                if site.late_receipts and not fault.may_confirm:
                    self.ledger.offences.append(
                        f"{fault.name}: {site.late_receipts} receipts without a majority"
                    )
                site.watch()
        finally:
            await asyncio.to_thread(hit.__exit__, None, None, None)
        await self._wait_for_receipts(time.monotonic(), RECEIPTS_AFTER, fault)
        self.silences_s[fault.name].append(site.gap_s)
        self.loads.append(os.getloadavg()[0])
        # The database may still recover, but this must not matter.
        await self.compare()
        await asyncio.to_thread(cluster.database.wait_for_quorum, RECOVERY_S)
        site.phase += 1

    async def _wait_for_receipts(self, since: float, count: int, fault: Fault) -> None:
        """Wait until that many more publishes were confirmed, the last one after ``since``."""
        site, ends_at = self.site, time.monotonic() + RECOVERY_S
        enough = site.receipts + count
        while site.receipts < enough or site.last_receipt_at < since:
            if time.monotonic() > ends_at:
                self.ledger.offences.append(f"{fault.name}: no receipts for {RECOVERY_S:g} s")
                return
            await asyncio.sleep(0.05)

    async def compare(self) -> None:
        """Check that confirmed messages are in the database, and who has written to it."""
        ledger, confirmed = self.ledger, set(self.ledger.confirmed)
        keys, writes = await asyncio.to_thread(self._read, ledger.checked_to)
        for seq, key in keys:
            if ledger.seqs.setdefault(bytes(key), seq) != seq:
                ledger.offences.append(f"{key!r} was stored twice")
        ledger.checked_to = max([ledger.checked_to, *(seq for seq, _ in keys)])
        lost = confirmed - ledger.seqs.keys()
        ledger.offences += [f"{key!r} was confirmed and is lost" for key in lost]
        for epoch, batch, is_fenced, address in writes:
            if is_fenced or (epoch, batch) < self.last_write:
                ledger.offences.append(f"a write in epoch {epoch}, batch {batch} was not fenced")
            if self.writers.setdefault(epoch, address) != address:
                ledger.offences.append(f"two brokers wrote in epoch {epoch}")
            self.last_write = epoch, batch

    def _read(self, after: int) -> tuple[list[Any], list[Any]]:
        with connected(self.cluster.database) as connection:
            keys = connection.execute(_KEYS, (KEY_BYTES, after)).fetchall()
            writes = connection.execute(
                "SELECT epoch, batch, is_fenced, host(address) FROM write_log ORDER BY number"
            ).fetchall()
            connection.execute(
                "DELETE FROM write_log WHERE number < (SELECT max(number) FROM write_log)"
            )
        return keys, writes

    async def audit(self) -> None:
        """Wait until all queues are empty; then compare everything."""
        site, ledger = self.site, self.ledger
        site.rate = 1
        ends_at = time.monotonic() + RECOVERY_S
        while await asyncio.to_thread(self._alive) > 20:
            if time.monotonic() > ends_at:
                raise AssertionError("the queues are not drained")
            await asyncio.sleep(0.5)
        site.close()
        await asyncio.sleep(SETTLE_S)
        await self.compare()
        for broker in self.cluster.brokers:
            await asyncio.to_thread(broker.close)
        found = await asyncio.to_thread(self._contradictions)
        ledger.offences += [f"{text}: {rows}" for text, rows in found]
        known = await asyncio.to_thread(self._seqs)
        for key in ledger.confirmed:
            if ledger.seqs.get(key) not in known:
                ledger.offences.append(f"{key!r} was confirmed and is neither alive nor settled")
        for message_id in ledger.stored:
            if known.get(seq_of(message_id)) != "settled":
                ledger.offences.append(f"the end of {message_id!r} was stored and is lost")

    def _alive(self) -> int:
        with connected(self.cluster.database) as connection:
            [(count,)] = connection.execute(
                "SELECT count(*) FROM message JOIN queue USING (queue_id) WHERE name = ANY (%s)",
                [list(QUEUES)],
            ).fetchall()
        return int(count)

    def _contradictions(self) -> list[tuple[str, Any]]:
        with connected(self.cluster.database) as connection:
            answers = [
                (text, connection.execute(sql.encode()).fetchall())
                for text, sql in CONTRADICTIONS.items()
            ]
        return [(text, rows[:3]) for text, rows in answers if rows]

    def _seqs(self) -> dict[int, str]:
        with connected(self.cluster.database) as connection:
            return dict(
                connection.execute(
                    "SELECT seq, 'alive' FROM message UNION ALL SELECT seq, 'settled' FROM history"
                ).fetchall()
            )

    def figures(self) -> list[str]:
        ledger, site = self.ledger, self.site
        lines = [f"{'seconds without a receipt':36} {'n':>4} {'median':>7} {'max':>7}   limit"]
        for fault in FAULTS:
            if found := self.silences_s.get(fault.name):
                over = sum(one > (fault.limit_s or RECOVERY_S) for one in found)
                limit = f"{fault.limit_s:5g}, exceeded {over} times" if fault.limit_s else ""
                note = "" if fault.has_service else "  after the fault"
                lines.append(
                    f"{fault.name:36} {len(found):4} {statistics.median(found):7.2f} "
                    f"{max(found):7.2f}   {limit}{note}"
                )
        exits = Counter[int]()
        for broker in self.cluster.brokers:
            exits += broker.exits
        text = "\n".join(ledger.offences)
        lines += [
            f"{len(ledger.confirmed):,} confirmed, {text.count('lost')} lost, "
            f"{text.count('without a majority')} faults with receipts without a majority, "
            f"{text.count('not fenced')} writes not fenced, in {len(self.writers)} epochs",
            f"{ledger.dispatched:,} dispatches, {site.repeated} of them of held messages again, "
            f"{text.count('dispatched')} others twice; {sum(ledger.ended.values()):,} ends stored; "
            f"refusals: {dict(site.refusals)}; exits of brokers by code: {dict(exits)}",
            f"load average: median {statistics.median(self.loads or [0]):.1f}, "
            f"max {max(self.loads, default=0):.1f}, on {os.cpu_count()} processors",
        ]
        return lines


@contextmanager
def connected(database: PatroniCluster) -> Iterator[psycopg.Connection]:
    """Connect to the primary, as soon as there is one."""
    ends_at = time.monotonic() + RECOVERY_S
    while True:
        try:
            with psycopg.connect(
                database.url(connect_timeout=2, load_balance_hosts="random"), autocommit=True
            ) as connection:
                yield connection
                return
        except psycopg.OperationalError:
            if time.monotonic() > ends_at:
                raise
            time.sleep(0.2)


def chosen(rng: random.Random, count: int, *, is_short: bool, only: str) -> list[Fault]:
    """Return faults in random order, each kind about as often as its weight says."""
    kinds = [one for one in FAULTS if not only or one.name in only.split(",")]
    if is_short:
        kinds = [one for one in kinds if one.is_quick]
    total = sum(one.weight for one in kinds)
    faults = [one for one in kinds for _ in range(max(1, round(count * one.weight / total)))]
    rng.shuffle(faults)
    while len(faults) < count:
        faults.append(rng.choice(kinds))
    return faults[:count]


async def run(
    seed: int, count: int, *, rate: int, is_short: bool = False, only: str = "", folder: Path
) -> Run:
    """Start everything, inject faults, and compare."""
    ledger = Ledger(random.Random(seed))
    with ExitStack() as stack:
        database = stack.enter_context(PatroniCluster(BROKERS, disk_bytes=DISK_BYTES))
        os.environ["PGPASSFILE"] = str(database.passfile)
        site = Site(ledger, rate)
        brokers = [ServedBroker(database, number, folder) for number in range(BROKERS)]
        for broker in brokers:
            stack.callback(broker.close)
        loop = asyncio.get_running_loop()
        for broker in brokers:
            broker.on_exit = partial(loop.call_soon_threadsafe, site.disconnect, broker.address)
        running = Run(Cluster(database, brokers, ledger.rng, site))
        site.serve([broker.address for broker in brokers])
        start = FAULTS[0]
        await running._wait_for_receipts(0, 1, start)
        with connected(database) as connection:
            connection.execute(_LOG)
        await running._wait_for_receipts(0, RECEIPTS_AFTER, start)
        seen = 0
        try:
            for number, fault in enumerate(chosen(ledger.rng, count, is_short=is_short, only=only)):
                await running.inject(fault)
                print(
                    f"{number + 1:4} {fault.name:36} {running.silences_s[fault.name][-1]:6.2f} s, "
                    f"{len(ledger.confirmed):,} confirmed, {len(ledger.offences)} offences",
                    *ledger.offences[seen : seen + 3], file=sys.stderr, flush=True,
                )  # fmt: skip
                seen = len(ledger.offences)
            await running.audit()
        finally:
            site.close()
            if ledger.offences or sys.exc_info()[0]:
                logs = [broker.log for broker in brokers]
                logs += [database.path(node) / "patroni.log" for node in range(3)]
                for log in logs:
                    text = log.read_text(encoding="utf-8", errors="replace")
                    print(f"-- {log.parent.name}/{log.name}\n{text[-6_000:]}", file=sys.stderr)
    return running


def main() -> int:
    """Run from the command line, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster", description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--short", action="store_true", help=f"{SHORT_FAULTS} faults, about 2 min")
    parser.add_argument("--rate", type=int, default=200, help="publishes per second")
    parser.add_argument("--only", default="", help="names of kinds of faults, separated by commas")
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    count = SHORT_FAULTS if given.short else given.faults
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        ended = asyncio.run(
            run(given.seed, count, rate=given.rate, is_short=given.short, only=given.only,
                folder=Path(folder))
        )  # fmt: skip
    print(f"{count} faults in {time.monotonic() - began:.0f} s, seed {given.seed}")
    print("\n".join(ended.figures()))
    print("\n".join(ended.ledger.offences[:50]))
    return 1 if ended.ledger.offences else 0


if __name__ == "__main__":
    sys.exit(main())
