"""What befalls the broker during a soak, one thing at a time, and what it must answer to it."""

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
STOP_S: Final = 12.0  # SIGTERM: an exit by then
FAIL_STOP_S: Final = 20.0  # EIO: a sync comes, and then the exit
RESUME_S: Final = 10.0  # publishing goes on so soon after room has come back
MARGIN_S: Final = 2.0  # what a loaded machine and our own pace may add
FLOOD: Final = 200  # connections
PAGES: Final = (
    "/", "/queues", "/clients", "/system", "/dead", "/insights", "/api/v1/queues",
    "/api/v1/messages?q=state:ready", "/api/v1/history", "/metrics",
)  # fmt: skip


class Nemesis:
    """Does one thing after the other; ``done`` counts them by name."""

    def __init__(self, house: SoakBroker, scene: Scene, rng: random.Random, scale: float) -> None:
        self.house, self.scene, self.rng, self._scale = house, scene, rng, scale
        self.done: Counter[str] = Counter()
        self.stops_s: list[float] = []
        self.resumes_s: list[float] = []

    async def act(self, name: str) -> None:
        """Do one thing, and see to it that the broker runs afterwards."""
        self.done[name] += 1
        await ALL[name](self)
        await self.look_after()

    async def look_after(self) -> None:
        """See that nothing has ended that nobody has ended."""
        if self.house.is_up and self.house.code is not None:
            self.house.is_up = False
            self.scene.books.offend(f"it ended by itself, exit code {self.house.code}")
            await self._start_again()

    async def _start_again(self) -> None:
        await self.house.start()
        await self.scene.books.compare(self.house.data)

    async def _a_while(self, least_s: float, most_s: float) -> None:
        """Wait; ends early where the broker does."""
        await self.house.exit_code(self._scale * self.rng.uniform(least_s, most_s))

    # -- the process

    async def kill(self) -> None:
        """SIGKILL."""
        self.house.kill()
        await self._start_again()

    async def terminate(self) -> None:
        """SIGTERM: it exits with 0, in time."""
        began = monotonic()
        code = await self.house.terminate()
        self.stops_s.append(monotonic() - began)
        if code != 0 or self.stops_s[-1] > STOP_S:
            self.scene.books.offend(
                f"SIGTERM: exit code {code} after {self.stops_s[-1]:.1f} s, not 0 in {STOP_S} s"
            )
        await self._start_again()

    async def hold_up(self) -> None:
        """SIGSTOP for some seconds."""
        self.house.is_held = True
        process = self.house.broker.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await self._a_while(2, 8)
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(1.5)  # its next reading is still about that
        self.house.is_held = False

    # -- the disk

    async def fail_a_sync(self) -> None:
        """EIO at some fsync: it stops with the code of a fail-stop."""
        house = self.house
        house.is_up = False
        house.shim.fail(Op.SYNC, self.rng.randrange(1, 30), errno.EIO)
        code = await house.exit_code(FAIL_STOP_S)
        house.shim.heal()
        if code != FAIL_STOP:
            self.scene.books.offend(f"EIO: exit code {code}, not {FAIL_STOP}")
        house.kill()
        await self._start_again()

    async def slow_disk(self) -> None:
        """Each fsync takes 200 ms longer."""
        self.house.shim.delay_sync_ms = 200
        await self._a_while(3, 12)
        self.house.shim.heal()

    async def fill_disk(self) -> None:
        """No room is left; later there is, and publishing resumes by itself."""
        shim = self.house.shim
        shim.quota_bytes = shim.used_bytes + self.rng.choice((0, 1 << 20, 16 << 20))
        await self._a_while(3, 12)
        shim.heal()
        freed_at = monotonic()
        while self.scene.last_confirm_at < freed_at and self.house.code is None:
            await asyncio.sleep(0.05)
            if monotonic() - freed_at > RESUME_S + MARGIN_S:
                self.scene.books.offend(f"nothing was published {RESUME_S} s after room came back")
                return
        self.resumes_s.append(monotonic() - freed_at)

    # -- the clock

    async def turn_clock(self) -> None:
        """The wall clock jumps by an hour, to one side or back."""
        shim = self.house.shim
        others = {-HOUR_MS, 0, HOUR_MS} - {shim.clock_offset_ms}
        near = [one for one in sorted(others) if abs(one - shim.clock_offset_ms) == HOUR_MS]
        shim.clock_offset_ms = self.rng.choice(near)
        await self._a_while(2, 5)

    # -- the network

    async def part(self) -> None:
        """Nothing gets through, then all of it."""
        self.house.link.hold()
        await self._a_while(3, 12)
        self.house.link.let_go()

    async def delay(self) -> None:
        """Everything takes longer."""
        self.house.link.delay_s = self.rng.uniform(0.02, 0.2)
        await self._a_while(3, 12)
        self.house.link.delay_s = 0.0

    async def reset(self) -> None:
        """All connections are torn."""
        self.house.link.reset()

    async def flood(self) -> None:
        """Many connect at once, past the link; some say what nobody understands."""
        strange = [data for name, data in PARSER.kept().items() if "-none-bad-" in name]
        peers = []
        for _ in range(FLOOD):
            with suppress(OSError):
                peers.append(await asyncio.open_connection("127.0.0.1", self.house.broker.port))
        for _, writer in peers[::3]:
            with suppress(OSError):
                writer.write(self.rng.choice(strange))
                await writer.drain()
        await self._a_while(1, 4)
        for _, writer in peers:
            writer.transport.abort()

    # -- people

    async def back_up(self) -> None:
        """A backup is made."""
        await self.house.ask("/api/v1/backups", "POST")

    async def scrub(self) -> None:
        """All bodies are looked at."""
        await self.house.ask("/api/v1/scrub", "POST")

    async def crowd(self) -> None:
        """Many look at the pages at once."""
        await asyncio.gather(*(self.house.ask(page) for page in PAGES * 3))


ALL: Final[dict[str, Callable[[Nemesis], Awaitable[None]]]] = {
    "kill -9": Nemesis.kill,
    "SIGTERM": Nemesis.terminate,
    "EIO": Nemesis.fail_a_sync,
    "SIGSTOP": Nemesis.hold_up,
    "slow fsync": Nemesis.slow_disk,
    "disk full": Nemesis.fill_disk,
    "clock jump": Nemesis.turn_clock,
    "partition": Nemesis.part,
    "latency": Nemesis.delay,
    "reset": Nemesis.reset,
    "flood": Nemesis.flood,
    "backup": Nemesis.back_up,
    "scrub": Nemesis.scrub,
    "UI load": Nemesis.crowd,
}
ENDINGS: Final = ("kill -9", "SIGTERM", "EIO")  # of the process
