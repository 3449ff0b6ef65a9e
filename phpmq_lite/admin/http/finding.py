"""What the paths of the queue endpoints name."""

from typing import Annotated

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import From
from phpmq_lite.admin.http.input import path_name
from phpmq_lite.server.status import QueueStatus


def find_queue_name(call: Call) -> str:
    """Return the queue name in the path; the queue itself need not exist.

    Raises:
        Problem: 403 for a change to a queue that the caller is not allowed to use.
    """
    name = path_name(call.request, "q")
    if call.request.method not in ("GET", "HEAD"):
        call.check_queue(name)
    return name


Queue = Annotated[QueueStatus, From(lambda call: call.queue(find_queue_name(call)))]
QueueName = Annotated[str, From(find_queue_name)]  # it need not exist
