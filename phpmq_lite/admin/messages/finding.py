"""What the paths of the message endpoints name: a message, a selection, a bulk job."""

from typing import Annotated

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import From
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.selection_store import MessageSelection
from phpmq_lite.admin.messages.stores import stores_of
from phpmq_lite.storage.read.messages import MessageRow, is_message_id, wire_id


async def find_message(call: Call) -> MessageRow:
    """Return the row of the live or settled message whose id or number, such as #34, is the path's.

    Raises:
        Problem: 404 if the id is unknown, 410 if its number was assigned but it has no row:
            retention removed it, or the second half of the id is wrong.
    """
    reader, message_id = call.context.reader, call.path("id")
    number = message_id.removeprefix("#")
    if number.isascii() and number.isdigit() and len(number) < 19:  # 63 bits
        rows = await reader.rows([int(number)])
        message_id = rows[0].message_id if rows else wire_id(int(number), 0)
    if not is_message_id(message_id):
        detail = f"{message_id!r} is not a valid message id."
        bound = "32 lowercase hex digits, or the number that pages show"
        raise Problem(404, "unknown_message", detail, field="id", bound=bound)
    row = await reader.message(message_id)
    if row is not None:
        if call.allowed is None or row.queue_id in call.allowed:
            return row
        raise Problem(404, "unknown_message", "There is no message with this id.", field="id")
    if await reader.was_assigned(message_id):
        raise Problem(
            410,
            "gone_message",
            "No message with this id is stored. Either retention removed the message from the "
            "history, or a digit of the id is wrong.",
        )
    raise Problem(404, "unknown_message", "This broker never assigned this message id.")


Message = Annotated[MessageRow, From(find_message)]


def find_selection(call: Call, token: str) -> MessageSelection:
    """Return the caller's selection with this token; raise a 410 ``Problem`` if it has expired."""
    return stores_of(call).selections.find(token, call.actor, call.now_ms)


Selection = Annotated[MessageSelection, From(lambda call: find_selection(call, call.path("token")))]
