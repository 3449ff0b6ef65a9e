"""Messages from an export, or from elsewhere: all lines are checked before one is stored."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from phpmq_lite.admin.access import gate
from phpmq_lite.admin.access.identity import check_queue_right, entry_of
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.bodies import from_content
from phpmq_lite.admin.context import Answer, Context, context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.problems import Problem, problem_of
from phpmq_lite.admin.requests import check_queue_name, read_json
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import PublishIn
from phpmq_lite.broker import operations
from phpmq_lite.broker.core import Broker
from phpmq_lite.broker.operations import Published
from phpmq_lite.broker.queue_settings import LONGEST_NAME
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry

SLICE: Final = 500  # messages stored at once
IMPORT_MAX: Final = 100_000  # in one request
STORED: Final = "X-Stored-Count"  # of an answer that refuses the rest: how many are stored

Message = tuple[bytes, int | None]
Line = tuple[str, Message]  # the name of its queue first
Run = tuple[str, list[Message]]


class ImportedIn(PublishIn):
    """One message; the other members of an export are passed over."""

    model_config = ConfigDict(extra="ignore", strict=True)

    queue: str = Field(min_length=1, max_length=LONGEST_NAME)


class ImportIn(BaseModel):
    """Messages to store, in this order.

    An export is taken as it is: ``application/x-ndjson``, one message a line.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    messages: list[ImportedIn] = Field(max_length=IMPORT_MAX)


class ImportOut(BaseModel):
    """How many messages were stored."""

    stored: int


async def import_messages(request: web.Request) -> web.StreamResponse:
    """Store messages of an export at the end of their queues; nothing if one line is wrong.

    They are stored in the order of the lines. Where a queue refuses one, as it is full, those
    before it stay: the answer has their number in the header ``X-Stored-Count``.
    """
    context = context_of(request)
    raw = await request.read()
    lines = await asyncio.to_thread(_all_checked, request, context, raw)  # up to two seconds
    return as_json(ImportOut(stored=await _store(request, context, lines)), status=201)


def _all_checked(request: web.Request, context: Context, raw: bytes) -> list[Line]:
    return [
        _checked(request, context, number, line) for number, line in _lines(_read(request, raw))
    ]


def _read(request: web.Request, raw: bytes) -> list[object]:
    """Read the lines, or the list in a document; what is not JSON is refused whole."""
    if request.content_type == "application/json":
        document = read_json(raw)
        if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
            raise Problem(422, "invalid", "There is no list of messages.", field="messages")
        found: list[object] = document["messages"]
    else:
        found = []
        for number, line in enumerate(raw.split(b"\n"), 1):
            if line.strip():
                found.append(_json(line, number))
    if len(found) > IMPORT_MAX:
        raise Problem(
            422, "invalid", f"There are {len(found)} messages.", field="messages",
            bound=f"at most {IMPORT_MAX}",
        )  # fmt: skip
    return found


def _json(line: bytes, number: int) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Problem(
            422, "malformed", f"Line {number} is not JSON: {error}. Nothing was stored.",
            field=str(number),
        ) from None  # fmt: skip


def _lines(found: list[object]) -> Iterator[tuple[int, object]]:
    """Yield what is a message; the last line of an export is none."""
    for number, line in enumerate(found, 1):
        if isinstance(line, dict) and "complete" in line and "queue" not in line:
            if line["complete"] is not True or number != len(found):
                raise Problem(
                    422, "incomplete", "The export is not complete. Nothing was stored.",
                    field=str(number),
                )  # fmt: skip
            continue
        yield number, line


def problem_with(line: object) -> str | None:
    """Say what is wrong with a line, whoever sends it to whichever broker."""
    try:
        check_queue_name(ImportedIn.model_validate(line).queue)
    except (ValidationError, Problem) as error:
        problem = problem_of(error)
        return str(error) if problem is None else problem.detail
    return None


def _checked(request: web.Request, context: Context, number: int, line: object) -> Line:
    try:
        read = ImportedIn.model_validate(line)
        check_queue_name(read.queue)
        check_queue_right(request, read.queue)
    except (ValidationError, Problem) as error:
        problem = problem_of(error)
        if problem is None:
            raise
        raise Problem(
            problem.status, problem.code,
            f"Message {number}: {problem.detail} Nothing was stored.",
            field=f"{number}.{problem.field or ''}".rstrip("."), bound=problem.bound,
        ) from None  # fmt: skip
    body = from_content(read.content, read.encoding)
    limit = int(context.settings.limits.max_content)
    if len(body) > limit:
        raise Problem(
            413, "too_large", f"Message {number} has {len(body)} bytes. Nothing was stored.",
            field=f"{number}.content", bound=f"{limit} bytes",
        )  # fmt: skip
    return read.queue, (body, read.ttl_s)


async def _store(request: web.Request, context: Context, lines: Sequence[Line]) -> int:
    """Store in the order of the lines, so that what is stored is always the beginning of them."""
    stored = 0
    entry = entry_of(request, target=", ".join(list(dict.fromkeys(q for q, _ in lines))[:10]))
    while stored < len(lines):
        runs = _runs(lines[stored : stored + SLICE])
        try:
            stored += await commands.call(context, partial(_publish, entry, runs))
        except RefusedError as error:
            if not stored:
                raise
            await _close_row(context, entry, error.code)
            raise Problem(
                409, error.code, f"{error}. The first {stored} messages were stored before.",
                field="queue", headers={STORED: str(stored)},
            ) from error  # fmt: skip
    return stored


def _runs(lines: Sequence[Line]) -> list[Run]:
    """Put neighbours for the same queue together."""
    return [
        (queue, [message for _, message in run]) for queue, run in groupby(lines, itemgetter(0))
    ]


def _publish(entry: AuditEntry, runs: Sequence[Run], core: Broker, answer: Answer) -> None:
    """Store the first runs in one batch, at least one; answers with how many messages these are.

    It ends before a run that is refused, and before one that may be judged outside the batch: that
    comes first in a call of its own, as else the runs behind it would be stored ahead of it.
    """
    count = 0
    for queue, messages in runs:
        known = core.lives.queue(queue, entry.actor)
        if known is None or known.judges:
            if not count:
                operations.publish(core, entry, queue, messages, partial(_counted, answer))
                return
            break
        try:
            operations.publish(core, entry, queue, messages, _nobody)
        except RefusedError:
            if not count:
                raise
            break
        count += len(messages)
    core.lives.batch.answers.append((answer, count))


def _counted(answer: Answer, result: Any) -> None:
    answer(len(result) if isinstance(result, Published) else result)  # a refusal as it is


def _nobody(result: Any) -> None:
    """Take the answer of a run that the answer of its batch has counted."""


async def _close_row(context: Context, entry: AuditEntry, result: str) -> None:
    """Have the row, whose count tells what was stored, say why it ended there."""
    entry.result = result
    await gate.note(context, entry)


ROUTES: Final = (
    Route(
        "POST", "/api/v1/import", Role.OPERATOR, "api-import", import_messages, "message.import",
        takes=ImportIn, takes_lines=True, gives=ImportOut, status=201, cli="import",
    ),
)  # fmt: skip
