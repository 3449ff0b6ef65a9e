"""The ``worker`` command, whose processes handle a queue's messages with an app's handlers."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from inspect import signature
from operator import attrgetter
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import click

from phpmq_lite.cli.admin_client import ClientFactory, client_options
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import format_message_count, print_message
from phpmq_lite.cli.parameters import (
    FILE,
    LOG_FORMATS,
    LOG_LEVELS,
    duration,
    flag,
    number_option,
    option,
)
from phpmq_lite.cli.signals import StopRequest

if TYPE_CHECKING:
    from babelqueue import BabelQueue


_RESTART_S: Final = 1.0  # seconds to wait before replacing a process that was killed
_RESULTS: Final = {  # event of a worker -> what became of the message
    "job.ack": "handled",
    "job.retry": "retried",
    "job.dead_letter": "dead-lettered",
    "job.dropped": "dropped",
    "job.duplicate": "handled before",
    "job.released": "returned",
}
_REASONS: Final = {  # reason why a worker ended -> text shown to the user
    "stopped": "a signal arrived",
    "exit": "a handler exited",
    "jobs": "job limit reached",
    "runtime": "run time limit reached",
    "memory": "memory limit reached",
    "orphaned": "the parent process has ended",
    "empty": "the queue is empty",
}


def _queue_name(value: str) -> str:
    """Validate a queue name, because the broker dispatches only from queues with valid names."""
    from phpmq_lite.queue_settings import name_problem

    if (problem := name_problem(value)) is not None:
        raise click.BadParameter(f"the queue name {problem}")
    return value


def _memory_size(value: str) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(value))
    except ValidationError:
        raise click.BadParameter(f"{value!r} is not a size; use a value such as 256MiB") from None


@click.command()
@option(
    ("--app", "app_name"),
    "The app, created by phpmq_lite.envelopes.connect() or the SDK.",
    required=True,
    metavar="MODULE:ATTR|FILE.py:ATTR",
)
@option("--queue", "Queue to consume.  [default: the app's]", _queue_name, metavar="NAME")
@flag("--once", "Exit after one message.")
@number_option("--max-jobs", "Exit after N messages.", default=0, type=click.IntRange(min=0))
@option("--max-runtime", "Exit after this time, such as 90s, 15m or 1h.", duration)
@option(
    "--memory-limit",
    "Exit when the process uses more memory than this, such as 256MiB.",
    _memory_size,
    metavar="SIZE",
)
@flag("--stop-when-empty", "Exit when the queue is empty.")
@option(
    "--shutdown-timeout",
    "Time to finish the job after SIGTERM.  [default: the app's, or 30]",
    click.FloatRange(min=0),
    metavar="SECONDS",
)
@option(
    "--time-limit",
    "Time that a job may take, such as 90s or 2h, before its handler is ended and the job is "
    "retried; 0 means no limit.  [default: the app's, or 1h]",
    duration,
)
@number_option("--credit", "Maximum messages held, including the one being handled.", default=1)
@number_option("--processes", "Number of worker processes.", default=1, type=click.IntRange(1, 256))
@click.option("--parent", type=int, default=0, hidden=True)
@option("--log-level", "Minimum log level.", LOG_LEVELS, "info")
@option(
    "--log-format",
    "Log format; auto is console on a terminal, else json.",
    LOG_FORMATS,
    "auto",
    show_default=False,
)
@number_option("--max-attempts", "Maximum attempts per message.  [default: the app's, or 3]")
@option(
    "--backoff",
    "Delays before retries; the last one repeats.  [default: 1,5,15]",
    metavar="SECONDS,…",
)
@option(
    "--on-unknown",
    "Action for URNs without a handler.  [default: the app's, or fail]",
    click.Choice(["fail", "delete", "release", "dead_letter"]),
)
@option(
    "--dead-letter-queue",
    "Queue for dead letters.  [default: the app's, or QUEUE.dlq]",
    _queue_name,
    metavar="NAME",
)
@flag("--drop-exhausted", "Allow an app with dead letters disabled; drop exhausted messages.")
@option("--idempotency", "Handle each meta.id once; FILE stores handled ids.", FILE)
@partial(client_options, reconnect=False)
def worker(client: ClientFactory, app_name: str, queue: str | None, **options: Any) -> None:
    """Handle a queue's envelopes with an app's handlers.

    SIGTERM lets the running handler finish; a second SIGTERM requeues its message and exits
    immediately. Events are JSON lines on standard error. The exit code is 0, or that of a handler
    that exits.
    """
    if options["processes"] > 1:
        children = _WorkerProcesses()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, children.forward)
        for _ in range(options["processes"]):
            children.add()
        sys.exit(children.wait())
    from phpmq_lite import logs
    from phpmq_lite.envelopes import worker as running

    logs.configure(options["log_level"], options["log_format"])
    app = load_app(app_name)
    with StopRequest() as stop:
        stop.interruptible(partial(_connect, app, client, options))
    if stop.is_requested:
        print_message(_summary({}, "stopped"))
        return
    _apply_options(app, options)
    outcome = running.run_worker(
        app, queue, limits=_worker_limits(options), drop_exhausted=options["drop_exhausted"]
    )
    print_message(_summary(outcome.events, outcome.reason))


def _summary(events: Mapping[str, int], reason: str) -> str:
    counts = [(events[event], text) for event, text in _RESULTS.items() if events.get(event)]
    results = [f"{count:,} {text}" for count, text in counts]
    count, text = counts[0] if counts else (0, "handled")
    results[:1] = [f"{format_message_count(count)} {text}"]
    return f"{', '.join(results)}; {_REASONS[reason]}"


def load_app(name: str) -> "BabelQueue":
    """Import ``module:attr`` and return it or, if it is a factory, the app that it creates."""
    from babelqueue import BabelQueue

    module_name, sign, attribute = name.partition(":")
    if module_name.endswith(".py"):  # a path, as in src/mails.py:app
        folder, _, file = module_name.rpartition("/")
        module_name = file.removesuffix(".py")
        sys.path.insert(0, str(Path(folder).resolve()))
    if not sign or not attribute or not all(map(str.isidentifier, module_name.split("."))):
        raise click.BadParameter(
            f"{name!r} is not an app; use MODULE:ATTR or FILE.py:ATTR", param_hint="--app"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the app's module exists, but imports a missing one
        raise click.BadParameter(
            f"there is no module {module_name!r}", param_hint="--app"
        ) from None
    try:
        app: Any = attrgetter(attribute)(module)
    except AttributeError as error:
        raise click.BadParameter(str(error), param_hint="--app") from None
    if callable(app) and not isinstance(app, BabelQueue):
        try:
            signature(app).bind()
        except TypeError as error:
            raise click.BadParameter(f"{name}: {error}", param_hint="--app") from None
        app = app()
    if not isinstance(app, BabelQueue):
        raise click.BadParameter(
            f"{name} is a {type(app).__name__}, not an app", param_hint="--app"
        )
    return app


def _connect(app: "BabelQueue", client: ClientFactory, options: Mapping[str, Any]) -> None:
    """Set the app's transport; if ``connect()`` already set one, apply the flags to it."""
    from phpmq_lite.envelopes.transport import (
        DEFAULT_DELAYS_S,
        PhpmqTransport,
        RetryDelays,
        log_event,
    )
    from phpmq_lite.envelopes.worker_connection import WorkerConnection

    transport = app.transport
    if not isinstance(transport, PhpmqTransport):
        delays = None if app.retry_backoff > 0 else RetryDelays(DEFAULT_DELAYS_S)
        link = WorkerConnection(client(is_patient=True), options["credit"])
        app.transport = PhpmqTransport(link, _write, delays=delays)
        return
    if _is_on_command_line("url", "tls_ca", "tls_cert", "config", "setting__data"):
        transport.link = WorkerConnection(client(is_patient=True), transport.link.credit)
    if _is_on_command_line("credit"):
        transport.link.credit = options["credit"]
    app_hook = transport.hook

    def write_both(level: Any, event: str, context: Mapping[str, Any]) -> None:
        _write(level, event, context)
        app_hook(level, event, context)

    transport.hook = _write if app_hook is log_event else write_both


def _is_on_command_line(*names: str) -> bool:
    source = click.get_current_context().get_parameter_source
    return any(source(name) is click.core.ParameterSource.COMMANDLINE for name in names)


def _write(level: str, event: str, context: Mapping[str, Any]) -> None:
    from phpmq_lite import logs

    getattr(logs.get_logger("worker"), level)(event, **context)


def _apply_options(app: "BabelQueue", options: Mapping[str, Any]) -> None:
    from phpmq_lite.envelopes.idempotency import SqliteIdempotencyStore
    from phpmq_lite.envelopes.transport import PhpmqTransport, parse_delays

    transport = app.transport
    assert isinstance(transport, PhpmqTransport)  # noqa: S101 - _connect ensures it
    for name, attribute in (
        ("max_attempts", "max_attempts"),
        ("on_unknown", "on_unknown_urn"),
        ("shutdown_timeout", "shutdown_timeout"),
    ):
        if options[name] is not None:
            setattr(app, attribute, options[name])
    if options["time_limit"] is not None:
        transport.time_limit_s = options["time_limit"]
    if options["backoff"] is not None:
        try:
            transport.delays = parse_delays(options["backoff"])
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--backoff") from None
    if options["dead_letter_queue"] is not None:
        app.dead_letter_enabled = True
        app.dead_letter_queue = transport.dead_letter_queue = options["dead_letter_queue"]
    if options["idempotency"] is not None:
        transport.idempotency_store = store = SqliteIdempotencyStore(options["idempotency"])
        try:
            store.open()
        except sqlite3.Error as error:
            raise CommandError(f"cannot open {options['idempotency']}: {error}") from None


def _worker_limits(options: Mapping[str, Any]) -> Any:
    from phpmq_lite.envelopes.worker import WorkerLimits

    return WorkerLimits(
        max_jobs=1 if options["once"] else options["max_jobs"],
        max_runtime_s=options["max_runtime"] or 0,
        memory_bytes=options["memory_limit"] or 0,
        stop_when_empty=options["stop_when_empty"],
        parent=options["parent"],
    )


# -- several processes


class _WorkerProcesses:
    def __init__(self) -> None:
        self._command = [sys.executable, "-m", "phpmq_lite", *sys.argv[1:]]
        self._command += ["--processes", "1", "--parent", str(os.getpid())]
        self._is_stopping = Event()
        self.running: list[subprocess.Popen[bytes]] = []

    def add(self) -> None:
        """Start another worker, unless a signal has arrived."""
        if self._is_stopping.is_set():
            return
        # A worker in its own session receives Ctrl-C only once, through this process.
        child = subprocess.Popen(self._command, start_new_session=True)
        self.running.append(child)
        if self._is_stopping.is_set():  # a signal arrived while the worker was starting
            child.terminate()

    def forward(self, number: int, _frame: object) -> None:
        """Forward a signal to all workers, and stop replacing workers that are killed."""
        self._is_stopping.set()
        for child in self.running:
            if child.poll() is None:
                child.send_signal(number)

    def wait(self) -> int:
        """Wait for all workers, replacing killed ones, and return the highest exit code."""
        code = 0
        while self.running:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            if ended is not None and ended.si_pid not in {child.pid for child in self.running}:
                os.waitpid(ended.si_pid, 0)  # a child of the program that became this one
            for child in [child for child in self.running if child.poll() is not None]:
                self.running.remove(child)
                if child.returncode < 0 and not self._is_stopping.is_set():
                    print_message(
                        f"a worker was killed by signal {-child.returncode}; starting another"
                    )
                    time.sleep(_RESTART_S)
                    self.add()
                elif child.returncode not in (-signal.SIGTERM, -signal.SIGINT):  # not yet started
                    code = max(code, abs(child.returncode))
        return code
