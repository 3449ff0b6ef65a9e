"""Build hook: records the commit, and compiles what handles each message where that is asked for.

``phpmq-lite --version`` names the commit in ``phpmq_lite/_data/commit``.  A wheel has that file, an
sdist ``commit``, unless git knows no commit, or the commit has a tag: a release has a version.

``HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip install .`` asks for compiling; a C compiler and Python's
headers must be there.  The wheel keeps every ``.py``; the libraries stand beside them.
``hatch-mypyc`` leaves the libraries in the checkout: from then on they are imported instead of the
sources, and the next wheel for every platform has them too.
"""

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuildHook(BuildHookInterface[BuilderConfig]):
    """Records the commit, and compiles ``modules``, paths below the package, with mypyc.

    ``MYPYC_OPT_LEVEL`` is the C compiler's ``-O``, 3 by default.  An editable install is left as it
    is: a changed source would have no effect, and the checkout knows its commit.
    """

    _folder: TemporaryDirectory[str] | None = None  # where new files lie until they are packed

    @property
    def _compiles(self) -> bool:
        is_enabled = os.environ.get("HATCH_BUILD_HOOK_ENABLE_CUSTOM", "").lower() in ("1", "true")
        return is_enabled and self.target_name == "wheel"

    def dependencies(self) -> list[str]:
        """Return what only a compiled build needs."""
        return ["mypy[mypyc]>=2.4"] if self._compiles else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Create the files in a temporary folder, and have the artefact take them from there."""
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        folder = Path(self._folder.name)
        if commit := _commit(Path(self.root)):
            (folder / "commit").write_text(f"{commit}\n", encoding="utf-8")
            target = "phpmq_lite/_data/commit" if self.target_name == "wheel" else "commit"
            build_data["force_include"][str(folder / "commit")] = target
        if self._compiles:
            libraries = _compile(Path(self.root), self.config["modules"], folder)
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"].update(libraries)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder: the artefact is written."""
        if self._folder is not None:
            self._folder.cleanup()


def _commit(root: Path) -> str:
    """Return the commit of the checkout, or nothing if it is tagged or git does not know it."""
    if (recorded := root / "commit").is_file():  # by the sdist
        return recorded.read_text(encoding="utf-8").strip()
    if not (root / ".git").exists():
        return ""

    def ask(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        is_release = ask("tag", "--points-at", "HEAD")
        return "" if is_release else ask("describe", "--always", "--dirty", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return ""


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
