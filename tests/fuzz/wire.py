"""Any bytes on real connections: the broker closes them or waits for more, and goes on.

``python -m tests.fuzz.wire --connections 100000`` opens that many, sends an input of the target
``parser`` in one to three pieces on each, and ends with 1 if the broker ended, left a traceback in
its log, did not close a connection whose bytes are wrong, or no longer confirms and dispatches a
message.  ``--seed`` repeats the inputs of a run, but not their order.
"""

import asyncio
import random
import socket
import struct
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import click

from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.frames import WireLimits
from tests.fuzz.api import store_flags, wait_until_active
from tests.fuzz.mutate import mutant
from tests.fuzz.streams import PARSER
from tests.support.fork_server import broker_process
from tests.support.frame_bytes import split_at
from tests.support.socket_client import SocketClient

AT_ONCE: Final = 32
CLOSED_S: Final = 30.0  # time limit for the end of a connection whose bytes are wrong
QUIET_S: Final = 0.02  # another one is left alone after so long; the broker may close it as well
_RESET: Final = struct.pack("ii", 1, 0)


async def attack(port: int, connections: int, seed: int) -> Counter[str]:
    outcomes, numbers = Counter[str](), iter(range(connections))
    seeds = PARSER.seeds()

    async def work() -> None:
        for number in numbers:
            dice = Random(seed * 1_000_003 + number)
            data = PARSER.fresh(dice) if dice.random() < 0.7 else dice.choice(seeds)
            if dice.random() < 0.7:
                data = mutant(PARSER, dice, data, dice.choice(seeds))
            outcomes[await send(port, data, dice)] += 1

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return outcomes


async def send(port: int, data: bytes, dice: Random) -> str:
    """Send an input on a new connection; return whether the broker closed it, or should have."""
    side = ServerSide(WireLimits())
    side.receive(data)
    is_wrong = side.error is not None
    local = f"127.0.{dice.randrange(1, 250)}.{dice.randrange(1, 250)}", 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=local)
    try:
        for piece in split_at(data, [dice.randrange(1 << 16) for _ in range(dice.randrange(3))]):
            writer.write(piece)
            await writer.drain()
        while await asyncio.wait_for(reader.read(1 << 16), CLOSED_S if is_wrong else QUIET_S):
            pass
        outcome = "closed by the broker"
    except TimeoutError:
        outcome = "wrong, and left open" if is_wrong else "left open"
    except ConnectionError:
        outcome = "reset"
    if dice.random() < 0.5 and not writer.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
    return outcome


def run(engine: str, connections: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Attack a new broker; return what became of the connections, and the tracebacks in its log."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        flags = ["--admin", "127.0.0.1:0", *stack.enter_context(store_flags(engine))]
        broker = stack.enter_context(broker_process(Path(folder) / "data", *flags))
        wait_until_active(broker)
        outcomes = asyncio.run(attack(broker.port, connections, seed))
        with SocketClient(broker.port) as peer:
            assert peer.confirm("afterwards", b"body") is None
            peer.consume("afterwards", 1)
            (dispatch,) = peer.dispatches(1)
            assert dispatch.content == b"body"
            peer.ack(dispatch)
            peer.barrier()
        log = broker.log.read_text(encoding="utf-8").splitlines()
    return outcomes, [line for line in log if "Traceback" in line]


@click.command(help=__doc__)
@click.option("--connections", default=100_000, show_default=True)
@click.option("--store", "engine", type=click.Choice(["sqlite", "postgres"]), default="sqlite")
@click.option("--seed", type=int, help="Repeats a run; a number of chance without.")
def main(connections: int, engine: str, seed: int | None) -> None:
    """Run the attack and say what was found."""
    seed = random.SystemRandom().randrange(1, 10**6) if seed is None else seed
    outcomes, tracebacks = run(engine, connections, seed)
    click.echo(f"wire, {engine}: {dict(outcomes)}, {len(tracebacks)} tracebacks, seed {seed}")
    click.echo("\n".join(tracebacks[:5]), nl=bool(tracebacks))
    sys.exit(bool(tracebacks or outcomes["wrong, and left open"]))


if __name__ == "__main__":
    main()
