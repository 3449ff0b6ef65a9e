"""Reads submitted forms into the models of the API."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from pydantic import BaseModel, Field

from phpmq_lite.admin.http.fields import TTL_MAX_S, Form, TtlSeconds
from phpmq_lite.queue_settings import LONGEST_NAME

M = TypeVar("M", bound=BaseModel)
VALUES_MAX: Final = 200  # maximum number of values of a repeated field


@dataclass(slots=True, frozen=True)
class Untrimmed:
    """Marks a field whose white space is significant, such as a queue name or a password."""


@dataclass(slots=True, frozen=True)
class Lines:
    """Marks a list that a form has as one field with a line for each item."""


@dataclass(slots=True, frozen=True)
class Duration:
    """Marks seconds that a form has as a number and a unit."""


QueueTarget = Annotated[
    str, Field(min_length=1, max_length=LONGEST_NAME, description="target queue"), Untrimmed()
]
Ttl = Annotated[TtlSeconds, Duration()]
NewTtl = Annotated[
    int | None,
    Field(ge=0, le=TTL_MAX_S, description="seconds to live; 0 for no limit, null for no change"),
    Duration(),
]


def is_number(annotation: Any) -> bool:
    """Return whether a field is an integer, which forms may have with commas."""
    return annotation is int or int in get_args(annotation)


def read_form_model(form: Form, model: type[M]) -> M:
    """Read a form into a model; empty fields count as absent.

    Raises:
        ValidationError: a value is out of bounds.
        Problem: see ``Form.ttl_s`` and ``Form.texts``.
    """
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kinds = {type(mark) for mark in field.metadata}
        if Duration in kinds:
            values[name] = form.ttl_s()
        elif Lines in kinds:
            if form.texts(name, 1):
                lines = form.raw(name).splitlines()
                values[name] = [line.strip() for line in lines if line.strip()]
        elif get_origin(field.annotation) is list:
            values[name] = list(dict.fromkeys(form.texts(name, VALUES_MAX)))
        elif text := form.raw(name) if Untrimmed in kinds else form.raw(name).strip():
            values[name] = text.replace(",", "") if is_number(field.annotation) else text
    return model.model_validate(values, strict=False)
