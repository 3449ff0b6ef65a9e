"""Public names: each exists, is listed and is documented.

Ruff requires a docstring for every class, function, method and property of the package.
Fields have none in Python: the class's docstring or a comment on the line explains them.
"""

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import phpmq_lite
from phpmq_lite.client.async_client import connect
from phpmq_lite.client.blocking_client import connect_blocking

PACKAGES = {
    name: importlib.import_module(name)
    for name in ("phpmq_lite", "phpmq_lite.client", "phpmq_lite.envelopes", "phpmq_lite.spark")
}
NAMES = [(package, name) for package, module in PACKAGES.items() for name in module.__all__]
KINDS = {
    kind.__qualname__: kind
    for package, name in NAMES
    if inspect.isclass(kind := getattr(PACKAGES[package], name))
}


def undocumented_fields(kind: type) -> Iterator[str]:
    """Yield the fields that neither the docstring nor a comment on their line explains."""
    lines = inspect.getsource(kind).splitlines()
    said = inspect.getdoc(kind) or ""
    for name in vars(kind).get("__annotations__", {}):
        beside = next(line for line in lines if re.match(rf"\s+{name}:", line))
        if not name.startswith("_") and "#" not in beside and not re.search(rf"\b{name}\b", said):
            yield name


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_public_name_is_there_and_listed(package: str, name: str) -> None:
    assert getattr(PACKAGES[package], name)
    assert name in dir(PACKAGES[package])


@pytest.mark.parametrize("package", PACKAGES)
def test_unknown_name_raises_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'conect'"):
        PACKAGES[package].conect  # noqa: B018 - the look-up is the test


@pytest.mark.parametrize("name", KINDS)
def test_public_class_explains_its_fields(name: str) -> None:
    assert list(undocumented_fields(KINDS[name])) == []


def test_names_of_the_package_are_those_of_the_clients() -> None:
    assert phpmq_lite.connect is connect
    assert phpmq_lite.connect_blocking is connect_blocking


@pytest.mark.parametrize(
    ("package", "heavy"),
    [
        ("phpmq_lite.client", "asyncio ssl"),
        # the broker imports these two without the SDK and the clients
        ("phpmq_lite.envelopes.validation", "babelqueue phpmq_lite.client asyncio"),
        ("phpmq_lite.envelopes.dead_letter_record", "babelqueue phpmq_lite.client asyncio"),
        ("phpmq_lite.spark", "pyspark pyarrow aiohttp"),
    ],
)
def test_import_loads_nothing_heavy(package: str, heavy: str) -> None:
    code = f"import sys, {package}; print(*set({heavy.split()}) & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
