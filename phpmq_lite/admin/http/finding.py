"""What the paths of the queue endpoints name."""

from typing import Annotated

from phpmq_lite.admin.http.endpoint import From
from phpmq_lite.admin.http.permissions import queue_name_of, require_queue
from phpmq_lite.server.status import QueueStatus

Queue = Annotated[QueueStatus, From(lambda call: require_queue(call.request))]
QueueName = Annotated[str, From(lambda call: queue_name_of(call.request))]  # it need not exist
