"""The compiled wheel: built as users build it, but not optimized; installed; under load; killed."""

import ast
import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from phpmq_lite.broker_process import BrokerProcess, broker_process
from phpmq_lite.client.async_client import Client, connect
from tests.integration.test_packaging import build, names_in_wheel

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "phpmq_lite"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
MODULES: list[str] = WHEEL["hooks"]["custom"]["modules"]
CORES = ("broker/", "protocol/")
BODIES = [b"message %d" % number for number in range(500)]

Python = Callable[..., str]

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


def compiled_nodes() -> list[ast.AST]:
    trees = [ast.parse((PACKAGE / module).read_text(encoding="utf-8")) for module in MODULES]
    return [node for tree in trees for node in ast.walk(tree)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        pytest.skip("Python's headers are not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HATCH_BUILD_HOOK_ENABLE_CUSTOM", "1")
        patch.setenv("MYPYC_OPT_LEVEL", "0")  # half the time
        return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install it into a folder; its dependencies are installed already."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-index", "--no-compile", "--quiet", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    return folder


@pytest.fixture
def python(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Python:
    """Run Python with the installed package and return its output.

    Brokers that this test starts import it too.
    """
    monkeypatch.chdir(tmp_path)  # not the checkout: ``-m`` searches the current folder first
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-5_000:] + done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_wheel_is_for_this_platform_and_has_every_source(wheel: Path) -> None:
    assert not wheel.stem.endswith("-py3-none-any")
    names = names_in_wheel(wheel)
    assert {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py")} <= names
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    libraries = {name.removesuffix(suffix) for name in names if name.endswith(suffix)}
    modules = {f"phpmq_lite/{module.removesuffix('.py')}" for module in MODULES}
    assert libraries == modules | {"phpmq_lite__mypyc"}


@pytest.mark.slow
def test_every_module_of_the_list_is_the_compiled_one(python: Python) -> None:
    names = [f"phpmq_lite.{module.removesuffix('.py').replace('/', '.')}" for module in MODULES]
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: print(type(importlib.import_module(name).__loader__).__name__)"
    )
    assert python("-c", program, *names).split() == ["ExtensionFileLoader"] * len(names)


@pytest.mark.slow
def test_protocol_and_states_are_as_in_python(
    site: Path, python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the most demanding tests of the compiled modules in a process that imports them."""
    monkeypatch.setenv("HYPOTHESIS_PROFILE", "brief")
    files = [
        "conformance/test_wire.py", "properties/test_protocol.py",
        "properties/test_broker_machine.py",
    ]  # fmt: skip
    python(
        "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider",
        "-o", f"pythonpath={site} {ROOT}", *(str(ROOT / "tests" / file) for file in files),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("python")
async def test_compiled_broker_loses_nothing_when_it_is_killed(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as broker:
        assert 'build="compiled"' in await asyncio.to_thread(metrics, broker)
        async with connect("127.0.0.1", broker.port) as client:
            for body in BODIES:
                await client.publish("orders", body)
            assert await consume(client, 100) == BODIES[:100]
            await client.publish_confirmed("proof", b"stored after all before it")
        broker.kill()
        broker.start()
        async with connect("127.0.0.1", broker.port) as client:
            assert await consume(client, len(BODIES) - 100) == BODIES[100:]
            assert await consume(client, 1, "proof")


def metrics(broker: BrokerProcess) -> str:
    with urlopen(f"{broker.admin[0]}metrics") as answer:
        return str(answer.read().decode())


async def consume(client: Client, count: int, queue: str = "orders") -> list[bytes]:
    """Receive ``count`` messages in order and acknowledge them."""
    taken: list[bytes] = []
    async with client.consume(queue) as deliveries:
        async for delivery in deliveries:
            taken.append(delivery.body)
            delivery.ack()
            if len(taken) == count:
                break
    return taken
