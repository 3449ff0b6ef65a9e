"""Publishes to NAME.retry with a time to live, which mean: deliver in NAME after that time.

That is how clients delay a message which do not know frames with options.  The message is stored in
NAME, as scheduled.
"""

import re
from dataclasses import replace
from typing import Final

from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.dead_letters import seq_of
from phpmq_lite.broker.queue import Connection, Queue
from phpmq_lite.broker.reasons import Refusal
from phpmq_lite.frame_options import PublishOptions
from phpmq_lite.model import priority_of
from phpmq_lite.queue_settings import home_of

_COPY_KEY: Final = re.compile(rb"([0-9a-f]{32}):\d+\Z")  # of a copy that a worker publishes


def delayed_name(core: Broker, name: str, ttl_s: float | None) -> str | None:
    """Return the queue in which a publish to ``name`` is delayed, or None for an ordinary one."""
    home = home_of(name) if ttl_s else None
    queue = core.queues.get(name)
    is_own = queue is not None and "on_expire" in queue.row.own
    return None if is_own else home


def refusal(core: Broker, name: str, home: str | None) -> tuple[Queue, Refusal] | None:
    """Return why a publish is refused, and the queue for which it can wait.

    If it is delayed in ``home``, only limits of ``name`` itself and the disk count: the worker
    still holds the original.
    """
    queue, target = core.queues.get(name), core.queues.get(home or "")
    if queue is not None and queue.is_bounded and (own := queue.refusal()) is not None:
        return queue, own
    if target is not None and target.stop is not None:
        return target, target.stop
    return None


def key_scopes(core: Broker, name: str, *, is_delayed: bool) -> list[int]:
    """Return the numbers under which keys of publishes to ``name`` are stored, first of new ones.

    Those of delayed messages have one of their own, because the queue need not exist.
    """
    queue, home = core.queues.get(name), core.queues.get(home_of(name) or "")
    row = core.registry.removed.get(name) if queue is None else queue.row
    scopes = [] if row is None else [row.queue_id]
    if home is not None:
        scopes.insert(0 if is_delayed else 1, -home.queue_id)
    return scopes


def find_key(core: Broker, name: str, key: bytes, *, is_delayed: bool) -> tuple[int, int | None]:
    """Return the scope of a key, if it is new, and the seq stored under it, or None."""
    scopes = key_scopes(core, name, is_delayed=is_delayed)
    seqs = (core.publish_keys.find(scope, key, core.now.steady_ms) for scope in scopes)
    return next(iter(scopes), 0), next((seq for seq in seqs if seq is not None), None)


def delayed(
    core: Broker,
    connection: Connection,
    home: Queue,
    key: bytes | None,
    ttl_s: float | None,
    options: PublishOptions,
) -> PublishOptions:
    """Return the options of a delayed publish.

    A worker's copy of a message of ``home`` that it holds takes over its priority, group and unique
    key.
    """
    options = options.delayed_by(ttl_s)
    match = None if key is None else _COPY_KEY.match(key)
    original = None if match is None else core.messages.get(seq_of(match[1]) or 0)
    if (
        match is None
        or original is None
        or original.message_id != match[1]
        or original.queue_id != home.queue_id
        or original.holder is None
        or original.holder.connection is not connection
    ):
        return options
    held = original.options
    if core.unique_place(original, home) is not None:
        original.options = held._replace(unique_key=None)
        core.batch.changed[original.seq] = original
        core.store_options(original)
        options = replace(options, unique_key=held.unique_key)
    return replace(options, priority=priority_of(original.position), group=held.group)
