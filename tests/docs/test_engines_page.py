"""The tests that do not run on PostgreSQL exist, and are few."""

import ast
from functools import cache

import pytest

from tests.docs.pages import ROOT
from tests.support.engine_differences import OF_ONE_ENGINE, SKIPPED


@cache
def names_in(file: str) -> frozenset[str]:
    """Return the names of the functions and classes of a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    return frozenset(node.name for node in body if isinstance(node, kinds))


@pytest.mark.parametrize("reasons", [OF_ONE_ENGINE, SKIPPED], ids=["of one engine", "skipped"])
def test_listed_tests_exist(reasons: dict[str, str]) -> None:
    for name in reasons:
        file, _, test = name.partition("::")
        assert (ROOT / file).is_file(), name
        assert not test or test in names_in(file), name


def test_every_skipped_test_is_named() -> None:
    """A whole file would hide how many are skipped."""
    assert [name for name in SKIPPED if "::" not in name] == []
