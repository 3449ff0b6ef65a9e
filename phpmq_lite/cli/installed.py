"""Which packages are installed, judged by what the distribution says that it needs."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from sysconfig import get_path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from phpmq_lite.cli.findings import Finding, as_root, bad, ok, warn
from phpmq_lite.installation import install_command

DISTRIBUTION: Final = "phpmq-lite"
_LEAST: Final = (">=", ">")  # what a version must have reached


def requirements(extra: str = "") -> list[Requirement]:
    """Give what is needed here: by all, or beside that by those who use an extra.

    Nothing where the package runs without having been installed.
    """
    try:
        all_of = [Requirement(text) for text in requires(DISTRIBUTION) or []]
    except PackageNotFoundError:
        return []
    return [one for one in all_of if _is_for(one, extra) and not (extra and _is_for(one, ""))]


def _is_for(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def install(*extras: str, flags: str = "") -> str:
    """Return the command that installs this package again, and who may run it."""
    command = install_command(*extras, flags=flags)
    return command if os.access(get_path("purelib"), os.W_OK) else as_root(command)


def installed(package: str) -> str | None:
    """Give the version of a package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def look_at_python() -> Finding:
    """Judge the Python that runs this."""
    try:
        needed = metadata(DISTRIBUTION)["Requires-Python"]
    except PackageNotFoundError:
        needed = ""
    return python_finding(platform.python_version(), needed or "")


def python_finding(found: str, needed: str) -> Finding:
    """Judge a version of Python."""
    text = f"{found}, {sys.executable}"
    if SpecifierSet(needed).contains(found, prereleases=True):
        return ok("Python", text)
    return bad("Python", text, f"{needed} is needed")


def package_finding(needed: Requirement, found: str | None, install: str) -> Finding:
    """Judge the version of a package; None: it is not installed.  ``install`` is how it would be.

    One that is newer than what was tried may do.
    """
    name = needed.name
    if found is None:
        return bad(name, "not installed", install)
    if needed.specifier.contains(found, prereleases=True):
        return ok(name, found)
    least = SpecifierSet(",".join(str(one) for one in needed.specifier if one.operator in _LEAST))
    if not least or not least.contains(found, prereleases=True):
        return bad(name, found, f"{needed.specifier} is needed: {install}")
    return warn(name, found, f"not tried with it: pip install '{name}{needed.specifier}'")
