"""The blocking client's socket: a waiting thread still handles signals."""

import signal
import socket
import threading
import time

import pytest

from phpmq_lite.cli.signals import StopRequest
from phpmq_lite.client.buffered_socket import BufferedSocket


@pytest.mark.timeout(10)
def test_signal_that_interrupts_no_system_call_is_heard() -> None:
    """One that comes to another thread wakes this one as little as one just before the call."""

    def signal_this_thread() -> None:
        time.sleep(0.2)  # by now the other one waits; if not, the signal is the easier one
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def wait_for_ever() -> None:
        while True:
            stream.wait(None)

    ours, theirs = socket.socketpair()
    stream = BufferedSocket(ours)
    sender = threading.Thread(target=signal_this_thread)
    with theirs, StopRequest() as stop:
        sender.start()
        assert stop.interruptible(wait_for_ever) is None
    assert stop.is_requested
    sender.join()
    stream.close()
