"""``worker``: an app's handlers on a queue, in this process or in several."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import click

from phpmq_lite.cli.broker_connection import ClientFactory, client_options
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import format_message_count, print_message
from phpmq_lite.cli.parameters import duration

if TYPE_CHECKING:
    from babelqueue import BabelQueue

    from phpmq_lite.envelopes.retry_delays import RetryDelays
    from phpmq_lite.envelopes.transport import EventHook

_RESTART_S: Final = 1.0  # after a process of ours was killed
_ENDS: Final = {  # reason of an outcome -> what it says at the end
    "stopped": "it was told to stop",
    "exit": "a handler ended it",
    "jobs": "so many were asked for",
    "runtime": "it ran for as long as it may",
    "memory": "it has as much memory as it may",
    "orphaned": "the worker that began it is gone",
    "empty": "the queue is empty",
}
_STRATEGIES: Final = ("fail", "delete", "release", "dead_letter")


def _queue_name(value: str) -> str:
    """Give the name of a queue, if one can be called that; a click type.

    The worker would else be refused in each of its turns, and go on.
    """
    from phpmq_lite.queue_settings import name_problem

    if (problem := name_problem(value)) is not None:
        raise click.BadParameter(f"the name of the queue {problem}")
    return value


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what is about the run; handlers and back-off have options of their own."""
    seconds = click.FloatRange(min=0)
    for option in (
        click.option("--log-format", type=click.Choice(["auto", "json", "console"]),
                     default="auto", help="auto: console on a terminal, else JSON."),
        click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
                     default="info", show_default=True, help="The least that is written."),
        click.option("--parent", type=int, default=0, hidden=True),
        click.option("--processes", type=click.IntRange(min=1, max=256), default=1,
                     show_default=True, help="So many workers, each in a process of its own."),
        click.option("--credit", type=click.IntRange(min=1), default=1, show_default=True,
                     help="Messages held at a time, the one being handled included."),
        click.option("--shutdown-timeout", type=seconds, metavar="SECONDS",
                     help="A handler has so long after SIGTERM.  [default: the app's, 30]"),
        click.option("--reserve-timeout", type=click.FloatRange(min=0.05), default=1.0,
                     show_default=True, metavar="SECONDS", help="One wait for a message."),
        click.option("--stop-when-empty", is_flag=True, help="End after one wait in vain."),
        click.option("--memory-limit", type=str, metavar="SIZE",
                     help="End when the process has so much memory: 256MiB."),
        click.option("--max-runtime", type=duration, default="0", metavar="DURATION",
                     help="End after so long: 90s, 15m, 1h."),
        click.option("--max-jobs", type=click.IntRange(min=0), default=0, metavar="N",
                     help="End after so many messages."),
        click.option("--once", is_flag=True, help="End after one message."),
    ):  # fmt: skip
        command = option(command)
    return command


def _app_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what overrides the app; without them its own values count."""
    seconds = click.FloatRange(min=0)
    for option in (
        click.option("--idempotency", type=click.Path(dir_okay=False, path_type=Path),
                     metavar="FILE", help="Handle each meta.id once: an SQLite file remembers."),
        click.option("--drop-exhausted", is_flag=True,
                     help="Run an app without dead letters: what fails for good is dropped."),
        click.option("--dead-letter-queue", type=_queue_name, metavar="NAME",
                     help="Where dead letters go.  [default: the app's, QUEUE.dlq]"),
        click.option("--release-delay", type=seconds, metavar="SECONDS",
                     help="Of --on-unknown release.  [default: the app's, 5]"),
        click.option("--on-unknown", type=click.Choice(_STRATEGIES),
                     help="What becomes of a URN without a handler.  [default: the app's, fail]"),
        click.option("--backoff-max", type=seconds, metavar="SECONDS", help="Not above this."),
        click.option("--backoff-multiplier", type=click.FloatRange(min=1), default=2.0,
                     show_default=True, help="Grows by this."),
        click.option("--backoff-base", type=seconds, metavar="SECONDS",
                     help="Instead of a list: grows from here, with full jitter."),
        click.option("--backoff", metavar="SECONDS,…",
                     help="Before each further run, the last repeats.  [default: 1,5,15]"),
        click.option("--max-attempts", type=click.IntRange(min=1),
                     help="Runs of one message.  [default: the app's, 3]"),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@click.option("--app", "app_name", required=True, metavar="MODULE:ATTR",
              help="The app: made by phpmq_lite.envelopes.connect, or of the SDK.")  # fmt: skip
@click.option("--queue", type=_queue_name, metavar="NAME", help="Instead of the app's.")
@_options
@_app_options
@partial(client_options, reconnect=False)
def worker(client: ClientFactory, app_name: str, queue: str | None, **options: Any) -> None:
    """Work on the envelopes of QUEUE with handlers by URN.

    SIGTERM lets the handler finish; a second one gives its message back and ends at once. Events
    go to standard error, a JSON line each. Ends with 0, or with the code a handler exits with.
    """
    if options["processes"] > 1:
        sys.exit(_supervise(options["processes"]))
    from phpmq_lite import logs
    from phpmq_lite.envelopes import worker as running

    logs.configure(options["log_level"], options["log_format"])
    app = load_app(app_name)
    _connect(app, client, options)
    _override(app, options)
    outcome = running.run_worker(
        app,
        queue,
        limits=_limits(options),
        reserve_timeout_s=options["reserve_timeout"],
        drop_exhausted=options["drop_exhausted"],
    )
    print_message(f"{format_message_count(outcome.jobs)} handled; {_ENDS[outcome.reason]}")


def load_app(name: str) -> "BabelQueue":
    """Import ``module:attr``, also from the folder we are in; a factory is called."""
    from babelqueue import BabelQueue

    module_name, sign, attribute = name.partition(":")
    if not sign or not attribute or not all(map(str.isidentifier, module_name.split("."))):
        raise click.BadParameter(f"{name!r} is no MODULE:ATTR", param_hint="--app")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # something that it imports is missing
        raise click.BadParameter(f"no module {module_name!r}", param_hint="--app") from None
    try:
        app = found
        for part in attribute.split("."):
            app = getattr(app, part)
    except AttributeError as error:
        raise click.BadParameter(str(error), param_hint="--app") from None
    made: Any = app
    if callable(made) and not isinstance(made, BabelQueue):
        try:
            signature(made).bind()
        except TypeError as error:
            raise click.BadParameter(f"{name}: {error}", param_hint="--app") from None
        made = made()
    if not isinstance(made, BabelQueue):
        raise click.BadParameter(f"{name} is a {type(made).__name__}, no app", param_hint="--app")
    return made


def _connect(app: "BabelQueue", client: ClientFactory, options: Mapping[str, Any]) -> None:
    """Put the app on our transport; one of ``connect`` keeps its address unless told otherwise."""
    from phpmq_lite.envelopes.retry_delays import DEFAULT_DELAYS_S, RetryDelays
    from phpmq_lite.envelopes.transport import PhpmqTransport, WorkerEvents, log_event
    from phpmq_lite.envelopes.worker_connection import WorkerConnection

    transport = app.transport
    if not isinstance(transport, PhpmqTransport):
        delays = None if app.retry_backoff > 0 else RetryDelays(DEFAULT_DELAYS_S)
        link = WorkerConnection(client(is_patient=True), options["credit"])
        app.transport = PhpmqTransport(link, WorkerEvents(_write), delays=delays)
        return
    if _is_given("url", "tls_ca", "tls_cert", "config"):
        transport.link = WorkerConnection(client(is_patient=True), transport.link.credit)
    if _is_given("credit"):
        transport.link.credit = options["credit"]
    own = transport.events.hook
    transport.events.hook = _write if own is log_event else partial(_tell_both, own)


def _is_given(*names: str) -> bool:
    source = click.get_current_context().get_parameter_source
    return any(source(name) is click.core.ParameterSource.COMMANDLINE for name in names)


def _write(level: str, event: str, context: Mapping[str, Any]) -> None:
    from phpmq_lite import logs

    getattr(logs.get_logger("worker"), level)(event, **context)


def _tell_both(own: "EventHook", level: Any, event: str, context: Mapping[str, Any]) -> None:
    _write(level, event, context)
    own(level, event, context)


def _override(app: "BabelQueue", options: Mapping[str, Any]) -> None:
    from phpmq_lite.envelopes.idempotency import SqliteIdempotencyStore
    from phpmq_lite.envelopes.transport import PhpmqTransport

    transport = app.transport
    assert isinstance(transport, PhpmqTransport)  # noqa: S101 - _connect has seen to it
    for option, attribute in (
        ("max_attempts", "max_attempts"),
        ("on_unknown", "on_unknown_urn"),
        ("release_delay", "unknown_urn_release_delay"),
        ("shutdown_timeout", "shutdown_timeout"),
    ):
        if options[option] is not None:
            setattr(app, attribute, options[option])
    delays = _delays(options)
    if delays is not None:
        transport.delays = delays
    if options["dead_letter_queue"] is not None:
        app.dead_letter_enabled = True
        app.dead_letter_queue = transport.dead_letter_queue = options["dead_letter_queue"]
    if options["idempotency"] is not None:
        transport.idempotency_store = store = SqliteIdempotencyStore(options["idempotency"])
        try:
            store.open()
        except sqlite3.Error as error:
            raise CommandError(f"cannot open {options['idempotency']}: {error}") from None


def _delays(options: Mapping[str, Any]) -> "RetryDelays | None":
    from phpmq_lite.envelopes.retry_delays import RetryDelays, parse_delays

    text, base_s = options["backoff"], options["backoff_base"]
    if text is not None and base_s is not None:
        raise click.UsageError("--backoff and --backoff-base do not go together")
    if text is not None:
        try:
            return parse_delays(text)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--backoff") from None
    if base_s is None:
        if options["backoff_max"] is not None:
            raise click.UsageError("--backoff-max needs --backoff-base")
        return None
    longest_s = options["backoff_max"] or 0.0
    return RetryDelays(base_s=base_s, multiplier=options["backoff_multiplier"], max_s=longest_s)


def _limits(options: Mapping[str, Any]) -> Any:
    from phpmq_lite.envelopes.worker import WorkerLimits

    return WorkerLimits(
        max_jobs=1 if options["once"] else options["max_jobs"],
        max_runtime_s=options["max_runtime"],
        memory_bytes=_bytes(options["memory_limit"]),
        stop_when_empty=options["stop_when_empty"],
        parent=options["parent"],
    )


def _bytes(text: str | None) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return 0 if text is None else int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise click.BadParameter(
            f"{text!r} is no size; write 256MiB", param_hint="--memory-limit"
        ) from None


# -- several processes


class _WorkerProcesses:
    """Workers in processes of their own, with the arguments of this one."""

    def __init__(self, number: int) -> None:
        self._command = [
            sys.executable, "-m", "phpmq_lite", *sys.argv[1:],
            "--processes", "1", "--parent", str(os.getpid()),
        ]  # fmt: skip
        self._is_ending = Event()
        self.running: list[subprocess.Popen[bytes]] = []
        self._number = number

    def begin(self) -> None:
        """Start them; signals are passed on by then."""
        for _ in range(self._number):
            self._add()

    def _add(self) -> None:
        if self._is_ending.is_set():
            return
        child = self._start()
        self.running.append(child)
        if self._is_ending.is_set():  # the signal came in between
            child.terminate()

    def _start(self) -> subprocess.Popen[bytes]:
        # a session of its own: Ctrl-C at the terminal reaches it through us, and once
        return subprocess.Popen(self._command, start_new_session=True)

    def forward(self, number: int, _frame: object) -> None:
        """Pass a signal on."""
        self._is_ending.set()
        for child in self.running:
            if child.poll() is None:
                child.send_signal(number)

    def wait(self) -> int:
        """Return when all have ended; one that was killed is replaced."""
        code = 0
        while self.running:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            for child in [child for child in self.running if child.poll() is not None]:
                self.running.remove(child)
                if child.returncode < 0 and not self._is_ending.is_set():
                    print_message(
                        f"a worker was ended by signal {-child.returncode}, starting another"
                    )
                    time.sleep(_RESTART_S)
                    self._add()
                else:
                    code = max(code, abs(child.returncode))
        return code


def _supervise(number: int) -> int:
    children = _WorkerProcesses(number)
    for wanted in (signal.SIGTERM, signal.SIGINT):
        signal.signal(wanted, children.forward)
    children.begin()
    return children.wait()
