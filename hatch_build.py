"""Build hook: compiles what handles each message into the wheel, where that is asked for.

``HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip install .`` asks for it; a C compiler and Python's headers
must be there.  The wheel keeps every ``.py``; the libraries stand beside them.
``hatch-mypyc`` leaves the libraries in the checkout: from then on they are imported instead of the
sources, and the next wheel for every platform has them too.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileHook(BuildHookInterface[BuilderConfig]):
    """Compiles ``modules``, paths below the package, with mypyc.

    ``MYPYC_OPT_LEVEL`` is the C compiler's ``-O``, 3 by default.  An editable install is left as it
    is: a changed source would have no effect.
    """

    _folder: TemporaryDirectory[str] | None = None  # where the libraries lie until they are packed

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile in a temporary folder, and have the wheel take the libraries from there."""
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        libraries = _compile(Path(self.root), self.config["modules"], Path(self._folder.name))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update(libraries)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder: the wheel is written."""
        if self._folder is not None:
            self._folder.cleanup()


def _compile(root: Path, modules: list[str], folder: Path) -> dict[str, str]:
    """Return the path of each library, and its path in the wheel.

    They are one library with the code of all modules, so that calls between them are direct, and
    one for each module that makes it importable.
    """
    from mypyc.build import mypycify  # installed only where the hook is enabled, as setuptools is
    from setuptools import Distribution

    options = [
        "--config-file=",  # ours has plugins
        "--no-site-packages",  # the same result whether dependencies are there or not
        "--ignore-missing-imports",
        "--follow-imports=silent",
        f"--cache-dir={folder / 'cache'}",
    ]
    os.chdir(root)  # modules are named after relative paths
    extensions = mypycify(
        [*options, *(f"phpmq_lite/{module}" for module in modules)],
        opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3"),
        debug_level="0",
        target_dir=str(folder / "c"),
        group_name="phpmq_lite",
    )
    distribution = Distribution({"name": "phpmq-lite", "ext_modules": extensions})
    build: Any = distribution.get_command_obj("build_ext")
    build.build_lib, build.build_temp = str(folder / "lib"), str(folder / "objects")
    build.ensure_finalized()
    build.run()
    built = (path for path in (folder / "lib").rglob("*") if path.is_file())
    return {str(path): str(path.relative_to(folder / "lib")) for path in built}
