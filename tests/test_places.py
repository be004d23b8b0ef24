"""From any folder, and installed in any way."""

import json
import shutil
import subprocess
import sys
import sysconfig
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


@pytest.mark.parametrize("installed", [False, pytest.param(True, marks=pytest.mark.more)], ids=["checkout", "editable"])
@pytest.mark.more
def test_a_folder_with_its_own_checks_and_rich(installed: bool, hostile: Path, tmp_path: Path) -> None:
    """From a checkout on PYTHONPATH, or as `make test` has installed it."""
    run = running.Run(tmp_path, 300)
    (env,) = running.plain_ranks(1)
    if installed:
        del env["PYTHONPATH"]
    run.start(
        running.preflight("--all", *running.SMALL, "--report", str(tmp_path), "--deadline", "300"), env, cwd=hostile
    )
    finished = run.finish()
    assert finished.exit_codes == [0], finished.told()
    assert finished.report["verdict"] == "pass"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: in the checkout an old build/ would get into the wheel."""
    source = tmp_path_factory.mktemp("wheel") / "source"
    for name in ("preflight", "checks", "train_smoke"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(scope="module")
def sdist(source: Path) -> Path:
    command = [sys.executable, "-m", "build", "--sdist", "-o", str(source.parent), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=running.HUNG_S)
    return next(source.parent.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Built from the sdist, as pip does where it is given that: what the sdist lacks, the wheel lacks, too."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(sdist.parent), str(sdist)]
    subprocess.run(command, check=True, capture_output=True, timeout=running.HUNG_S)
    return next(sdist.parent.glob("*.whl"))


@pytest.mark.more
def test_the_wheel_holds_all_that_the_checkout_has(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = set()
    for top, base in (("preflight", ROOT), ("checks", ROOT / "preflight"), ("train_smoke", ROOT / "preflight")):
        files = (path for path in (ROOT / top).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        expected |= {str(ROOT.joinpath(base, path.relative_to(ROOT)).relative_to(ROOT)) for path in files}
    assert names == expected


@pytest.mark.more
def test_the_unpacked_wheel_runs(wheel: Path, hostile: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    """Without being installed; what is installed runs all (see below)."""
    run = running.Run(tmp_path)
    for env in running.plain_ranks(2):
        command = running.preflight("--only", "env,comm.init", "--report", str(tmp_path), "--deadline", "60")
        run.start(command, {**env, "PYTHONPATH": str(site)}, cwd=hostile)
    finished = run.finish()
    assert finished.exit_codes == [0, 0] and finished.report["verdict"] == "pass", finished.told()


def _installed(package: Path, folder: Path, *options: str) -> Path:
    """The commands of a new environment with this package."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=running.HUNG_S)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *options, str(package)]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    return folder / "bin"


def _runs(commands: Path, hostile: Path) -> None:
    """From a hostile folder and with nothing on PYTHONPATH."""
    env = {name: value for name, value in running.environment().items() if name != "PYTHONPATH"}
    for words in (["preflight", "--level", "quick"], ["python", "-m", "preflight", "--all", *running.SMALL]):
        command = [str(commands / words[0]), *words[1:], "--json", "-"]
        done = running.run_to_end(command, env, hostile)
        assert done.returncode == 0 and json.loads(done.stdout)["verdict"] == "pass", done.stdout + done.stderr
        where = running.run_to_end(
            [str(commands / "python"), "-c", "import preflight; print(preflight.__file__)"], env, hostile
        )
        assert where.stdout.startswith(str(commands.parent)), where.stdout + where.stderr


@pytest.mark.more
def test_it_installs_into_an_environment_of_its_own(wheel: Path, hostile: Path, tmp_path: Path) -> None:
    """The dependencies are lent by this one: torch alone takes minutes (see the test below)."""
    commands = _installed(wheel, tmp_path / "env", "--no-deps")
    (site,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    (site / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    _runs(commands, hostile)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_installs_into_an_empty_environment(
    kind: str, hostile: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    constraints = ("-c", str(ROOT / "constraints.txt"))
    _runs(_installed(request.getfixturevalue(kind), tmp_path / "env", *constraints), hostile)


@pytest.mark.parametrize(
    ("name", "text"),
    [("pickle.py", ""), ("json.py", "raise SystemExit(0)"), ("signal.py", "import nothing_here"), ("socket.py", "(")],
)
def test_a_file_of_the_users_that_hides_one_of_pythons_is_named(name: str, text: str, tmp_path: Path) -> None:
    """`preflight.run()` in a notebook, or in python -c: Python takes the user's."""
    (tmp_path / name).write_text(text)
    code = "import preflight\ntry:\n    preflight.run(level='quick')\nexcept ImportError as error:\n    print(error)"
    done = running.run_to_end([sys.executable, "-c", code], cwd=tmp_path)
    assert done.stdout.startswith(f"preflight.run(): {tmp_path / name} hides a module of Python's own"), done
    assert done.stderr == "" and done.stdout.count("\n") == 1, done


@pytest.mark.more
def test_a_file_of_the_users_that_hides_what_is_not_needed_is_left_alone(tmp_path: Path) -> None:
    """Also one that the user has imported."""
    (tmp_path / "code.py").write_text("")
    call = "preflight.run(level='quick', only=['env'], quiet=True, deadline_s=120)"
    code = f"import code, preflight; found = {call}; print(found.verdict, found.sentence)"
    done = running.run_to_end([sys.executable, "-c", code], cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("pass preflight: PASS\n", ""), done


def test_the_version_is_one() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == preflight.__version__
