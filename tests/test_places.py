"""From any folder, and installed in any way."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import preflight
from tests import running
from tests.running import ROOT

HOSTILE = ("rich.py", "psutil.py", "torch.py", "json.py", "preflight_checks.py")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A user's folder whose names are ours, too."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name in HOSTILE:
        (folder / name).write_text("raise SystemExit('the user\\'s own file was imported')")
    for name in ("checks", "train_smoke", "tests"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise SystemExit('the user\\'s own package was imported')")
    (folder / "preflight.toml").write_text("this is no configuration of ours")
    return folder


@pytest.mark.parametrize("installed", [False, True], ids=["checkout", "editable"])
def test_a_folder_with_its_own_checks_and_rich(installed: bool, hostile: Path, tmp_path: Path) -> None:
    """From a checkout on PYTHONPATH, or as `make test` has installed it."""
    run = running.Run(tmp_path)
    for env in running.plain_ranks(2):
        if installed:
            del env["PYTHONPATH"]
        run.start(running.preflight("--all", "--report", str(tmp_path), "--deadline", "60"), env, cwd=hostile)
    finished = run.finish()
    assert finished.exit_codes == [0, 0], finished.told()
    assert finished.report["verdict"] == "pass"


def _packages() -> list[str]:
    listed: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    return sorted(listed)


def test_every_package_is_listed() -> None:
    found = ["preflight"]
    for top in ("checks", "train_smoke"):
        packages = [file.parent.relative_to(ROOT) for file in (ROOT / top).rglob("__init__.py")]
        found += ["preflight." + ".".join(package.parts) for package in packages]
    assert sorted(found) == _packages()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy: in the checkout an old build/ would get into the wheel
    for name in ("preflight", "checks", "train_smoke"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_all_that_the_checkout_has(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {f"preflight/{path.name}" for path in (ROOT / "preflight").glob("*.*") if path.is_file()}
    for top in ("checks", "train_smoke"):
        expected |= {f"preflight/{path.relative_to(ROOT)}" for path in (ROOT / top).rglob("*.py")}
    assert names == expected


def test_the_unpacked_wheel_runs(wheel: Path, hostile: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    run = running.Run(tmp_path)
    for env in running.plain_ranks(2):
        command = running.preflight("--all", "--report", str(tmp_path), "--deadline", "60")
        run.start(command, {**env, "PYTHONPATH": str(site)}, cwd=hostile)
    finished = run.finish()
    assert finished.exit_codes == [0, 0] and finished.report["verdict"] == "pass", finished.told()


def test_the_version_is_one() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == preflight.__version__
