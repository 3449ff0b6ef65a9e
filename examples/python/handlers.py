"""Handlers of an order service: what ``phpmq-lite worker`` runs.

    cd examples/python
    phpmq-lite worker --app handlers:app --queue orders

In another terminal: ``python produce.py 42``.
"""

import asyncio
import time
from typing import Any

from phpmq_lite.envelopes.app import connect
from phpmq_lite.envelopes.handlers import JobContext, NextHandler

# Nothing is connected yet: that happens when the worker takes its first message.  A message runs
# at most four times, a second, then two, then four after it failed; then it is in orders.dlq.
app = connect("phpmq://127.0.0.1:9100", queue="orders", max_attempts=4, backoff=(1, 2, 4))


@app.use
def timed(context: JobContext, next_one: NextHandler) -> None:
    """Middleware: stands round every handler; `next_one` is the rest of the way."""
    started = time.perf_counter()
    next_one(context)
    print(f"{context.urn} took {time.perf_counter() - started:.3f} s", flush=True)


@app.handler("urn:babel:orders:created")
def on_order(data: dict[str, Any], meta: dict[str, Any]) -> None:
    """Take an order.  Returning acknowledges the message; raising lets it come again."""
    if data["total"] < 0:
        raise ValueError(f"order {data['order_id']} costs {data['total']}")
    # What is published here continues the trace of the order, and is on disk when this returns.
    app.publish("urn:babel:mails:wanted", {"to": data["mail"], "order_id": data["order_id"]})


@app.handler("urn:babel:mails:wanted")
async def on_mail(data: dict[str, Any], meta: dict[str, Any], envelope: dict[str, Any]) -> None:
    """Coroutines run on a loop that the worker keeps; the third argument is the whole envelope."""
    await asyncio.sleep(0.01)  # where the mail would be sent
    print(f"mail to {data['to']}, trace {envelope['trace_id']}", flush=True)
