"""The broker's operations by name, whichever module has them."""

from typing import Any

from phpmq_lite.broker.operator import message_actions, operations, publishing
from phpmq_lite.broker.pipeline import claims, staging


def operation(name: str) -> Any:
    """Return an operation of an operator or of the pipeline."""
    modules = (operations, message_actions, publishing, claims, staging)
    return next(vars(module)[name] for module in modules if name in vars(module))
