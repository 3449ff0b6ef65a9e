"""Drivers of PHPMQ Lite for a harness that compares brokers on one machine.

The harness has a package ``drivers`` whose ``base.py`` defines a driver: how to start the broker,
and codecs that convert counts to bytes and received bytes to counts. ``peers.py`` runs such a
harness with these drivers.

``phpmq-lite`` publishes with keys and waits for receipts. ``phpmq-lite-plain`` publishes without
replies, for throughput and latency from end to end, where the consumer's acknowledgements prove
delivery. ``PHPMQ_LITE_BUILDS=compiled=/path/to/python`` adds a driver ``phpmq-lite-compiled`` whose
broker runs in that interpreter; names and paths are separated by commas.
"""

import os
import sys
from pathlib import Path

from drivers.base import Consumer, Driver, Launch, Publisher  # type: ignore[import-not-found]

from phpmq_lite.bench.traffic import BARRIER_QUEUE, DispatchStream, PublishStream


class ConfirmedPublisher(Publisher):  # type: ignore[misc]
    """Publishes with keys; each receipt confirms one stored message."""

    fresh = True  # a repeated key would not be stored again

    def open(self) -> None:
        """Implement the harness: the socket is connected."""
        self.stream = PublishStream(self.queue, len(self.body))

    def encode(self, count: int) -> bytes:
        """Return the bytes of ``count`` publishes."""
        return self.stream.encode(count)

    def feed(self, data: bytes) -> int:
        """Process received bytes; return the number of confirmed publishes."""
        return self.stream.feed(data)


class PlainPublisher(ConfirmedPublisher):
    """Publishes without keys; the broker does not reply."""

    confirms = False
    fresh = False

    def open(self) -> None:
        """Implement the harness."""
        self.stream = PublishStream(self.queue, len(self.body), is_confirmed=False)


class AcknowledgingConsumer(Consumer):  # type: ignore[misc]
    """Acknowledges at once; a confirmed publish proves that the acknowledgements are stored."""

    ack_replies = False

    def open(self) -> None:
        """Implement the harness."""
        self.stream = DispatchStream(self.queue, self.size, self.prefetch)
        self.proof = PublishStream(BARRIER_QUEUE, 1)
        self.is_asked = self.is_proved = False
        self.sock.sendall(self.stream.consume)

    def feed(self, data: bytes) -> bytes:
        """Process received bytes; return the acknowledgements of the dispatches in them."""
        if self.is_asked:  # everything has been received
            self.is_proved = self.proof.feed(data) > 0
            return b""
        answer = self.stream.feed(data)
        self.received = self.stream.received
        return answer

    def barrier(self) -> bytes:
        """Return the request that proves that every acknowledgement is stored."""
        self.is_asked = True
        return self.proof.encode(1)

    @property
    def settled(self) -> bool:
        """Return whether the proof was received."""
        return self.is_proved


class Confirmed(Driver):  # type: ignore[misc]
    """Runs ``serve`` with its defaults on one port."""

    name = "phpmq-lite"
    description = "PHPMQ Lite, confirmed publishing; a receipt follows a commit with fsync"
    publisher = ConfirmedPublisher
    consumer = AcknowledgingConsumer
    python = sys.executable

    def launch(self, directory: Path, port: int) -> Launch:
        """Return the command line, with the driver's interpreter."""
        serve = [self.python, "-m", "phpmq_lite", "serve", "--data", str(directory / "data")]
        listeners = ["--listen", f"127.0.0.1:{port}", "--legacy-listen", "none", "--admin", "none"]
        limits = ["--set", "limits.connections=3000"]
        limits += ["--set", "limits.connections_per_loopback_address=3000"]
        return Launch([*serve, *listeners, *limits])


class Plain(Confirmed):
    """The same broker with plain publishing."""

    name = "phpmq-lite-plain"
    description = "PHPMQ Lite, plain publishing; a consumer sees only what is on disk"
    publisher = PlainPublisher


def other_builds(text: str) -> list[Confirmed]:
    """Return a confirmed driver for each ``name=python``."""
    pairs = [item.split("=", 1) for item in text.split(",") if item]
    return [
        type("Build", (Confirmed,), {"name": f"phpmq-lite-{name}", "python": python})()
        for name, python in pairs
    ]


DRIVERS = [Confirmed(), Plain(), *other_builds(os.environ.get("PHPMQ_LITE_BUILDS", ""))]
