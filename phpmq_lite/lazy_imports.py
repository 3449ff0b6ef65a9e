"""Names of a package that are loaded when they are first used: importing it costs nothing."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_of(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Give the ``__getattr__`` and the ``__dir__`` of a package (PEP 562).

    Args:
        package: its ``__name__``.
        homes: name -> the module that has it, as seen from the package: ``aio``.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    return load, names
