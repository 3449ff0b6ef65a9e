"""What the paths of the message endpoints name: a message, a selection, a bulk job."""

from typing import Annotated

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import From
from phpmq_lite.admin.http.permissions import find_message
from phpmq_lite.admin.messages.selection_store import MessageSelection
from phpmq_lite.storage.read.messages import MessageRow

Message = Annotated[MessageRow, From(lambda call: find_message(call.request, call.context))]


def find_selection(call: Call, token: str) -> MessageSelection:
    """Return the caller's selection with this token; raise a 410 ``Problem`` if it has expired."""
    return call.context.actions.selections.find(token, call.actor, call.now_ms)


Selection = Annotated[MessageSelection, From(lambda call: find_selection(call, call.path("token")))]
