"""`make test-floor` and `make test-newest`: an environment with exactly the oldest versions that pyproject.toml allows,
or with the newest of all on the newest Python of this machine. The Makefile says which tests run there.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TOOLS = ("pytest", "pytest-xdist", "jsonschema")
"""What the tests need; of the versions in constraints.txt."""
NEWEST_MINOR = 30
"""Python 3.N is looked for up to here."""
DONE = "installed.txt"
"""In the environment: what has been installed."""


class CannotInstall(Exception):  # noqa: N818 -- as it reads where it is caught
    """Its text says what cannot be had here."""


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def dependencies(edge: str) -> list[str]:
    """For pip. A floor has its whole version in pyproject.toml: torch>=2.6 is held by torch==2.6."""
    promised: list[str] = project()["dependencies"]
    return [text.replace(">=", "==") if edge == "floor" else text for text in promised]


def pinned(*names: str) -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line.partition("==")[0] in names]


def least_python() -> tuple[int, int]:
    major, minor = project()["requires-python"].removeprefix(">=").split(".")
    return int(major), int(minor)


def python(edge: str) -> str:
    """The path of an interpreter that can make environments. Raises CannotInstall."""
    major, least = least_python()
    minors = [least] if edge == "floor" else range(NEWEST_MINOR, least - 1, -1)
    for minor in minors:
        for path in _installed(f"{major}.{minor}"):
            return path
    wanted = f"Python {major}.{least}" + " or newer" * (edge != "floor")
    raise CannotInstall(f"{wanted} with venv is not on this machine: on PATH, in {_pyenv()}/versions")


def _installed(version: str) -> Iterator[str]:
    found = [shutil.which(f"python{version}"), *map(str, sorted(_pyenv().glob(f"versions/{version}.*/bin/python3")))]
    test = f"import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for path in filter(None, found):
        if subprocess.run([path, "-c", test], capture_output=True, check=False).returncode == 0:
            yield path


def _pyenv() -> Path:
    return Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))


def install(edge: str, folder: Path) -> None:
    """Into this folder, what is not there yet. Raises CannotInstall."""
    path, wanted = python(edge), [*dependencies(edge), *pinned(*TOOLS)]
    asked = "\n".join([path, *wanted])
    done = folder / DONE
    if edge == "floor" and done.is_file() and done.read_text() == asked:
        return
    done.unlink(missing_ok=True)
    _run([path, "-m", "venv", "--clear", str(folder)] if edge == "floor" else [path, "-m", "venv", str(folder)])
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not _run([*command, "--upgrade", "-e", str(ROOT), *wanted]):
        own = path if edge == "newest" else f"Python {'.'.join(map(str, least_python()))}"
        raise CannotInstall(f"{' '.join(wanted)} cannot be installed for {own} here, pip says why above")
    done.write_text(asked)


def _run(command: Sequence[str]) -> bool:
    return subprocess.run(command, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.edges", description="Installs the oldest or the newest.")
    parser.add_argument("edge", choices=["floor", "newest"])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        install(options.edge, options.folder)
    except CannotInstall as why:
        sys.exit(f"test-{options.edge}: {why}. A floor that nobody can have is raised in pyproject.toml.")
    listing = [str(options.folder / "bin" / "python"), "-m", "pip", "list", "--format=freeze"]
    listed = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.lower().split()
    names = {re.split(r"[<>=]", text)[0] for text in dependencies(options.edge)}
    version = subprocess.run([*listing[:1], "-V"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"test-{options.edge}: {version}, {' '.join(line for line in listed if line.partition('==')[0] in names)}")


if __name__ == "__main__":
    main()
