"""Message import, which validates every line before storing any message."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from phpmq_lite.admin.accounts import audit
from phpmq_lite.admin.http.body import (
    check_values,
    memory_hold_of,
    parse_large,
    read_body,
    read_json,
)
from phpmq_lite.admin.http.call import Call, ignore_reply
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.fields import StrictInput
from phpmq_lite.admin.http.headers import media_type_of
from phpmq_lite.admin.http.input import check_queue_name, read_query
from phpmq_lite.admin.http.problems import Problem, invalid, problem_of
from phpmq_lite.admin.http.route import JSON_LINES
from phpmq_lite.admin.messages.publish import PublishInput
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import publishing
from phpmq_lite.broker.operator.publishing import NewMessage, Published
from phpmq_lite.errors import RefusedError
from phpmq_lite.frame_options import OptionError
from phpmq_lite.model import ALIVE, AuditEntry, Reply, State
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.roles import Role

endpoints: Final = Endpoints()
SLICE: Final = 500  # maximum number of messages stored in one batch
IMPORT_MAX: Final = 100_000  # maximum number of messages in one request
VALUES_MAX: Final = 10 * IMPORT_MAX  # maximum number of values in a JSON document (not JSON Lines)
LINE_VALUES_MAX: Final = 10_000
_ROW_BYTES: Final = 250  # memory that a queued message uses besides its body, in bytes
STORED: Final = "X-Stored-Count"  # header with the number of messages stored before an error

ImportLine = tuple[str, NewMessage]  # (queue name, message)
ImportRun = tuple[str, list[NewMessage]]


class ImportedInput(PublishInput):
    """A message to import; members of an exported message that are not listed here are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    queue: str = Field(min_length=1, max_length=LONGEST_NAME, description="queue name")


class ImportInput(StrictInput):
    """The messages to import, in the order in which they will be stored.

    Exports are accepted too: ``application/x-ndjson``, one message per line.
    """

    messages: list[ImportedInput] = Field(
        max_length=IMPORT_MAX, description="messages to store, in the given order"
    )


class ImportQuery(BaseModel):
    """Which messages of an export to import."""

    settled: bool = Field(
        False, description="whether to publish settled messages again; otherwise, they are skipped"
    )


class ImportView(BaseModel):
    """The number of messages that an import stored."""

    stored: int = Field(description="number of messages stored, or whose unique key is taken")
    skipped: int = Field(description="number of settled messages, which were not stored again")


_SETTLED: Final = frozenset(state.name.lower() for state in State if state not in ALIVE)


def is_settled(line: object) -> bool:
    """Return whether a line is an exported message that is acked, expired, dead or deleted."""
    return isinstance(line, dict) and line.get("state") in _SETTLED


@endpoints.api(
    "POST /import",
    "api-import",
    Role.OPERATOR,
    "message.import",
    query=ImportQuery,
    takes=ImportInput,
    takes_lines=True,
    status=201,
    cli="message import",
    has_content=True,
    values=VALUES_MAX,
)
async def import_messages(call: Call) -> ImportView:
    """Append exported messages to their queues, or store nothing if any line is invalid.

    Messages are stored in the order of the lines. Those with the state acked, expired, dead or
    deleted are skipped unless ``settled`` is true. If a queue rejects one, for example because it
    is full, the messages before it are kept; the header ``X-Stored-Count`` says how many.
    """
    request = call.request
    query = read_query(request, ImportQuery)
    raw = await read_body(request)
    count = min(raw.count(b"\n" if media_type_of(request) == JSON_LINES else b"{"), IMPORT_MAX)
    await memory_hold_of(request).grow(len(raw) + count * _ROW_BYTES)
    rows = await parse_large(request, raw, _checked_lines(call, raw, has_settled=query.settled))
    raw.clear()
    lines = [line for line in rows if line is not None]
    return ImportView(stored=await _store(call, lines), skipped=len(rows) - len(lines))


def _checked_lines(call: Call, raw: bytearray, *, has_settled: bool) -> Iterator[ImportLine | None]:
    """Yield the message of each line, or None for a settled one unless ``has_settled``."""
    names: dict[str, str] = {}  # so that 100,000 lines for the same queue share one string
    for number, line in _lines(*_read(call.request, raw)):
        if not has_settled and is_settled(line):
            yield None
            continue
        queue, message = _checked(call, number, line)
        yield names.setdefault(queue, queue), message


def _read(request: web.Request, raw: bytearray) -> tuple[int, Iterable[object]]:
    """Return the number of messages and an iterator over them.

    The lines are parsed one at a time, so that only one parsed line is in memory.
    """
    messages: Iterable[object]
    if media_type_of(request) == JSON_LINES:
        count = sum(1 for _ in _texts(raw))
        messages = (_json(line, number) for number, line in _texts(raw))
    else:
        document = read_json(raw, VALUES_MAX)
        if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
            raise invalid("The messages list is missing.", "messages")
        messages = document["messages"]
        count = len(document["messages"])
    if count > IMPORT_MAX:
        raise invalid(
            f"The import contains {count} messages; the limit is {IMPORT_MAX}.",
            "messages",
            f"at most {IMPORT_MAX}",
        )
    return count, messages


def _texts(raw: bytearray) -> Iterator[tuple[int, bytes]]:
    """Yield each non-blank line with its line number."""
    at, number = 0, 0
    while at < len(raw):
        end = raw.find(b"\n", at)
        end, number = len(raw) if end < 0 else end, number + 1
        line = bytes(raw[at:end])
        if line.strip():
            yield number, line
        at = end + 1


def _json(line: bytes, number: int) -> object:
    check_values(line, LINE_VALUES_MAX)
    try:
        return json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        text = f"Line {number} is not valid JSON: {error}. Nothing was stored."
        raise Problem(422, "malformed", text, field=str(number)) from None


def _lines(count: int, messages: Iterable[object]) -> Iterator[tuple[int, object]]:
    """Yield the messages, skipping the summary line that ends an export."""
    for number, line in enumerate(messages, 1):
        if isinstance(line, dict) and "complete" in line and "queue" not in line:
            if line["complete"] is not True or number != count:
                text = "The export is incomplete. Nothing was stored."
                raise Problem(422, "incomplete", text, field=str(number))
            continue
        yield number, line


def problem_with(line: object) -> str | None:
    """Return the reason a line cannot be imported, or None if the line is valid."""
    try:
        message = ImportedInput.model_validate(line)
        check_queue_name(message.queue)
        message.options()
    except (ValidationError, Problem, OptionError) as error:
        problem = problem_of(error)
        return str(error) if problem is None else problem.detail
    return None


def _checked(call: Call, number: int, line: object) -> ImportLine:
    try:
        message = ImportedInput.model_validate(line)
        check_queue_name(message.queue)
        call.check_queue(message.queue)
        options = message.options()
    except (ValidationError, Problem, OptionError) as error:
        problem = problem_of(error)
        if problem is None:
            raise
        raise Problem(
            problem.status,
            problem.code,
            f"Message {number}: {problem.detail} Nothing was stored.",
            field=f"{number}.{problem.field or ''}".rstrip("."),
            bound=problem.bound,
        ) from None
    body = message.body()
    limit = int(call.context.settings.limits.max_content)
    if len(body) > limit:
        raise Problem(
            413,
            "too_large",
            f"Message {number} is {len(body)} bytes; the limit is {limit} (limits.max_content). "
            "Nothing was stored.",
            field=f"{number}.content",
            bound=f"{limit} bytes",
        )
    return message.queue, NewMessage(body, message.ttl_s, options)


async def _store(call: Call, lines: Sequence[ImportLine]) -> int:
    """Store messages in line order. If a message is rejected, earlier messages remain stored."""
    stored = 0
    entry = call.audit(", ".join(list(dict.fromkeys(queue for queue, _ in lines))[:10]))
    while stored < len(lines):
        consecutive = groupby(lines[stored : stored + SLICE], itemgetter(0))
        runs = [(queue, [message for _, message in run]) for queue, run in consecutive]
        try:
            stored += await call.run(_publish, runs)
        except RefusedError as error:
            if not stored:
                raise
            entry.result = error.code  # in the audit row, which also counts the stored messages
            await audit.write_entry(call.context, entry)
            raise Problem(
                409,
                error.code,
                f"{error}. The first {stored} messages had already been stored.",
                field="queue",
                headers={STORED: str(stored)},
            ) from error
    return stored


def _publish(
    core: Broker, reply: Callable[[int], None], entry: AuditEntry, runs: Sequence[ImportRun]
) -> None:
    """Store one or more runs of messages in a single batch, and reply with the number stored.

    The batch ends before a run that is rejected, and before a run that may be stored later, because
    it is validated in the background or its unique keys are looked up. Such a run needs a batch of
    its own, so that later runs are not stored before it.
    """
    count = 0
    for name, messages in runs:
        queue = core.registry.get_or_create(core.batch, name, entry.actor)
        has_keys = any(message.options.unique_key is not None for message in messages)
        if queue is None or queue.validates or has_keys:
            if not count:
                publishing.publish(core, partial(_counted, reply), entry, name, messages)
                return
            break
        try:
            publishing.publish(core, ignore_reply, entry, name, messages)
        except RefusedError:
            if not count:
                raise
            break
        count += len(messages)
    core.reply(reply, count)


def _counted(reply: Reply, result: Any) -> None:
    reply(len(result.ids) if isinstance(result, Published) else result)  # pass errors on unchanged
