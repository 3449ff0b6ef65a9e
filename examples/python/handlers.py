"""Handlers of an order service, run by ``phpmq-lite worker``.

    cd examples/python
    phpmq-lite worker --app handlers:app --queue orders

In another terminal: ``python produce.py 42``.
"""

import asyncio
import time
from typing import Any

from phpmq_lite.envelopes.handlers import JobContext, NextHandler
from phpmq_lite.envelopes.worker_app import connect

# The app connects when the worker first asks for a message. A message is tried up to four times,
# with delays of 1, 2 and 4 s after failures, before it is moved to orders.dlq.
app = connect("phpmq://127.0.0.1:9100", queue="orders", max_attempts=4, backoff=(1, 2, 4))


@app.use
def timed(context: JobContext, next_one: NextHandler) -> None:
    """Middleware that prints how long each handler takes."""
    started = time.perf_counter()
    next_one(context)
    print(f"{context.urn} took {time.perf_counter() - started:.3f} s", flush=True)


@app.handler("urn:babel:orders:created")
def on_order(data: dict[str, Any], meta: dict[str, Any]) -> None:
    """Handle an order; returning acknowledges the message, and an exception retries it."""
    if data["total"] < 0:
        raise ValueError(f"order {data['order_id']} costs {data['total']}")
    # The mail continues the order's trace, and is on the broker's disk when publish returns.
    app.publish("urn:babel:mails:wanted", {"to": data["mail"], "order_id": data["order_id"]})


@app.handler("urn:babel:mails:wanted")
async def on_mail(data: dict[str, Any], meta: dict[str, Any], envelope: dict[str, Any]) -> None:
    """Send a mail; coroutines run on the worker's loop, and the envelope argument is optional."""
    await asyncio.sleep(0.01)  # a real handler would send the mail here
    print(f"mail to {data['to']}, trace {envelope['trace_id']}", flush=True)
