"""Readable messages for pydantic's validation errors."""

import re
from collections.abc import Mapping
from typing import Any, Final

_NUMBER: Final = "must be a whole number"
_BY_TYPE: Final = {  # https://docs.pydantic.dev/latest/errors/validation_errors/
    "missing": "is missing",
    "extra_forbidden": "is unknown",
    "int_parsing": _NUMBER,
    "int_type": _NUMBER,
    "int_from_float": _NUMBER,
    "int_parsing_size": "is too large",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "path_type": "must be a path",
    "ip_v4_address": "must be an IPv4 address",
    "ip_any_network": "must be a network, such as 10.0.0.0/8",
    "byte_size": "must be a size, such as 512 MiB",
    "byte_size_unit": "must be a size, such as 512 MiB",
    "json_invalid": "is not valid JSON",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}
_SUBJECT: Final = re.compile(r"^(Value error, |Assertion failed)|^(Input|[A-Z]\w+) should ")


def describe_error(name: str, detail: Mapping[str, Any]) -> str:
    """Describe what is wrong with the value ``name``; ``detail`` is an item of ``errors()``.

    Errors from our own validators keep their text.  If the name is empty, "the value" replaces it.
    """
    template = _BY_TYPE.get(detail["type"])
    if template is not None:
        return f"{name or 'the value'} {template.format_map(detail.get('ctx', {}))}"
    text = _SUBJECT.sub(lambda match: "" if match[1] else "must ", str(detail["msg"]))
    return f"{name}: {text}" if name else text
