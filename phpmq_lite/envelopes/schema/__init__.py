"""Schemas of payloads: the registry folder, validation by URN, compatibility of two versions."""

from phpmq_lite.envelopes.schema.compat import Change, compare
from phpmq_lite.envelopes.schema.registry import (
    Entry,
    Fault,
    Registry,
    RegistryError,
    Schemas,
    Tally,
    read_file,
    read_registry,
)
from phpmq_lite.envelopes.schema.rules import (
    Place,
    Schema,
    SchemaError,
    places,
    read_json,
    read_schema,
)

__all__ = [
    "Change",
    "Entry",
    "Fault",
    "Place",
    "Registry",
    "RegistryError",
    "Schema",
    "SchemaError",
    "Schemas",
    "Tally",
    "compare",
    "places",
    "read_file",
    "read_json",
    "read_registry",
    "read_schema",
]
