"""The faults of a soak, injected one at a time, with the required reaction of the broker."""

import asyncio
import errno
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Final

from tests.faults.shim import Op
from tests.fuzz.streams import PARSER
from tests.soak.broker import FAIL_STOP, SoakBroker
from tests.soak.clients import Scene

HOUR_MS: Final = 3_600_000
STOP_S: Final = 12.0  # from SIGTERM to the exit
FAIL_STOP_S: Final = 20.0  # for the next sync and the exit after EIO
RESUME_S: Final = 10.0  # for publishing to resume once space is free
MARGIN_S: Final = 2.0  # for a loaded machine and for the interval of our publishes
FLOOD: Final = 200  # connections
PATHS: Final = """
/ /queues /clients /system /dead /insights /api/v1/queues /api/v1/messages?q=state:ready
/api/v1/history /metrics
"""
PAGES: Final = PATHS.split()


class Nemesis:
    """Injects faults; ``done`` counts them by name."""

    def __init__(self, broker: SoakBroker, scene: Scene, rng: random.Random, scale: float) -> None:
        self.broker, self.scene, self.rng, self._scale = broker, scene, rng, scale
        self.done: Counter[str] = Counter()
        self.stops_s: list[float] = []
        self.resumes_s: list[float] = []

    async def act(self, name: str) -> None:
        """Inject a fault, and restart the broker if it exited."""
        self.done[name] += 1
        await ALL[name](self)
        await self.restart_if_exited()

    async def restart_if_exited(self) -> None:
        """Record an exit that no fault caused, and restart the broker."""
        if self.broker.is_up and self.broker.code is not None:
            self.broker.is_up = False
            self.scene.ledger.add_problem(
                f"the broker exited unexpectedly, exit code {self.broker.code}"
            )
            await self._restart()

    async def _restart(self) -> None:
        await self.broker.start()
        await self.scene.ledger.compare(self.broker.data)

    async def _wait(self, least_s: float, most_s: float) -> None:
        """Wait for a random time, or until the broker exits."""
        await self.broker.exit_code(self._scale * self.rng.uniform(least_s, most_s))

    # -- the process

    async def kill(self) -> None:
        """Send SIGKILL."""
        self.broker.kill()
        await self._restart()

    async def terminate(self) -> None:
        """Send SIGTERM; the broker must exit with 0 in time."""
        began = monotonic()
        code = await self.broker.terminate()
        self.stops_s.append(monotonic() - began)
        if code != 0 or self.stops_s[-1] > STOP_S:
            self.scene.ledger.add_problem(
                f"SIGTERM: exit code {code} after {self.stops_s[-1]:.1f} s, not 0 in {STOP_S} s"
            )
        await self._restart()

    async def suspend(self) -> None:
        """Send SIGSTOP, and SIGCONT some seconds later."""
        self.broker.is_suspended = True
        process = self.broker.child.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await self._wait(2, 8)
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(1.5)  # the next reading still includes the suspension
        self.broker.is_suspended = False

    # -- the disk

    async def fail_sync(self) -> None:
        """Fail an fsync with EIO; the broker must exit with the code of a fail-stop."""
        broker = self.broker
        broker.is_up = False
        broker.shim.fail(Op.SYNC, self.rng.randrange(1, 30), errno.EIO)
        code = await broker.exit_code(FAIL_STOP_S)
        broker.shim.heal()
        if code != FAIL_STOP:
            self.scene.ledger.add_problem(f"EIO: exit code {code}, not {FAIL_STOP}")
        broker.kill()
        await self._restart()

    async def slow_disk(self) -> None:
        """Delay each fsync by 200 ms."""
        self.broker.shim.delay_sync_ms = 200
        await self._wait(3, 12)
        self.broker.shim.heal()

    async def fill_disk(self) -> None:
        """Fill the disk, then free space; publishing must resume."""
        shim = self.broker.shim
        shim.quota_bytes = shim.used_bytes + self.rng.choice((0, 1 << 20, 16 << 20))
        await self._wait(3, 12)
        shim.heal()
        freed_at = monotonic()
        while self.scene.last_confirm_at < freed_at and self.broker.code is None:
            await asyncio.sleep(0.05)
            if monotonic() - freed_at > RESUME_S + MARGIN_S:
                self.scene.ledger.add_problem(
                    f"nothing was published {RESUME_S} s after space was freed"
                )
                return
        self.resumes_s.append(monotonic() - freed_at)

    # -- the clock

    async def jump_clock(self) -> None:
        """Move the wall clock by an hour, forwards or backwards."""
        shim = self.broker.shim
        others = {-HOUR_MS, 0, HOUR_MS} - {shim.clock_offset_ms}
        near = [one for one in sorted(others) if abs(one - shim.clock_offset_ms) == HOUR_MS]
        shim.clock_offset_ms = self.rng.choice(near)
        await self._wait(2, 5)

    # -- the network

    async def partition(self) -> None:
        """Hold all traffic for some seconds."""
        self.broker.link.hold()
        await self._wait(3, 12)
        self.broker.link.release()

    async def delay(self) -> None:
        self.broker.link.delay_s = self.rng.uniform(0.02, 0.2)
        await self._wait(3, 12)
        self.broker.link.delay_s = 0.0

    async def reset(self) -> None:
        self.broker.link.reset()

    async def flood(self) -> None:
        """Open many connections directly to the broker; a third of them send invalid frames."""
        invalid = [data for name, data in PARSER.kept().items() if "-none-bad-" in name]
        peers = []
        for _ in range(FLOOD):
            with suppress(OSError):
                peers.append(await asyncio.open_connection("127.0.0.1", self.broker.child.port))
        for _, writer in peers[::3]:
            with suppress(OSError):
                writer.write(self.rng.choice(invalid))
                await writer.drain()
        await self._wait(1, 4)
        for _, writer in peers:
            writer.transport.abort()

    # -- the admin interface

    async def backup(self) -> None:
        await self.broker.request("/api/v1/backups", "POST")

    async def scrub(self) -> None:
        await self.broker.request("/api/v1/scrub", "POST")

    async def crowd(self) -> None:
        """Request all pages three times, concurrently."""
        await asyncio.gather(*(self.broker.request(page) for page in PAGES * 3))


ALL: Final[dict[str, Callable[[Nemesis], Awaitable[None]]]] = {
    "kill -9": Nemesis.kill,
    "SIGTERM": Nemesis.terminate,
    "EIO": Nemesis.fail_sync,
    "SIGSTOP": Nemesis.suspend,
    "slow fsync": Nemesis.slow_disk,
    "disk full": Nemesis.fill_disk,
    "clock jump": Nemesis.jump_clock,
    "partition": Nemesis.partition,
    "latency": Nemesis.delay,
    "reset": Nemesis.reset,
    "flood": Nemesis.flood,
    "backup": Nemesis.backup,
    "scrub": Nemesis.scrub,
    "UI load": Nemesis.crowd,
}
ENDINGS: Final = ("kill -9", "SIGTERM", "EIO")  # of the process
