"""PHPMQ Lite as one broker among others, for a harness that compares brokers on one machine.

The harness has a package ``drivers`` whose ``base.py`` says what a driver is: how to start the
broker, and codecs that turn counts into bytes and received bytes into counts.  ``peers.py`` beside
this file runs such a harness with these drivers added.

``phpmq-lite`` publishes with keys and waits for receipts.  ``phpmq-lite-plain`` publishes as the
protocol has it, without answers: for throughput from end to end and for latency, where the
consumer's acknowledgements prove everything.
"""

import sys
from pathlib import Path

from drivers.base import Consumer, Driver, Launch, Publisher  # type: ignore[import-not-found]

from phpmq_lite.bench.traffic import BARRIER_QUEUE, DispatchStream, PublishStream


class ConfirmedPublisher(Publisher):  # type: ignore[misc]
    """Publishes with keys; each receipt confirms one message that is on disk."""

    fresh = True  # a repeated key would be recognized and not stored again

    def open(self) -> None:
        """See the harness: called when the socket is connected."""
        self.stream = PublishStream(self.queue, len(self.body))

    def encode(self, count: int) -> bytes:
        """Return the bytes of ``count`` publishes."""
        return self.stream.encode(count)

    def feed(self, data: bytes) -> int:
        """Take received bytes; return how many publishes they confirm."""
        return self.stream.feed(data)


class PlainPublisher(ConfirmedPublisher):
    """Publishes without keys: nothing comes back."""

    confirms = False
    fresh = False

    def open(self) -> None:
        """See the harness."""
        self.stream = PublishStream(self.queue, len(self.body), is_confirmed=False)


class AcknowledgingConsumer(Consumer):  # type: ignore[misc]
    """Acknowledges at once.  An acknowledgement has no answer, so a confirmed publish proves it."""

    ack_replies = False

    def open(self) -> None:
        """See the harness."""
        self.stream = DispatchStream(self.queue, self.size, self.prefetch)
        self.proof = PublishStream(BARRIER_QUEUE, 1)
        self.is_asked = self.is_proved = False
        self.sock.sendall(self.stream.consume)

    def feed(self, data: bytes) -> bytes:
        """Take received bytes; return the acknowledgements of the dispatches in them."""
        if self.is_asked:  # everything was received before
            self.is_proved = self.proof.feed(data) > 0
            return b""
        answer = self.stream.feed(data)
        self.received = self.stream.received
        return answer

    def barrier(self) -> bytes:
        """Return what makes the broker prove that every acknowledgement is stored."""
        self.is_asked = True
        return self.proof.encode(1)

    @property
    def settled(self) -> bool:
        """Tell whether it has."""
        return self.is_proved


class Confirmed(Driver):  # type: ignore[misc]
    """``serve`` with its defaults, on one port."""

    name = "phpmq-lite"
    description = "PHPMQ Lite, confirmed publishing; a receipt follows a commit with fsync"
    publisher = ConfirmedPublisher
    consumer = AcknowledgingConsumer

    def launch(self, directory: Path, port: int) -> Launch:
        """Return the command line; the interpreter of the harness is ours too."""
        serve = [sys.executable, "-m", "phpmq_lite", "serve", "--data", str(directory / "data")]
        listeners = ["--listen", f"127.0.0.1:{port}", "--legacy-listen", "none", "--admin", "none"]
        limits = ["--set", "limits.connections=3000"]
        limits += ["--set", "limits.connections_per_loopback_address=3000"]
        return Launch([*serve, *listeners, *limits])


class Plain(Confirmed):
    """The same broker, with a publisher that is not answered."""

    name = "phpmq-lite-plain"
    description = "PHPMQ Lite, plain publishing; a consumer sees only what is on disk"
    publisher = PlainPublisher


DRIVERS = [Confirmed(), Plain()]
