"""Frames with options: reads the options of a 010, 011 or 012, and passes it to the core."""

import json

from phpmq_lite.broker import commands, reasons
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.commands import CommandResult
from phpmq_lite.broker.queue import Connection
from phpmq_lite.broker.retries import RetryRequest, attempt_of
from phpmq_lite.frame_options import (
    CONSUME,
    PLAIN,
    PUBLISH,
    OptionError,
    PublishOptions,
    consume_problem,
    read_options,
    read_settlement,
)
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import Message, ValidatedPublish, priority_of
from phpmq_lite.protocol.frames import ConsumeWithOptions, Publish, PublishWithOptions, Settle

_log = get_logger(__name__)


def publish(
    core: Broker,
    connection: Connection,
    frame: Publish | PublishWithOptions,
    validated: ValidatedPublish | None,
    *,
    is_forced: bool = False,
) -> CommandResult:
    """Store the message of a 001 or 010, also in a full queue if ``is_forced``."""
    options = PLAIN
    if isinstance(frame, PublishWithOptions):
        try:
            options = PublishOptions.of(read_options(frame.options, PUBLISH))
        except OptionError as error:
            _log_problem("invalid_publish", connection, error)
            place = (core, connection, frame.queue, frame.key)
            return commands.refuse_publish(*place, reasons.BAD_OPTION, str(error))
    ttl_s = frame.ttl_s if isinstance(frame, Publish) else options.ttl_s
    message = (frame.queue, frame.content, ttl_s, frame.key)
    return commands.publish(core, connection, *message, validated, options, is_forced=is_forced)


def settle(core: Broker, connection: Connection, frame: Settle) -> CommandResult:
    """Retry, dead-letter or extend the message of a 011."""
    place = (core, connection, frame.queue, frame.message_id)
    action, named, problem = read_settlement(frame.options, has_content=frame.content is not None)
    if problem:
        _log_problem("invalid_settlement", connection, problem)
        if action == "extend":  # its message stays held until the timeout
            return commands.ignore(core, reasons.INVALID)
        return commands.return_invalid(*place, problem)
    if action == "retry":
        return commands.retry(*place, RetryRequest.of(named, frame.content))
    if action == "extend":
        return commands.extend(*place, named["hold_s"])
    return commands.dead_letter(*place, named)


def consume(core: Broker, connection: Connection, frame: ConsumeWithOptions) -> CommandResult:
    """Set the credit of a 012; with invalid options, the client would wait for nothing: CLOSE."""
    if problem := consume_problem(frame.options):
        _log_problem("invalid_consume", connection, problem)
        return CommandResult.CLOSE
    named = read_options(frame.options, CONSUME)
    has_info, keeps_held = named.get("info", False), named.get("keep", False)
    place = (core, connection, frame.queue, frame.count)
    return commands.consume(*place, has_info=has_info, keeps_held=keeps_held)


def info_of(core: Broker, message: Message) -> bytes:
    """Return the content of packet 06 of a 013: what is known of this delivery."""
    now, end_ms = core.now, core.ack_timeouts.end_of(message)
    age_ms = now.wall_ms - (message.options.ready_at or message.published_at)
    # Without a JSON encoder, which takes four times as long.
    info = b'{"attempt":%d,"deliveries":%d,"priority":%d,"age_s":%.3f' % (
        attempt_of(message), message.deliveries, priority_of(message.position),
        max(0, age_ms) / 1_000,
    )  # fmt: skip
    if end_ms is not None:
        info += b',"hold_s":%.3f' % (max(0, end_ms - now.steady_ms) / 1_000)
    if message.options.group is not None:
        info += b',"group":%s' % json.dumps(message.options.group).encode()
    return info + b"}"


def _log_problem(event: str, connection: Connection, problem: object) -> None:
    if not is_quiet(event):
        _log.warning(event, address=connection.address, reason=str(problem))
