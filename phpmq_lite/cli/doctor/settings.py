"""Checks of the settings for unknown names, conflicting values and invalid schemas."""

from collections.abc import Iterator
from typing import Final

from phpmq_lite.cli.doctor.findings import Finding, bad, ok, warn
from phpmq_lite.cli.settings_options import SettingsArguments
from phpmq_lite.envelopes.schema_registry import ActiveSchemas, RegistryError
from phpmq_lite.errors import SettingsError
from phpmq_lite.settings import Settings, as_text, find_file

NAME: Final = "settings"
_PROCESS_BYTES: Final = 128 << 20  # memory that a broker without messages uses, plus a reserve


def read_settings(settings_args: SettingsArguments) -> tuple[Settings, list[Finding]]:
    """Return a pair: the settings, or the defaults if they are invalid, and findings about them."""
    path = settings_args.config or find_file()
    try:
        effective = settings_args.read()
    except SettingsError as error:
        fallback = Settings() if settings_args.data is None else Settings(data=settings_args.data)
        hint = "correct it, or the broker refuses to start (exit code 78)"
        return fallback, [bad(NAME, str(error), f"{hint}; the other checks use the defaults")]
    changed = sum(source != "default" for source in effective.sources.values())
    where = "no file" if path is None else str(path)
    hint = "`phpmq-lite config init` creates a file that explains them" if path is None else ""
    findings = [ok(NAME, f"{where}, {changed} set, all others at their defaults", hint)]
    hint = "`phpmq-lite config show` lists the names"
    return effective.settings, findings + [
        warn(NAME, warning, hint) for warning in effective.warnings
    ]


def check_settings(settings: Settings) -> Iterator[Finding]:
    """Check for settings that are valid, but conflict with others or have no effect."""
    path = settings.envelopes.schemas
    if path is not None:
        try:
            ActiveSchemas(path).load()
        except RegistryError as error:
            hint = "`phpmq-lite schema check` lists the problems"
            yield bad("schemas", f"envelopes.schemas: {error}", hint)
        else:
            yield ok("schemas", str(path))
    yield from conflicting_settings(settings)


def conflicting_settings(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each conflict between settings."""
    yield from _size_conflicts(settings)
    queues, admin = settings.queues, settings.admin
    if queues.schema_mode != "off" and settings.envelopes.schemas is None:
        text = f"queues.schema_mode is {queues.schema_mode}, but envelopes.schemas is not set"
        yield warn(NAME, text, "set envelopes.schemas; without it no payload is checked")
    if admin.hsts and admin.tls_cert is None:
        hint = "set admin.tls_cert and admin.tls_key"
        yield warn(NAME, "admin.hsts has no effect without TLS", hint)
    if settings.storage.accept_loss:
        text = "storage.accept_loss is set: every start accepts damaged files"
        yield warn(NAME, text, "remove it; for a single start, use --accept-loss instead")


def _size_conflicts(settings: Settings) -> Iterator[Finding]:
    limits, storage, history = settings.limits, settings.storage, settings.history
    needed = limits.body_cache + limits.unstored_total + storage.cache_bytes + _PROCESS_BYTES
    if needed > limits.memory:
        text = (
            f"limits.memory is {as_text(limits.memory)}; limits.body_cache, limits.unstored_total "
            "and storage.cache_bytes may use all of it, which makes publishers wait"
        )
        yield warn(NAME, text, "raise limits.memory, or lower the other three")
    if 0 < storage.max_bytes <= history.bytes:
        text = (
            f"history.bytes is {as_text(history.bytes)}, storage.max_bytes "
            f"{as_text(storage.max_bytes)}: publishing stops before the history is trimmed"
        )
        hint = "lower history.bytes to half of storage.max_bytes, or raise storage.max_bytes"
        yield warn(NAME, text, hint)
    if limits.unstored_total < limits.max_content:
        text = (
            f"limits.unstored_total is {as_text(limits.unstored_total)}, less than "
            f"limits.max_content ({as_text(limits.max_content)}): large bodies are read one by one"
        )
        yield warn(NAME, text, "raise limits.unstored_total")
