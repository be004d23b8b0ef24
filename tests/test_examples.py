"""examples/: each file does what the docs say of it, and they quote it as it is."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from preflight.cluster import hook
from tests import running

EXAMPLES = running.ROOT / "examples"
DOCS = sorted((running.ROOT / "docs").glob("*.md"))
SCRIPTS = ("prolog.sh", "health.sh", "epilog.sh", "job.sbatch", "npd.sh")
SICK = {"GLOO_SOCKET_IFNAME": "^lo"}
"""A real fault: gloo takes no such name."""
Done = subprocess.CompletedProcess[str]


def test_the_docs_quote_them_as_they_are() -> None:
    quoted = set()
    for page in DOCS:
        for path, code in re.findall(r"\]\(\.\./(examples/[\w./-]+)\):\n\n```\w+\n(.*?)```", page.read_text(), re.S):
            assert code == (running.ROOT / path).read_text(), f"{page.name} quotes an older {path}"
            quoted.add(path)
    there = {
        str(path.relative_to(running.ROOT))
        for path in EXAMPLES.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert quoted == there


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_sound_bash(name: str) -> None:
    checker = ["shellcheck"] if shutil.which("shellcheck") else ["bash", "-n"]
    subprocess.run([*checker, EXAMPLES / name], check=True)


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """A PATH of ours: preflight, torchrun and this Python, and what the test puts over them. Of `--all` a part is run:
    the scripts are the subject."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python = f'PYTHONPATH="{running.ROOT}" exec {sys.executable}'
    for name, words in {"python": "", "python3": "", "preflight": "-m preflight", "torchrun": TORCHRUN}.items():
        part = 'case "$*" in *"preflight --all"*) set -- "$@" --only env,comm.init ;; esac'
        command(folder, name, f'{part}\n{python} {words} "$@"\n')
    return folder


TORCHRUN = "-m torch.distributed.run"


def command(folder: Path, name: str, text: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}")
    (folder / name).chmod(0o755)


def bash(script: Path, *arguments: str, cwd: Path, env: Mapping[str, str], limits: str = "") -> Done:
    """Its output is one text, as on a terminal. Within limits Python must leave no halves of compiled modules."""
    given = {**env, "PYTHONDONTWRITEBYTECODE": "1"} if limits else env
    return subprocess.run(
        ["bash", "-c", f'{limits}\nexec bash "$0" "$@"', script, *arguments], cwd=cwd, env=given, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=running.HUNG_S,
    )  # fmt: skip


DISK_IS_FULL = "ulimit -f 1"
"""Files of more than a KiB fail while they are written."""


@pytest.mark.parametrize("name", sorted(hook.HOOKS))
def test_they_are_what_the_command_prints(name: str) -> None:
    """With its own paths, which the machine's take the place of."""
    assert hook.text(name, hook.EXAMPLE_PATHS) == (EXAMPLES / hook.HOOKS[name]).read_text()
    assert "/usr/bin:/usr/bin" not in hook.text(name, hook.EXAMPLE_PATHS)
    printed = running.run_to_end(running.preflight("hook", name)).stdout
    assert printed == hook.text(name, hook.paths()) and not re.search("@[A-Z]+@", printed)


# prolog.sh; in a real Slurm: tests/cluster/test_slurm.py


def prolog(bin_folder: Path, limits: str = "", limit: str = "60", **env: str) -> tuple[int, str]:
    """(exit status, what syslog and Slurm were told), in slurmd's environment, which has no PATH."""
    log = bin_folder / "log"
    command(bin_folder, "logger", f"cat >> {log}\n")
    command(bin_folder, "scontrol", f'echo "scontrol $*" >> {log}\n')
    ours = bin_folder.parent / "prolog.sh"
    text = hook.text("slurm-prolog", {"@BIN@": str(bin_folder), "@SLURM@": str(bin_folder)})
    ours.write_text(text.replace("limit_s=15", f"limit_s={limit}"))
    temporary = bin_folder.parent / "tmp"
    temporary.mkdir()
    slurm = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "gpu-1", "TMPDIR": str(temporary)}
    done = bash(ours, cwd=bin_folder, env={**slurm, **env}, limits=limits)
    assert not list(temporary.iterdir())
    return done.returncode, log.read_text() if log.exists() else ""


def test_the_prolog_says_nothing_of_a_sound_node(bin_folder: Path) -> None:
    assert prolog(bin_folder) == (0, "")


def test_the_prolog_drains_for_a_failure_that_it_has_read(bin_folder: Path) -> None:
    status, log = prolog(bin_folder, **SICK)
    reason = "preflight:net.interfaces.none variable GLOO_SOCKET_IFNAME (fix_config)"
    assert status == 1 and log.startswith(f"job 7: {reason}: node drained\n"), log
    assert log.endswith(f"scontrol update NodeName=gpu-1 State=DRAIN Reason={reason}\n"), log


FAULTS = {
    "missing": "exit 127\n",
    "no Python": "exit 1\n",
    "hangs": "exec sleep 1000\n",
    "killed": "kill -9 $$\n",
    "nonsense": "echo preflight; exit 1\n",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_preflight_that_is_broken_costs_a_node(fault: str, bin_folder: Path) -> None:
    command(bin_folder, "preflight", FAULTS[fault])
    if fault == "missing":
        (bin_folder / "preflight").unlink()
    status, log = prolog(bin_folder, limit="3")
    assert status == 0 and "no verdict" in log and "job not held" in log and "scontrol" not in log


def test_no_disk_that_is_full_costs_a_node(bin_folder: Path) -> None:
    status, log = prolog(bin_folder, limits=DISK_IS_FULL, **SICK)
    assert status == 0 and "no verdict" in log


def test_no_folder_for_the_report_costs_no_node(bin_folder: Path) -> None:
    command(bin_folder, "mktemp", "exit 1\n")
    assert prolog(bin_folder, **SICK) == (0, "")


PLUGIN_SAYS: dict[str, tuple[dict[str, str], int, str]] = {
    "sound": ({}, 0, "no failure was found\n"),
    "sick": (SICK, 1, "preflight:net.interfaces.none variable GLOO_SOCKET_IFNAME (fix_config)\n"),
    "cut": ({"GLOO_SOCKET_IFNAME": "^lo"}, 1, "x" * 80 + "\n"),
    "crashes": ({}, 2, "no verdict\n"),
}


@pytest.mark.parametrize("case", PLUGIN_SAYS)
def test_the_plugin_of_the_node_problem_detector_has_its_exit_codes(case: str, bin_folder: Path) -> None:
    env, status, line = PLUGIN_SAYS[case]
    text = hook.text("node-problem-detector", {"@BIN@": str(bin_folder), "@SLURM@": str(bin_folder)})
    if case == "cut":
        text = text.replace("prefix=preflight:", f"prefix={'x' * 100}")
    if case == "crashes":
        command(bin_folder, "preflight", "exit 139\n")
    (bin_folder.parent / "npd.sh").write_text(text)
    done = bash(bin_folder.parent / "npd.sh", cwd=bin_folder, env=dict(env))
    assert (done.returncode, done.stdout) == (status, line)


# kubernetes.yaml, train.py, preflight.toml, check/


FIRST_PODS = {"kubernetes.yaml": "train-0.train", "jobset.yaml": "train-node-0-0.train", "trainer.yaml": ""}


@pytest.mark.more
@pytest.mark.parametrize("manifest", FIRST_PODS)
def test_the_pods_commands_run(manifest: str, bin_folder: Path, tmp_path: Path) -> None:
    """Both pods' init containers here, with one rank instead of 8 each."""
    text, port = (EXAMPLES / manifest).read_text(), str(running.free_port())
    words = re.split(r",\s+", re.findall(r"command: \[(preflight, .*?)\]", text, re.S)[0])
    here = {FIRST_PODS[manifest]: "127.0.0.1", "29500": port, "per-node=8": "per-node=1"}
    for word_there, word_here in here.items() if FIRST_PODS[manifest] else ():
        assert any(word_there in word for word in words), f"{word_there} stands no longer in {words}"
        words = [word.replace(word_there, word_here) for word in words]
    run = running.Run(tmp_path)
    for pod in "01":
        env = running.environment(PATH=f"{bin_folder}:/usr/bin:/bin")
        if manifest == "trainer.yaml":  # what its envInjection gives
            env |= {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": pod}
            env |= {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
        run.start([word.replace("$(JOB_COMPLETION_INDEX)", pod) for word in words], env)
    finished = run.finish()
    assert finished.exit_codes == [0, 0] and "2 ranks on 2 nodes (torchrun" in finished.output, finished.told()


@pytest.mark.more
@pytest.mark.skipif(not shutil.which("mpirun.openmpi"), reason="needs Debian's openmpi-bin")
@pytest.mark.parametrize("sick", [False, True])
def test_the_launcher_of_the_mpijob_trains_only_on_sound_workers(sick: bool, bin_folder: Path, tmp_path: Path) -> None:
    """Its script, with two ranks here instead of 16 in the workers."""
    (text,) = re.findall(r"- \|\n(.*?)\n {14}volumeMounts", (EXAMPLES / "mpijob.yaml").read_text(), re.S)
    here = {"/etc/mpi/hostfile": f"{tmp_path}/hostfile", "-np 16": "--oversubscribe -np 2", " /data/": f" {tmp_path}/",
            "29500": str(running.free_port()), "python train.py": "echo trained"}  # fmt: skip
    for there, own in here.items():
        assert there in text
        text = text.replace(there, own)
    (tmp_path / "hostfile").write_text("127.0.0.1 slots=8\nworker-1.train.default.svc slots=8\n")
    (tmp_path / "launcher.sh").write_text(text)
    env = running.environment(PATH=f"{bin_folder}:/usr/bin:/bin", **(SICK if sick else {}))
    done = bash(tmp_path / "launcher.sh", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout.count("trained")) == ((1, 0) if sick else (0, 2)), done.stdout
    job = json.loads((tmp_path / "preflight" / "report.json").read_text())["job"]
    assert (job["launcher"], job["world_size"]) == ("mpi", 2)


def test_the_containerfile_copies_what_is_there_and_ends_without_root() -> None:
    """Each instruction is of one line."""
    lines = [line for line in (EXAMPLES / "Containerfile").read_text().splitlines() if not line.startswith("#")]
    steps = [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]
    words = [word for word, _ in steps]
    assert words[0] == "FROM" and words[-1] == "ENTRYPOINT" and words.index("USER") > words.index("RUN")
    assert set(words) == {"FROM", "COPY", "RUN", "USER", "WORKDIR", "ENTRYPOINT"} and words.count("RUN") == 1
    assert json.loads(steps[-1][1]) == ["python", "-m", "preflight"] and int(dict(steps)["USER"]) > 0
    copied = {name for word, rest in steps if word == "COPY" for name in rest.split()[:-1]}
    assert all((running.ROOT / name).exists() for name in copied)
    built_from = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "preflight", "checks", "train_smoke"}
    assert copied == built_from, "what pyproject.toml and setup.py name"


THREADS_AT_THE_END = """
import atexit, os, pathlib
def note():
    names = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    pathlib.Path(f"threads-{os.environ['RANK']}").write_text("".join(names))
if "RANK" in os.environ:
    atexit.register(note)
"""
"""Registered before all others, it is called after them: what it finds is there while Python ends."""


@pytest.mark.more
@pytest.mark.parametrize("sick", [False, True])
def test_the_training_script_trains_only_on_a_sound_machine(sick: bool, tmp_path: Path) -> None:
    """gloo's threads are gone before Python ends: one that wants the GIL then would abort the process."""
    run = running.Run(tmp_path, 150)  # of which preflight.run() may take 120
    (tmp_path / "sitecustomize.py").write_text(THREADS_AT_THE_END)
    env = running.environment(**(SICK if sick else {}))
    launcher = [sys.executable, *TORCHRUN.split(), "--standalone", "--nproc-per-node", "2"]
    env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"
    run.start([*launcher, str(EXAMPLES / "train.py")], env)
    finished = run.finish()
    assert finished.exit_codes == [int(sick)] and finished.left_over == [], finished.told()
    assert ("step 9 loss" in finished.output) is not sick, finished.told()
    threads = [(tmp_path / f"threads-{rank}").read_text() for rank in "01"]
    assert "python" in threads[0] and "gloo" not in "".join(threads), threads
    assert json.loads((tmp_path / "preflight-report" / "report.json").read_text())["exit_code"] == sick


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    given = ("--config", str(EXAMPLES / "preflight.toml"), "--level", "quick", "--report", str(tmp_path))
    words = running.preflight(*given, "--set", f"plugin.data_folder.folder={tmp_path}")
    done = running.run_to_end(words, cwd=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0 and report["options"]["comm.init.slow_s"] == "60", done.stdout + done.stderr
    assert len(report["policy"]["waivers"]) == 1 and len(report["policy"]["severities"]) == 2


@pytest.mark.more
def test_the_guide_can_be_followed(bin_folder: Path, tmp_path: Path) -> None:
    """Its commands, as they stand, in a folder that holds its files."""
    folder = shutil.copytree(EXAMPLES / "check", tmp_path / "new", ignore=shutil.ignore_patterns("__pycache__"))
    guide = "\n".join((running.ROOT / "docs" / name).read_text() for name in ("writing-a-check.md", "probe.md"))
    (tmp_path / "guide.sh").write_text("".join(re.findall(r"```bash\n(.*?)```", guide, re.S)))
    done = bash(tmp_path / "guide.sh", cwd=folder, env=running.environment(PATH=f"{bin_folder}:/usr/bin:/bin"))
    for line in ("PASS  plugin.data_folder", "[plugin.data_folder.missing]", "6 passed", "7 passed"):
        assert line in done.stdout, done.stdout
    assert done.returncode == 0, done.stdout
