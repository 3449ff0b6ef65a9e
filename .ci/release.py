#!/usr/bin/env python3
"""Make a release of the commit that is checked out.

Run it as ``python .ci/release.py`` in an environment with ``pip install -e '.[test]'``.  It checks
that the tree is clean and that version and changelog agree, runs ``.ci/run``, builds the sdist and
both wheels from the committed files, installs each of them in a fresh virtual environment, and
starts a broker there.  ``dist/`` then has the files, their checksums and the notes.  Nothing is
tagged or uploaded: the last lines say how.

Builds need no network, as they use this environment.  Installations fetch the dependencies from
pip's index; with ``--offline``, they find those of this environment instead.
"""

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
COMPILED: Final = {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1"}  # see hatch_build.py
# What a broker of the installation must do.
TRIAL: Final = """
import pathlib, sys
from phpmq_lite import connect_blocking
from phpmq_lite.testing import broker_process
with broker_process(pathlib.Path(sys.argv[1]), "--admin", "none") as broker:
    with connect_blocking(broker.phpmq[0]) as client:
        client.publish_confirmed("release", b"stored")
    assert broker.terminate() == 0
with broker_process(pathlib.Path(sys.argv[1]), "--admin", "none") as broker:
    with connect_blocking(broker.phpmq[0]) as client:
        delivery = next(iter(client.consume("release", timeout_s=10)))
        assert delivery.body == b"stored", delivery
"""


class ReleaseError(Exception):
    """The release cannot be made; the message says why and what to do."""


@dataclass(frozen=True)
class Release:
    """What is released, from a clean checkout."""

    version: str
    notes: str  # the section of the changelog


def run(*command: object, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command and return its output; pip's own output is dropped."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        line = " ".join(str(word) for word in command)
        raise ReleaseError(f"{line} failed:\n{done.stdout[-4_000:]}{done.stderr[-4_000:]}")
    return done.stdout.strip()


def read_release(root: Path) -> Release:
    """Return what the checkout would release.

    Raises:
        ReleaseError: the tree is not clean, or version, changelog and tags do not agree.
    """
    if changes := run("git", "status", "--porcelain", cwd=root):
        raise ReleaseError(f"the tree is not clean; commit or remove these files:\n{changes}")
    module = (root / "phpmq_lite" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', module, re.MULTILINE)
    if version is None:
        raise ReleaseError("phpmq_lite/__init__.py has no __version__")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if section is None or section[1] != version[1]:
        newest = "nothing" if section is None else section[1]
        raise ReleaseError(
            f"the version is {version[1]} (phpmq_lite/__init__.py), but CHANGELOG.md begins with "
            f"{newest}"
        )
    tag = f"v{version[1]}"
    tagged = run("git", "tag", "--list", tag, cwd=root)
    if tagged and run("git", "rev-list", "-n", "1", tag, cwd=root) != run(
        "git", "rev-parse", "HEAD", cwd=root
    ):
        raise ReleaseError(f"the tag {tag} names another commit; raise the version")
    return Release(version[1], section[2].strip())


def build(root: Path, folder: Path) -> tuple[Path, Path, Path]:
    """Build the sdist, the pure wheel and the compiled wheel into an empty folder.

    The sdist is built from the committed files only, without a commit in its version, and the
    wheels from the sdist.
    """
    with tempfile.TemporaryDirectory() as place:
        archive, source = Path(place) / "head.tar", Path(place) / "source"
        run("git", "archive", "--output", archive, "HEAD", cwd=root)
        with tarfile.open(archive) as opened:
            opened.extractall(source, filter="data")
        sdist = _build(source, folder, "sdist")
        with tarfile.open(sdist) as opened:
            opened.extractall(place, filter="data")
        unpacked = Path(place) / sdist.name.removesuffix(".tar.gz")
        pure = _build(unpacked, folder, "wheel")
        compiled = _build(unpacked, folder, "wheel", **COMPILED)
    return sdist, pure, compiled


def _build(source: Path, folder: Path, kind: str, **environment: str) -> Path:
    before = set(folder.iterdir())
    builder = (sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder)
    run(*builder, cwd=source, **environment)
    (path,) = set(folder.iterdir()) - before
    print(f"built {path.name}, {path.stat().st_size:,} bytes", flush=True)
    return path


def try_out(artefact: Path, version: str, kind: str, *, is_offline: bool) -> None:
    """Install an artefact in a fresh environment, and start a broker that stores a message.

    Raises:
        ReleaseError: it cannot be installed, is of another version or kind, or does not work.
    """
    with tempfile.TemporaryDirectory() as place:
        home = Path(place) / "venv"
        venv.create(home)
        python = home / "bin" / "python"
        if is_offline:
            libraries = (path for path in sys.path if path.endswith("-packages"))
            folder = sysconfig.get_path("purelib", vars={"base": str(home)})
            Path(folder, "libraries.pth").write_text("\n".join(libraries), encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
        if is_offline:
            pip += ["--no-deps", "--no-index", "--no-build-isolation"]
        run(*pip, "--disable-pip-version-check", artefact, cwd=Path(place))
        said = run(home / "bin" / "phpmq-lite", "--version", cwd=Path(place))
        if said != f"phpmq-lite {version} ({kind})":
            raise ReleaseError(f"{artefact.name} says {said!r}")
        run(python, "-c", TRIAL, Path(place) / "data", cwd=Path(place))
    print(f"{artefact.name}: {said}; a broker stored a message and found it again", flush=True)


def notes_of(release: Release, sdist: Path, pure: Path, compiled: Path) -> str:
    """Return the notes, which say what each file is for."""
    library = " ".join(filter(None, platform.libc_ver())) or "this C library"
    return f"""\
# PHPMQ Lite {release.version}

{release.notes}

## Files

- `{pure.name}`: for every machine with Python 3.11 or newer.
- `{compiled.name}`: compiled, for machines like the one that built it only:
  {platform.python_implementation()} {sysconfig.get_python_version()}, {platform.system()} on \
{platform.machine()}, {library} or newer.
- `{sdist.name}`: the sources. On a machine with a C compiler and Python's headers,
  `HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip install {sdist.name}` compiles them.
- `SHA256SUMS`: check it with `sha256sum --check SHA256SUMS`.
"""


def main() -> int:
    """Make the release; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--skip-checks", action="store_true", help="do not run .ci/run")
    parser.add_argument("--offline", action="store_true", help="ask no index for dependencies")
    options = parser.parse_args()
    try:
        release = read_release(ROOT)
        print(f"releasing {release.version}", flush=True)
        if not options.skip_checks:
            subprocess.run([ROOT / ".ci" / "run"], check=True)
        dist = ROOT / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        dist.mkdir()
        sdist, pure, compiled = build(ROOT, dist)
        for artefact, kind in (
            (sdist, "pure Python"),
            (pure, "pure Python"),
            (compiled, "compiled"),
        ):
            try_out(artefact, release.version, kind, is_offline=options.offline)
        files = sdist, pure, compiled
        sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
        (dist / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
        (dist / "NOTES.md").write_text(notes_of(release, *files), encoding="utf-8")
    except (ReleaseError, subprocess.CalledProcessError) as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    print(
        f"""
dist/ has the release. What remains to be done manually:
  git tag --sign --message 'PHPMQ Lite {release.version}' v{release.version}
  git push origin v{release.version}
  twine upload dist/{sdist.name} dist/{pure.name}
  publish dist/NOTES.md, with all files and SHA256SUMS, where releases are announced
  docker build -f deploy/Dockerfile -t phpmq-lite:{release.version} .
Package indexes refuse {compiled.name}: it is for machines like this one."""
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
