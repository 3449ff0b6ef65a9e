"""The compiled wheel: what a release has; and the tests of its compiled modules, on one of them.

It is built as users build it, but not optimized.
"""

import ast
import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.compiled import MODULES, PROJECT, ROOT, build_wheel, make_copy, run_tests
from tests.integration.test_packaging import names_in_wheel
from tests.support.builds import NEEDS_SOURCES
from tests.support.programs import run_program

PACKAGE = ROOT / "phpmq_lite"
CORES = ("broker/", "protocol/")
# What drives the compiled modules: the core, the protocol and the settings of queues.
PATHS = """
unit/broker unit/protocol unit/server integration/test_broker_on_disk.py integration/test_heap.py
integration/test_operations_on_disk.py integration/test_pipeline_kill.py
integration/test_service.py properties conformance acceptance/test_hostile.py
acceptance/test_limits.py acceptance/test_order_and_ttl.py acceptance/test_session.py
acceptance/test_worker.py faults/test_bulk_kill.py faults/test_sites.py faults/test_dead_brokers.py
faults/test_hostile_peers.py faults/test_kill.py faults/test_poison.py faults/test_power.py
faults/test_slow_disk.py faults/test_writer_process.py browser/test_journey.py fuzz/test_fuzz.py
soak
"""
SAMPLE = [f"tests/{path}" for path in PATHS.split()]

pytestmark = pytest.mark.timeout(400)


def imported(module: str) -> set[str]:
    """Return the imports of a module from the two cores, as paths below the package."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found |= {f"{name.partition('.')[2].replace('.', '/')}.py" for name in names}
    return {name for name in found if name.startswith(CORES) and (PACKAGE / name).is_file()}


def test_core_modules_imported_by_compiled_ones_are_compiled_too() -> None:
    """Otherwise, each call between them goes through the interpreter."""
    assert {name for module in MODULES for name in imported(module)} - set(MODULES) == set()


def test_result_of_a_property_is_never_called_directly() -> None:
    """``it.property(argument)`` becomes ``it.property``: mypyc 2.4.1 leaves out the call."""
    nodes = compiled_nodes()
    properties = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(it, ast.Name) and it.id == "property" for it in node.decorator_list)
    }
    called = {
        node.func.attr
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert properties & called == set()


def test_slice_bounds_have_no_side_effects() -> None:
    """Mypyc 2.4.1 calls it twice, unless a list, tuple, str or bytes is sliced."""
    bounds = [
        bound
        for node in compiled_nodes()
        if isinstance(node, ast.Slice)
        for bound in (node.lower, node.upper)
        if bound is not None
    ]
    calls = [node for bound in bounds for node in ast.walk(bound) if isinstance(node, ast.Call)]
    called = {ast.unparse(call.func).rpartition(".")[2] for call in calls}
    assert called <= {"len", "max", "min", "index"}


def test_no_slice_has_a_name() -> None:
    """Mypyc 2.4.1 takes ``bytes[NAME]`` for a byte, whatever the name stands for."""
    calls = [node for node in compiled_nodes() if isinstance(node, ast.Call)]
    assert "slice" not in {ast.unparse(call.func) for call in calls}


def compiled_nodes() -> list[ast.AST]:
    trees = [ast.parse((PACKAGE / module).read_text(encoding="utf-8")) for module in MODULES]
    return [node for tree in trees for node in ast.walk(tree)]


def test_release_has_a_compiled_wheel_for_every_python() -> None:
    """cibuildwheel, which needs neither the network nor docker for this, names the wheels."""
    command = [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers"]
    for platform, machine in (("linux", "x86_64"), ("linux", "aarch64"), ("macos", "arm64")):
        flags = ["--platform", platform, "--archs", machine]
        done = run_program([*command, *flags], cwd=ROOT)
        assert done.returncode == 0, done.stderr
        system = {"linux": "manylinux", "macos": "macosx"}[platform]
        pattern = r"Programming Language :: Python :: 3\.(\d+)"
        found = [re.fullmatch(pattern, each) for each in PROJECT["project"]["classifiers"]]
        versions = [*(match[1] for match in found if match), "14"]
        wheels = [f"cp3{version}-{system}_{machine}" for version in versions]
        assert done.stdout.split() == wheels
    settings = PROJECT["tool"]["cibuildwheel"]
    assert settings["environment"] == {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1"}
    assert settings["test-command"] == "phpmq-lite --version | grep compiled"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        pytest.skip("Python's headers are not installed")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers, which need one wheel
    target = folder / "compiled-wheel"
    with (folder / "compiled-wheel.lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("MYPYC_OPT_LEVEL", "0")  # half the time
        return next(target.glob("*.whl"), None) or build_wheel(target)


@NEEDS_SOURCES
@pytest.mark.slow
def test_wheel_is_for_this_platform_and_has_every_source(wheel: Path) -> None:
    assert not wheel.stem.endswith("-py3-none-any")
    names = names_in_wheel(wheel)
    assert {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py")} <= names
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    libraries = {name.removesuffix(suffix) for name in names if name.endswith(suffix)}
    modules = {f"phpmq_lite/{module.removesuffix('.py')}" for module in MODULES}
    assert libraries == modules | {"phpmq_lite__mypyc"}


@NEEDS_SOURCES
@pytest.mark.slow
def test_installed_wheel_is_compiled(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are installed already."""
    options = ["--no-deps", "--no-index", "--no-compile", "--quiet", "--target", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    program = "from tests.compiled import pytest_sessionstart as check; check()"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, check=True,
    )  # fmt: skip


@NEEDS_SOURCES
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tests_of_the_compiled_modules_pass_with_them(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPOTHESIS_PROFILE", "brief")
    assert run_tests(make_copy(tmp_path, wheel), "-q", "-n", "2", *SAMPLE) == 0
