"""Process 1 of a container: runs the command in a child process, and reaps all others."""

import os
import signal
from contextlib import suppress
from typing import Final

_NOT_FORWARDED: Final = (
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}
    | {signal.SIGSYS, signal.SIGTRAP}  # up to here, errors of this process
    | {signal.SIGTTIN, signal.SIGTTOU}  # these stop a process in the background
)


def delegate() -> None:
    """Return in a child process if this is process 1, which then only waits; else just return.

    The kernel makes process 1 the parent of all orphans, and ignores signals that process 1 does
    not handle.  Programs expect neither.  Must be called before any thread is started.
    """
    if os.getpid() != 1:
        return
    forwarded = signal.valid_signals() - _NOT_FORWARDED
    original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    command = os.fork()
    if command == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, original_mask)
        return
    while True:
        received = signal.sigwaitinfo(forwarded)
        if received.si_signo == signal.SIGCHLD:
            _reap(command)
        elif received.si_code <= 0:  # a terminal sends its signals to the command, too
            with suppress(ProcessLookupError):
                os.kill(command, received.si_signo)


def _reap(command: int) -> None:
    """Reap all children that have ended, and exit if the command is one of them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
