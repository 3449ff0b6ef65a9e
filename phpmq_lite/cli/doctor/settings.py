"""Checks of the settings: unknown names, values that conflict, payload schemas."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from phpmq_lite.cli.doctor.findings import Finding, bad, ok, warn
from phpmq_lite.cli.settings_options import SettingsArguments
from phpmq_lite.envelopes.schema_registry import ActiveSchemas, RegistryError
from phpmq_lite.errors import SettingsError
from phpmq_lite.settings import Settings, as_text, find_file

NAME: Final = "settings"
_PROCESS_BYTES: Final = 128 << 20  # what a broker has without a message, and some room


def read_settings(given: SettingsArguments) -> tuple[Settings, list[Finding]]:
    """Read the settings; where that fails, give the defaults for the other checks."""
    path = given.config or find_file()
    try:
        effective = given.read()
    except SettingsError as error:
        fallback = Settings() if given.data is None else Settings(data=given.data)
        return fallback, [refused_finding(error)]
    changed = sum(source != "default" for source in effective.sources.values())
    return effective.settings, [
        read_finding(path, changed),
        *unknown_variable_findings(effective.warnings),
    ]


def refused_finding(error: SettingsError) -> Finding:
    """Tell what is wrong with the settings."""
    return bad(
        NAME,
        str(error),
        "mend it: a start is refused with exit code 78; what follows is about the defaults",
    )


def read_finding(path: Path | None, changed: int) -> Finding:
    """Tell where the settings come from."""
    where = "no file" if path is None else str(path)
    hint = (
        "`phpmq-lite config init` writes a file in which each is explained" if path is None else ""
    )
    return ok(NAME, f"{where}, {changed} set, the others are the defaults", hint)


def unknown_variable_findings(warnings: Sequence[str]) -> Iterator[Finding]:
    """Tell of variables of the environment that look like settings and are none."""
    for warning in warnings:
        yield warn(NAME, warning, "`phpmq-lite config show` lists the names")


def check_settings(settings: Settings) -> Iterator[Finding]:
    """Look for what can be read and does not work, or does not do what is meant."""
    if settings.envelopes.schemas is not None:
        yield schemas_finding(settings.envelopes.schemas)
    yield from conflicting_settings(settings)


def schemas_finding(path: Path) -> Finding:
    """Judge the schemas of payloads, which a start reads."""
    try:
        ActiveSchemas(path).load()
    except RegistryError as error:
        return bad("schemas", f"envelopes.schemas: {error}", "`phpmq-lite schema` checks them")
    return ok("schemas", str(path))


def conflicting_settings(settings: Settings) -> Iterator[Finding]:
    """Name the settings that are fine one by one and not together."""
    yield from _clashes_of_room(settings)
    queues, admin = settings.queues, settings.admin
    if queues.schema_mode != "off" and settings.envelopes.schemas is None:
        yield _clash(
            f"queues.schema_mode is {queues.schema_mode}, and envelopes.schemas names no schemas",
            "set envelopes.schemas, or nothing is compared",
        )
    if admin.hsts and admin.tls_cert is None:
        yield _clash("admin.hsts does nothing without TLS", "set admin.tls_cert and admin.tls_key")
    if settings.storage.accept_loss:
        yield _clash(
            "storage.accept_loss is set: each start takes damaged files as they are",
            "take it away: it is meant for one start, as the flag --accept-loss",
        )


def _clashes_of_room(settings: Settings) -> Iterator[Finding]:
    limits, storage, history = settings.limits, settings.storage, settings.history
    needed = limits.body_cache + limits.unstored_total + storage.cache_bytes + _PROCESS_BYTES
    if needed > limits.memory:
        yield _clash(
            f"limits.memory is {as_text(limits.memory)}; limits.body_cache, limits.unstored_total "
            "and storage.cache_bytes may fill it, and then publishers wait",
            "raise limits.memory, or lower the others",
        )
    if 0 < storage.max_bytes <= history.bytes:
        yield _clash(
            f"history.bytes is {as_text(history.bytes)}, storage.max_bytes "
            f"{as_text(storage.max_bytes)}: publishing stops before the history is cut",
            "lower history.bytes to a half of storage.max_bytes, or raise that",
        )
    if limits.unstored_total < limits.max_content:
        yield _clash(
            f"limits.unstored_total is {as_text(limits.unstored_total)}, less than one message of "
            f"limits.max_content, {as_text(limits.max_content)}: large ones are read one at a time",
            "raise limits.unstored_total",
        )


def _clash(found: str, hint: str) -> Finding:
    return warn(NAME, found, hint)
